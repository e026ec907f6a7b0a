"""Draw the figures of a diagnosis: all pairs, the features that differ, and details of the worst pairs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from models.diagnosis.screen_clients import PairDetails
from tasks.tracking.plots import style
from tasks.tracking.plots.style import (
    COLOURS,
    GREY,
    SIDES,
    drawable_name,
    drawable_names,
    new_figure,
    set_legend,
    set_title,
)
from tasks.tracking.result_types.diagnosis_records import RankedFeature
from tasks.tracking.result_types.diagnosis_result import PairMatrices

if TYPE_CHECKING:  # matplotlib takes long to import
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.patches import StepPatch

_Matrix = Literal["means", "shares", "feature", "label", "concept"]
_DIFFERENCES: dict[_Matrix, tuple[str, float | None, float]] = {
    "means": ("Largest difference of a mean,\nstandard deviations", None, 1.0),
    "shares": ("Largest difference of a label share,\npoints", None, 100.0),
}
_PUBLISHED: dict[_Matrix, tuple[str, float | None, float]] = {
    "feature": ("Inputs: D(X)", math.sqrt(2), 1.0),
    "label": ("Labels: D(Y)", 2.0, 1.0),
    "concept": ("Rules: D(Y | X)", 2.0, 1.0),
}
# from Okabe and Ito's palette; no difference has no colour
_VERDICTS = {
    (): ("no difference seen", "#f2f2f2"),
    ("feature",): ("inputs", COLOURS[5]),
    ("label",): ("labels", COLOURS[4]),
    ("concept",): ("rule", COLOURS[1]),
    ("feature", "label"): ("inputs and labels", COLOURS[2]),
    ("feature", "concept"): ("inputs and rule", COLOURS[3]),
    ("label", "concept"): ("labels and rule", COLOURS[0]),
    ("feature", "label", "concept"): ("all three", COLOURS[6]),
    ("undetermined",): ("not compared", COLOURS[7]),
}
_UNKNOWN = "#cccccc"
_NAMED = 40  # silos whose names remain legible
_RANKED = 25  # features
_LEAST = 10  # rows of a silo in a bin; with fewer, shares of classes are chance
_LETTERS = 24  # of a name in a panel
_PANEL_LETTERS = 40  # the width of a panel


def draw_pairs(path: Path, matrices: PairMatrices, sizes: Sequence[int], published: bool = False) -> None:
    """Draw the verdict of every pair of silos, and by how much they differ; lines separate groups of these sizes.

    published: Also draw the distances of the published rule.
    """
    count = len(matrices["order"])
    side = min(max(3.2, 0.15 * min(count, _NAMED) + 2.2), 7)
    differences = {**_DIFFERENCES, **(_PUBLISHED if published else {})}
    lines = math.ceil((1 + len(differences)) / 3)
    figure, axes = new_figure(3 * side + 2.4, lines * side + 0.6, 3, lines)
    figure.set_layout_engine("compressed")  # panels are square
    panels = list(np.ravel(axes))
    is_complete = True
    for panel, (name, (title, most, scale)) in zip(panels[1:], differences.items(), strict=True):
        values = scale * np.array(matrices[name], float)[np.ix_(matrices["order"], matrices["order"])]
        image = panel.imshow(values, cmap="Blues", vmin=0, vmax=most, interpolation="nearest")
        panel.set_facecolor(_UNKNOWN)
        is_complete &= bool(np.isfinite(values).all())
        set_title(panel, title)
        figure.colorbar(image, cax=panel.inset_axes((1.03, 0, 0.05, 1)))
    _draw_verdicts(panels[0], matrices, is_complete)
    names = [matrices["names"][silo] for silo in matrices["order"]]
    for panel in panels:
        _name_silos(panel, names, sizes)
    style.write_figure(figure, path, crop=True)  # rows of square panels do not fill it


def draw_ranking(path: Path, ranking: Sequence[RankedFeature]) -> None:
    """Draw the features by the mean of their effect over the pairs that differ; a dot is the largest."""
    shown = ranking[:_RANKED]
    figure, axes = new_figure(8, 1.4 + 0.27 * len(shown), 1)
    positions = range(len(shown))
    axes.barh(
        positions, [entry["mean"] for entry in shown], color=COLOURS[0], height=0.7, label="mean over pairs that differ"
    )
    axes.plot([entry["largest"] for entry in shown], positions, "o", color=COLOURS[1], markersize=4, label="largest")
    axes.set_yticks(positions, drawable_names([entry["feature"] for entry in shown]))
    axes.set(ylim=(len(shown) - 0.5, -0.5), xlabel="effect size φ (0.1 is small, 0.3 medium)")
    axes.grid(visible=False)
    omitted = len(ranking) - len(shown)
    set_title(axes, "Which features differ" + (f": the first {len(shown)} of {len(ranking)}" if omitted else ""))
    axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=8, borderaxespad=0.2)
    style.write_figure(figure, path)


def draw_close_ups(
    path: Path, close_ups: Sequence[PairDetails], names: Sequence[str], features: Sequence[str], classes: Sequence[str]
) -> None:
    """Draw a row of panels per feature of a pair: how often values occur, and how often one label occurs at each value.

    The label is the same in all rows, so that its curves can be compared. Below, label shares have a row a pair.
    """
    pairs = {(details.first, details.second): details for details in close_ups}
    figure, axes = new_figure(
        11, 2.9 * (len(close_ups) + math.ceil(len(pairs) / 2)), 2, len(close_ups) + math.ceil(len(pairs) / 2)
    )
    panels = np.atleast_2d(axes)
    label = _clearest_label(close_ups)
    for (left, right), details in zip(panels, close_ups, strict=False):
        pair_names = _pair_names(details, names)
        feature = drawable_name(features[details.feature], _LETTERS)
        pair = f"{pair_names[0]} and {pair_names[1]}:"
        set_title(left, f"{pair}{' ' if len(pair) + len(feature) < _PANEL_LETTERS else chr(10)}{feature}")
        _draw_density(left, details, pair_names)
        _draw_posterior(right, details, label, classes, pair_names)
        for panel in (left, right):
            panel.set(xlabel=f"{feature}, bins of as many rows" if details.joined else feature)
            if details.ends is not None:
                panel.locator_params(axis="x", nbins=6)
            else:
                every = math.ceil(sum(len(value) + 2 for value in details.values) / _PANEL_LETTERS)
                panel.set_xticks(range(0, len(details.values), every), drawable_names(details.values[::every]))
    below = panels[len(close_ups) :].ravel()
    for panel, details in zip(below, pairs.values(), strict=False):
        _draw_labels(panel, details, classes, _pair_names(details, names))
    for panel in below[len(pairs) :]:
        panel.set_axis_off()
    style.write_figure(figure, path)


def _pair_names(details: PairDetails, names: Sequence[str]) -> list[str]:
    return [drawable_name(names[silo], _PANEL_LETTERS // 2) for silo in (details.first, details.second)]


def _clearest_label(close_ups: Sequence[PairDetails]) -> int | None:
    """Return the label that most pairs report on both sides, of these the rarest; None if no pair does."""
    shown = np.sum([details.shown for details in close_ups], axis=0)
    if not shown.any():
        return None
    rows = np.sum([details.counts.sum((0, 1))[: len(shown)] for details in close_ups], axis=0)
    return int(np.where(shown == shown.max(), rows, np.inf).argmin())


def _draw_verdicts(panel: "Axes", matrices: PairMatrices, is_complete: bool) -> None:
    """Draw the verdict of every pair; the legend explains grey unless `is_complete`: all distances are finite."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    kinds, order = list(_VERDICTS), matrices["order"]
    table = [[kinds.index(tuple(matrices["verdict"][a][b])) for b in order] for a in order]
    colours = ListedColormap([colour for _, colour in _VERDICTS.values()])
    panel.imshow(table, colours, vmin=-0.5, vmax=len(kinds) - 0.5, interpolation="nearest")
    shown_kinds = sorted({kind for row in table for kind in row})
    marks = [Patch(facecolor=_VERDICTS[kinds[kind]][1], label=_VERDICTS[kinds[kind]][0]) for kind in shown_kinds]
    marks += [] if is_complete else [Patch(facecolor=_UNKNOWN, label="distance unknown")]
    panel.legend(handles=marks, frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8, handlelength=1)
    set_title(panel, "Verdict: what differs")


