"""Names at the ends of lines, spread apart so that none lies on another; a legend beside the picture where they are many."""

import math
from collections.abc import Sequence
from typing import Any

from tasks.tracking.plots.style import as_written, drawable_names, set_legend

_POINTS = 9.0  # the letters' size
_GAP = 1.3 * _POINTS  # between two names


def label_ends(axes: Any, lines: Sequence[Any], names: Sequence[str]) -> None:
    """Each line's name to the right of the picture, at the height of its end or near it, tied to it by a thin line."""
    as_written(axes.figure)
    axes.figure.draw_without_rendering()  # now the layout knows how high the picture is
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    ended = [(line, name) for line, name in zip(lines, drawable_names(names), strict=True) if _end(line) is not None]
    if len(ended) < len(lines) or len(ended) * _GAP > height:
        set_legend(axes, lines, names, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=_POINTS)
        return
    to_share = axes.transData + axes.transAxes.inverted()
    at = [to_share.transform(_end(line))[1] for line, _ in ended]
    for (line, name), place in zip(ended, spread_apart(at, _GAP / height), strict=True):
        axes.annotate(
            name,
            _end(line),
            (1.03, place),
            textcoords="axes fraction",
            fontsize=_POINTS,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": line.get_color(),
                "linewidth": 0.8,
                "shrinkA": 1,
                "shrinkB": 1,
                "relpos": (0, 0.5),
            },
        )


def spread_apart(wanted: Sequence[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """Places in the same order, `gap` from each other or more, as near to the wanted ones as that allows; in low to high.

    Those that would overlap stand evenly around the mean of what they want (least squares, by merging neighbours).
    """
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    clusters: list[list[int]] = []
    for i in order:
        clusters.append([i])
        while len(clusters) > 1 and _first(clusters[-1], wanted, gap) < _last(clusters[-2], wanted, gap) + gap:
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    places = [0.0] * len(wanted)
    for cluster in clusters:
        for step, i in enumerate(cluster):
            places[i] = _first(cluster, wanted, gap) + step * gap
    _push(order, places, gap, low, high)
    return places


def _push(order: Sequence[int], places: list[float], gap: float, low: float, high: float) -> None:
    """Into low to high, from both ends."""
    for i in order:
        places[i] = max(places[i], low)
        low = places[i] + gap
    for i in reversed(order):
        places[i] = min(places[i], high)
        high = places[i] - gap


def _first(cluster: Sequence[int], wanted: Sequence[float], gap: float) -> float:
    return sum(wanted[i] for i in cluster) / len(cluster) - gap * (len(cluster) - 1) / 2


def _last(cluster: Sequence[int], wanted: Sequence[float], gap: float) -> float:
    return _first(cluster, wanted, gap) + gap * (len(cluster) - 1)


def _end(line: Any) -> tuple[float, float] | None:
    """The last point of a line that is there."""
    points = [(x, y) for x, y in zip(*line.get_data(), strict=True) if math.isfinite(y)]
    return points[-1] if points else None
