"""What all pictures have in common: colours, names, titles, and how one is written.

Names at the ends of lines, spread apart so that none lies on another; a legend beside the picture where they are many.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from silos.io.atomic_io import write_bytes
from tasks.tracking.metric_names import legible

# Okabe and Ito's palette: told apart also by colour-blind readers
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
MARKERS = ["o", "s", "^", "D", "v"]
_DASHES = ["-", "--", "-.", ":"]
SIDES = (COLOURS[0], COLOURS[4])
"""Of two things that are held beside each other: apart in grey, too."""
GREY = "#666666"
_LETTERS = 40  # of a name
_ABREAST = 36  # letters and the space between names, below a panel


def look(at: int, points: int = 1) -> dict[str, Any]:
    """Of the line with this number: colours, dashes and marks come round at different times, so 140 lines differ.

    In grey, as printed, dashes and marks are what is left. `points` of the line: some ten of them get a mark.
    """
    return {
        "color": COLOURS[at % 7],  # the eighth, grey, is too near to others in print
        "linestyle": _DASHES[at % len(_DASHES)],
        "marker": MARKERS[at % len(MARKERS)],
        "markersize": 4.5,
        "markevery": (at % 5 * max(points // 50, 1), max(points // 10, 1)),
    }


def set_rounds(axes: Any) -> None:
    """Rounds are whole."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def set_names(axes: Any, names: Sequence[str], places: Sequence[float] | None = None) -> None:
    """Names below a picture, upright where they would lie on each other."""
    rotation = 90 if room_below(names) else 0
    axes.set_xticks(places or range(len(names)), drawable_names(names), rotation=rotation)


def room_below(names: Sequence[str]) -> float:
    """Inches that a picture is to be higher for names that stand upright; 0 where they lie beside each other."""
    upright = sum(len(name) + 2 for name in names) > _ABREAST
    return 0.085 * max(map(len, drawable_names(names))) if upright else 0.0


def new_figure(width: float, height: float, columns: int, rows: int = 1) -> tuple[Any, Any]:
    """A figure without pyplot, whose global state threads would share."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = figure.subplots(rows, columns)
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        ax.set_axisbelow(True)
    return figure, axes


def set_title(ax: Any, text: str) -> None:
    """On the left, as all have it."""
    ax.set_title(text, loc="left", fontsize=11)


def set_legend(ax: Any, marks: Sequence[Any], names: Sequence[str], **options: Any) -> None:
    """Matplotlib leaves out what it is to find itself and whose name begins with _."""
    ax.legend(marks, drawable_names(names), frameon=False, **options)


def drawable_names(names: Sequence[str]) -> list[str]:
    """See `drawable_name`."""
    return [drawable_name(name) for name in names]


def drawable_name(name: str, letters: int = _LETTERS) -> str:
    """A name of the user's as a picture can hold it: short, and without what the font has no letter for."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))
    short = name if len(name) <= letters else f"{name[: letters - 1]}…"
    return legible(short, lambda letter: bool(font.get_char_index(ord(letter))))


def as_written(figure: Any) -> None:
    """No text in it is a formula: a name with two $ is none."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)


def write_figure(figure: Any, path: Path, crop: bool = False) -> None:
    """As PNG, whole or not at all; no text in it is a formula. `crop`: without the white around what is drawn."""
    as_written(figure)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None}, bbox_inches="tight" if crop else None)
    write_bytes(path, content.getvalue())


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
