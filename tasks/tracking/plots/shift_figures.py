"""Draw the figures of a diagnosis: all pairs, the features that differ, and details of the worst pairs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.shift.pair_screening import PairDetails
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

_DISTANCES = {
    "feature": ("Inputs: D(X)", math.sqrt(2)),
    "label": ("Labels: D(Y)", 2.0),
    "concept": ("Rules: D(Y | X)", 2.0),
    "in_classes": ("Inputs within a label: D(X | Y)", 2.0),
    "wasserstein": ("Wasserstein distance, in deviations", None),
}
# from Okabe and Ito's palette; no difference has no colour
_VERDICTS = {
    (): ("no difference found", "#f2f2f2"),
    ("feature",): ("inputs", COLOURS[5]),
    ("label",): ("labels", COLOURS[4]),
    ("concept",): ("rule", COLOURS[1]),
    ("feature", "label"): ("inputs and labels", COLOURS[2]),
    ("feature", "concept"): ("inputs and rule", COLOURS[3]),
    ("label", "concept"): ("labels and rule", COLOURS[0]),
    ("feature", "label", "concept"): ("all three", COLOURS[6]),
    ("undetermined",): ("nothing can be said", COLOURS[7]),
}
_UNKNOWN = "#cccccc"
_NAMED = 40  # silos whose names remain legible
_RANKED = 25  # features
_LEAST = 10  # rows of a silo in a bin; with fewer, shares of classes are chance
_LETTERS = 24  # of a name in a panel
_PANEL_LETTERS = 40  # the width of a panel


def draw_pairs(path: Path, matrices: Mapping[str, Any], sizes: Sequence[int]) -> None:
    """Draw the distances and the verdict of every pair of silos; lines separate groups of similar silos, of these sizes."""
    count = len(matrices["order"])
    side = min(max(3.2, 0.15 * min(count, _NAMED) + 2.2), 7)
    figure, axes = new_figure(3 * side + 1, 2 * side + 0.6, 3, 2)
    figure.set_layout_engine("compressed")  # panels are square
    is_complete = True
    for panel, (name, (title, most)) in zip(axes.flat, _DISTANCES.items(), strict=False):
        values = np.array(matrices[name], float)[np.ix_(matrices["order"], matrices["order"])]
        image = panel.imshow(values, cmap="Blues", vmin=0, vmax=most, interpolation="nearest")
        panel.set_facecolor(_UNKNOWN)
        is_complete &= bool(np.isfinite(values).all())
        set_title(panel, title)
        figure.colorbar(image, cax=panel.inset_axes((1.03, 0, 0.05, 1)))
    _draw_verdicts(axes.flat[-1], matrices, is_complete)
    names = [matrices["names"][silo] for silo in matrices["order"]]
    for panel in axes.flat:
        _name_silos(panel, names, sizes)
    style.write_figure(figure, path, crop=True)  # rows of square panels do not fill it


def draw_ranking(path: Path, ranking: Sequence[Mapping[str, Any]]) -> None:
    """Draw the features by the mean of their effect over the pairs that differ; a dot is the largest."""
    shown = ranking[:_RANKED]
    figure, axes = new_figure(8, 1.4 + 0.27 * len(shown), 1)
    positions = range(len(shown))
    axes.barh(
        positions, [entry["mean"] for entry in shown], color=COLOURS[0], height=0.7, label="mean over pairs that differ"
    )
    axes.plot([entry["largest"] for entry in shown], positions, "o", color=COLOURS[1], markersize=4, label="largest")
    axes.set_yticks(positions, drawable_names([entry["feature"] for entry in shown]))
    axes.set(ylim=(len(shown) - 0.5, -0.5), xlabel="part, φ: how far the tests are from no difference (0.1 is small)")
    axes.grid(visible=False)
    omitted = len(ranking) - len(shown)
    set_title(axes, "Which features differ" + (f": the first {len(shown)} of {len(ranking)}" if omitted else ""))
    axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=8, borderaxespad=0.2)
    style.write_figure(figure, path)


def draw_close_ups(
    path: Path, close_ups: Sequence[PairDetails], names: Sequence[str], features: Sequence[str], classes: Sequence[str]
) -> None:
    """Draw a row of panels per feature of a pair: densities, the two labels whose shares differ most, all label shares."""
    figure, axes = new_figure(13.5, 2.9 * len(close_ups), 3, len(close_ups))
    last_pair: tuple[int, int] | None = None  # a pair's label shares are drawn once
    for panels, details in zip(np.atleast_2d(axes), close_ups, strict=True):
        pair_names = [drawable_name(names[silo], _PANEL_LETTERS // 2) for silo in (details.first, details.second)]
        feature = drawable_name(features[details.feature], _LETTERS)
        pair = f"{pair_names[0]} and {pair_names[1]}:"
        set_title(panels[0], f"{pair}{' ' if len(pair) + len(feature) < _PANEL_LETTERS else chr(10)}{feature}")
        _draw_density(panels[0], details, pair_names)
        _draw_posterior(panels[1], details, classes)
        if (details.first, details.second) == last_pair:
            panels[2].set_axis_off()
        else:
            _draw_labels(panels[2], details, classes)
        last_pair = (details.first, details.second)
        for panel in panels[:2]:
            panel.set(xlabel=f"{feature}, bins of as many rows" if details.joined else feature)
            if details.ends is not None:
                panel.locator_params(axis="x", nbins=6)
            else:
                every = math.ceil(sum(len(value) + 2 for value in details.values) / _PANEL_LETTERS)
                panel.set_xticks(range(0, len(details.values), every), drawable_names(details.values[::every]))
    style.write_figure(figure, path)


def _draw_verdicts(panel: Any, matrices: Mapping[str, Any], is_complete: bool) -> None:
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


def _name_silos(panel: Any, names: Sequence[str], sizes: Sequence[int]) -> None:
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


def _draw_density(panel: Any, details: PairDetails, names: Sequence[str]) -> None:
    rows = details.counts.sum(-1)
    shares = rows / np.maximum(rows.sum(-1, keepdims=True), 1)
    marks = []
    for side in range(2):
        if details.ends is not None:
            density = shares[side] / np.diff(details.ends)
            marks.append(panel.stairs(density, details.ends, color=SIDES[side], linewidth=2))
        else:
            positions = np.arange(len(details.values)) + 0.4 * (side - 0.5)
            marks.append(panel.bar(positions, shares[side], 0.38, color=SIDES[side]))
    panel.set(ylabel="density" if details.ends is not None else "share of rows")
    set_legend(panel, marks, names, fontsize=9)


def _draw_posterior(panel: Any, details: PairDetails, classes: Sequence[str]) -> None:
    """Draw shares of labels in bins with ten or more rows of a silo."""
    rows = details.counts.sum(-1, keepdims=True)
    share = np.where(rows >= _LEAST, details.counts / np.maximum(rows, 1), np.nan)
    difference = np.where(details.shown[:, None], np.nan_to_num(np.abs(share[0] - share[1])).T, -1.0).mean(-1)
    count = 1 if len(classes) == 2 else 2  # of two labels one is enough
    worst = [index for index in np.argsort(-difference, kind="stable")[:count].tolist() if details.shown[index]]
    marks: list[Any] = []
    for dashes, of_class in zip(("-", ":"), worst, strict=False):
        for index in range(2):
            options = {"color": SIDES[index], "linewidth": 2, "linestyle": dashes}
            if details.ends is not None:
                panel.stairs(share[index, :, of_class], details.ends, baseline=None, **options)
            else:
                panel.plot(range(len(details.values)), share[index, :, of_class], marker="o", **options)
        marks += panel.plot([], [], color=GREY, linestyle=dashes, linewidth=2)
    set_title(panel, "Share of a label there")
    if not worst:
        panel.set_axis_off()
        panel.text(0.5, 0.5, "No label is told by both", ha="center", color=GREY, transform=panel.transAxes)
        return
    panel.set_ylim(0, 1.08 * max(0.01, np.nan_to_num(share[:, :, worst]).max(initial=0)))
    set_legend(panel, marks, [drawable_name(classes[index], _LETTERS) for index in worst], fontsize=9)


def _draw_labels(panel: Any, details: PairDetails, classes: Sequence[str]) -> None:
    rows = details.counts.sum(1)
    rows = rows if rows[:, -1].any() else rows[:, :-1]
    shares = rows / np.maximum(rows.sum(-1, keepdims=True), 1)
    few = len(classes) <= _NAMED
    for side in range(2):
        panel.bar(np.arange(shares.shape[1]) + 0.4 * (side - 0.5), shares[side], 0.38, color=SIDES[side])
    set_title(panel, "Share of each label (rare ones together)")
    if few:
        labels = [drawable_name(name, 18) for name in [*classes, "rare"][: shares.shape[1]]]
        panel.set_xticks(range(len(labels)), labels, rotation=90 if sum(map(len, labels)) > _LETTERS else 0)