def _name_silos(panel: "Axes", names: Sequence[str], sizes: Sequence[int]) -> None:
    panel.grid(visible=False)
    for end in np.cumsum(sizes)[:-1].tolist():
        panel.axhline(end - 0.5, color=GREY, linewidth=0.6)
        panel.axvline(end - 0.5, color=GREY, linewidth=0.6)
    if len(names) > _NAMED:
        panel.set(xticks=[], yticks=[], ylabel=f"{len(names):,} silos or groups")
        return
    short = [drawable_name(name, 12) for name in names]
    panel.set_xticks(range(len(names)), short, rotation=90, fontsize=8)
    panel.set_yticks(range(len(names)), short, fontsize=8)


def _draw_density(panel: "Axes", details: PairDetails, names: Sequence[str]) -> None:
    rows = details.counts.sum(-1)
    shares = rows / np.maximum(rows.sum(-1, keepdims=True), 1)
    marks: list[StepPatch | BarContainer] = []
    for side in range(2):
        if details.ends is not None:
            density = shares[side] / np.diff(details.ends)
            marks.append(panel.stairs(density, details.ends, color=SIDES[side], linewidth=2))
        else:
            positions = np.arange(len(details.values)) + 0.4 * (side - 0.5)
            marks.append(panel.bar(positions, shares[side], 0.38, color=SIDES[side]))
    panel.set(ylabel="density of rows" if details.ends is not None else "share of rows")
    set_legend(panel, marks, names, fontsize=9)


