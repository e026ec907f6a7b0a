"""Define the common style of all figures: colours, names, titles, labels at the ends of lines, and how files are written."""

import contextlib
import importlib
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np

from silos.io.atomic_io import write_bytes
from tasks.tracking.metric_names import legible

if TYPE_CHECKING:  # matplotlib takes long to import
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Okabe and Ito's palette, which colour-blind readers can distinguish
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
MARKERS = ["o", "s", "^", "D", "v"]
_DASHES = ["-", "--", "-.", ":"]
SIDES = (COLOURS[0], COLOURS[4])
"""Colours of two things that are compared, different in grey, too."""
GREY = "#666666"
_LETTERS = 40  # of a name
_LETTERS_BELOW = 36  # of all names below a panel, spaces included


class LineStyle(TypedDict):
    """Arguments of matplotlib's `plot`."""

    color: str
    linestyle: str
    marker: str
    markersize: float
    markevery: int | tuple[int, int]
    """The step between points with a mark, or the first such point and the step."""


def style_of_line(index: int, points: int = 1) -> LineStyle:
    """Return the style of line `index`: colours, dashes and marks repeat at different intervals, so 140 lines differ.

    In grey print, dashes and marks still differ. About ten of the line's `points` have a mark.
    """
    return {
        "color": COLOURS[index % 7],  # the eighth, grey, resembles others in print
        "linestyle": _DASHES[index % len(_DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4.5,
        "markevery": (index % 5 * max(points // 50, 1), max(points // 10, 1)),
    }


def set_rounds(axes: "Axes") -> None:
    """Label the x axis with whole rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def set_names(axes: "Axes", names: Sequence[str], positions: Sequence[float] | None = None) -> None:
    """Write names below a figure, vertically if they would overlap."""
    rotation = 90 if room_below(names) else 0
    axes.set_xticks(positions or range(len(names)), drawable_names(names), rotation=rotation)


def room_below(names: Sequence[str]) -> float:
    """Return the additional height of a figure, in inches, for vertical names below it; 0 if the names fit horizontally."""
    is_vertical = sum(len(name) + 2 for name in names) > _LETTERS_BELOW
    return 0.085 * max(map(len, drawable_names(names))) if is_vertical else 0.0


@overload
def new_figure(width: float, height: float, columns: Literal[1]) -> "tuple[Figure, Axes]": ...


@overload
def new_figure(width: float, height: float, columns: int, rows: int = 1) -> "tuple[Figure, Any]": ...


def new_figure(width: float, height: float, columns: int, rows: int = 1) -> "tuple[Figure, Any]":
    """Create a figure without pyplot, because threads would share pyplot's global state."""
    from matplotlib.figure import Figure

    with contextlib.suppress(ImportError):  # MLflow's thread imports it at any time, and matplotlib reads its version
        importlib.import_module("IPython")  # waits until it is complete
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = figure.subplots(rows, columns)
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        ax.set_axisbelow(True)
    return figure, axes


def set_title(ax: "Axes", text: str) -> None:
    """Set the title on the left."""
    ax.set_title(text, loc="left", fontsize=11)


def set_legend(ax: "Axes", marks: "Sequence[Artist | BarContainer]", names: Sequence[str], **options: Any) -> None:
    """Set a legend that includes names that begin with _, which matplotlib leaves out by itself."""
    ax.legend([*marks], drawable_names(names), frameon=False, **options)


def drawable_names(names: Sequence[str]) -> list[str]:
    """Apply `drawable_name` to all names."""
    return [drawable_name(name) for name in names]


def drawable_name(name: str, letters: int = _LETTERS) -> str:
    """Shorten a name, and escape characters that the font lacks."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))
    short = name if len(name) <= letters else f"{name[: letters - 1]}…"
    return legible(short, lambda letter: bool(font.get_char_index(ord(letter))))


def disable_formulas(figure: "Figure") -> None:
    """Draw no text as a formula, such as a name with two $."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)


def write_figure(figure: "Figure", path: Path, crop: bool = False) -> None:
    """Write the figure as PNG, completely or not at all; `crop` removes the white margin."""
    write_bytes(path, png_bytes(figure, crop))


def png_bytes(figure: "Figure", crop: bool = False) -> bytes:
    """Return the figure as PNG."""
    disable_formulas(figure)
    layout = figure.get_layout_engine()
    # otherwise `savefig` would draw the figure twice, the first time for its layout
    if layout is not None and not crop:
        layout.execute(figure)
        figure.set_layout_engine(None)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None}, bbox_inches="tight" if crop else None)
    return content.getvalue()


_POINTS = 9.0  # font size
_GAP = 1.3 * _POINTS  # between two names


def label_ends(axes: "Axes", lines: "Sequence[Line2D]", names: Sequence[str]) -> None:
    """Write each line's name to the right of the figure, near the height of its end and connected by a thin line.

    If the names do not fit, a legend is drawn instead.
    """
    from matplotlib.figure import Figure

    figure = axes.figure
    assert isinstance(figure, Figure), "new_figure makes no figures in figures"
    disable_formulas(figure)
    layout = figure.get_layout_engine()
    assert layout is not None, "new_figure sets one"
    layout.execute(figure)  # for the height
    height = axes.get_window_extent().height * 72 / figure.dpi
    labelled = [
        (line, name, end)
        for line, name in zip(lines, drawable_names(names), strict=True)
        if (end := _end(line)) is not None
    ]
    if len(labelled) < len(lines) or len(labelled) * _GAP > height:
        set_legend(axes, lines, names, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=_POINTS)
        return
    to_share = axes.transData + axes.transAxes.inverted()
    heights = [to_share.transform(end)[1] for _, _, end in labelled]
    for (line, name, end), height_of_name in zip(labelled, spread_apart(heights, _GAP / height), strict=True):
        axes.annotate(
            name,
            end,
            (1.03, height_of_name),
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


def spread_apart(positions: Sequence[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """Move positions within `low` to `high` to at least `gap` from each other, in the same order and near the wanted ones.

    Overlapping positions are spaced evenly around the mean of their wanted positions (least squares, by merging
    neighbours).
    """
    order = sorted(range(len(positions)), key=lambda i: (positions[i], i))
    clusters: list[list[int]] = []
    for i in order:
        clusters.append([i])
        while len(clusters) > 1 and _first(clusters[-1], positions, gap) < _last(clusters[-2], positions, gap) + gap:
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    result = [0.0] * len(positions)
    for cluster in clusters:
        for step, i in enumerate(cluster):
            result[i] = _first(cluster, positions, gap) + step * gap
    _push(order, result, gap, low, high)
    return result


def _push(order: Sequence[int], positions: list[float], gap: float, low: float, high: float) -> None:
    """Move positions into `low` to `high`, from both ends."""
    for i in order:
        positions[i] = max(positions[i], low)
        low = positions[i] + gap
    for i in reversed(order):
        positions[i] = min(positions[i], high)
        high = positions[i] - gap


def _first(cluster: Sequence[int], positions: Sequence[float], gap: float) -> float:
    return sum(positions[i] for i in cluster) / len(cluster) - gap * (len(cluster) - 1) / 2


def _last(cluster: Sequence[int], positions: Sequence[float], gap: float) -> float:
    return _first(cluster, positions, gap) + gap * (len(cluster) - 1)


def _end(line: "Line2D") -> tuple[float, float] | None:
    """Return the last finite point of a line."""
    points: list[tuple[float, float]] = np.asarray(line.get_xydata(), float).tolist()
    return next(((x, y) for x, y in reversed(points) if math.isfinite(y)), None)