def _draw_posterior(
    panel: "Axes", details: PairDetails, label: int | None, classes: Sequence[str], names: Sequence[str]
) -> None:
    """Draw how often a label occurs in bins with ten or more rows of a silo; a silo without such a bin is named."""
    if label is None or not details.shown[label]:
        panel.set_axis_off()
        text = "No label is reported by both" if label is None else "Not reported by both"
        panel.text(0.5, 0.5, text, ha="center", color=GREY, transform=panel.transAxes)
        return
    largest, too_few = 0.01, []
    for index, name in enumerate(names):
        counts, ends = details.counts[index], details.ends
        if ends is not None:
            counts, ends = _merge_to_least_rows(counts, ends)
        rows = counts.sum(-1)
        share = np.where(rows >= _LEAST, counts[:, label] / np.maximum(rows, 1), np.nan)
        if not np.isfinite(share).any():
            too_few.append(name)
            continue
        if ends is not None:
            panel.stairs(share, ends, baseline=None, color=SIDES[index], linewidth=2)
        else:
            panel.plot(range(len(details.values)), share, marker="o", color=SIDES[index], linewidth=2)
        largest = max(largest, float(np.nanmax(share)))
    if too_few:
        text = f"{', '.join(too_few)}: fewer than {_LEAST} rows at each value"
        panel.text(0.02, 0.94, text, color=GREY, fontsize=8, transform=panel.transAxes)
    set_title(panel, f"Label {drawable_name(classes[label], _LETTERS)} at each value")
    panel.set(ylabel="share of rows", ylim=(0, 1.08 * largest))


def _merge_to_least_rows(counts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge neighbouring bins of one silo until each has _LEAST rows, so that a small silo has a line too.

    Args:
        counts: Rows by class, (bins, classes).
        ends: The ends of the bins, (bins + 1,).
    """
    starts, rows = [0], 0
    for index, of_bin in enumerate(counts.sum(-1)):
        if rows >= _LEAST:
            starts, rows = [*starts, index], 0
        rows += of_bin
    if rows < _LEAST and len(starts) > 1:  # the last one is too small
        starts.pop()
    return np.add.reduceat(counts, starts, axis=0), ends[[*starts, len(ends) - 1]]


def _draw_labels(panel: "Axes", details: PairDetails, classes: Sequence[str], names: Sequence[str]) -> None:
    rows = details.counts.sum(1)
    rows = rows if rows[:, -1].any() else rows[:, :-1]
    shares = rows / np.maximum(rows.sum(-1, keepdims=True), 1)
    few = len(classes) <= _NAMED
    marks = [
        panel.bar(np.arange(shares.shape[1]) + 0.4 * (side - 0.5), shares[side], 0.38, color=SIDES[side])
        for side in range(2)
    ]
    set_title(panel, "Label shares (rare labels together)")
    panel.set(ylabel="share of rows", xlabel="label")
    set_legend(panel, marks, names, fontsize=9)
    if few:
        labels = [drawable_name(name, 18) for name in [*classes, "rare"][: shares.shape[1]]]
        panel.set_xticks(range(len(labels)), labels, rotation=90 if sum(map(len, labels)) > _LETTERS else 0)
