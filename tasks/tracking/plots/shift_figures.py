"""Pictures of a diagnosis: all pairs, the features by their part, and the worst of them closely."""

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
# of Okabe and Ito's palette; nothing found is no colour
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
_NAMED = 40  # silos beside each other whose names can be read
_RANKED = 25  # features
_LEAST = 10  # rows of a silo in a bin, below which shares of classes are chance
_LETTERS = 24  # of a name in a panel
_ABREAST = 40  # letters that a panel is wide


def draw_pairs(path: Path, matrices: Mapping[str, Any], sizes: Sequence[int]) -> None:
    """Each distance, and the verdict, of every pair; lines part groups of silos that are alike, of these sizes."""
    count = len(matrices["order"])
    side = min(max(3.2, 0.15 * min(count, _NAMED) + 2.2), 7)
    figure, axes = new_figure(3 * side + 1, 2 * side + 0.6, 3, 2)
    figure.set_layout_engine("compressed")  # panels are square
    known = True
    for panel, (name, (title, most)) in zip(axes.flat, _DISTANCES.items(), strict=False):
        values = np.array(matrices[name], float)[np.ix_(matrices["order"], matrices["order"])]
        shown = panel.imshow(values, cmap="Blues", vmin=0, vmax=most, interpolation="nearest")
        panel.set_facecolor(_UNKNOWN)
        known &= bool(np.isfinite(values).all())
        set_title(panel, title)
        figure.colorbar(shown, cax=panel.inset_axes((1.03, 0, 0.05, 1)))
    _draw_verdicts(axes.flat[-1], matrices, known)
    names = [matrices["names"][at] for at in matrices["order"]]
    for panel in axes.flat:
        _name_silos(panel, names, sizes)
    style.write_figure(figure, path, crop=True)  # rows of square panels do not fill it


def draw_ranking(path: Path, ranking: Sequence[Mapping[str, Any]]) -> None:
    """Features by the mean of their part over the pairs that differ; a dot is the largest."""
    shown = ranking[:_RANKED]
    figure, axes = new_figure(8, 1.4 + 0.27 * len(shown), 1)
    places = range(len(shown))
    axes.barh(
        places, [line["mean"] for line in shown], color=COLOURS[0], height=0.7, label="mean over pairs that differ"
    )
    axes.plot([line["largest"] for line in shown], places, "o", color=COLOURS[1], markersize=4, label="largest")
    axes.set_yticks(places, drawable_names([line["feature"] for line in shown]))
    axes.set(ylim=(len(shown) - 0.5, -0.5), xlabel="part, φ: how far the tests are from no difference (0.1 is small)")
    axes.grid(visible=False)
    left = len(ranking) - len(shown)
    set_title(axes, "Which features differ" + (f": the first {len(shown)} of {len(ranking)}" if left else ""))
    axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=8, borderaxespad=0.2)
    style.write_figure(figure, path)


def draw_close_ups(
    path: Path, close_ups: Sequence[PairDetails], names: Sequence[str], features: Sequence[str], classes: Sequence[str]
) -> None:
    """A line a feature of a pair: where its rows lie, the two labels whose shares there differ most, all label shares."""
    figure, axes = new_figure(13.5, 2.9 * len(close_ups), 3, len(close_ups))
    drawn: tuple[int, int] | None = None  # of each pair, label shares are drawn once
    for line, one in zip(np.atleast_2d(axes), close_ups, strict=True):
        both = [drawable_name(names[at], _ABREAST // 2) for at in (one.first, one.second)]
        named = drawable_name(features[one.feature], _LETTERS)
        pair = f"{both[0]} and {both[1]}:"
        set_title(line[0], f"{pair}{' ' if len(pair) + len(named) < _ABREAST else chr(10)}{named}")
        _draw_density(line[0], one, both)
        _draw_posterior(line[1], one, classes)
        if (one.first, one.second) == drawn:
            line[2].set_axis_off()
        else:
            _draw_labels(line[2], one, classes)
        drawn = (one.first, one.second)
        for panel in line[:2]:
            panel.set(xlabel=f"{named}, bins of as many rows" if one.joined else named)
            if one.ends is not None:
                panel.locator_params(axis="x", nbins=6)
            else:
                every = math.ceil(sum(len(value) + 2 for value in one.values) / _ABREAST)
                panel.set_xticks(range(0, len(one.values), every), drawable_names(one.values[::every]))
    style.write_figure(figure, path)


def _draw_verdicts(panel: Any, matrices: Mapping[str, Any], known: bool) -> None:
    """`known`: every distance of the other panels is, and the legend need not say what grey is there."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    kinds, order = list(_VERDICTS), matrices["order"]
    table = [[kinds.index(tuple(matrices["verdict"][a][b])) for b in order] for a in order]
    colours = ListedColormap([colour for _, colour in _VERDICTS.values()])
    panel.imshow(table, colours, vmin=-0.5, vmax=len(kinds) - 0.5, interpolation="nearest")
    there = sorted({kind for line in table for kind in line})
    marks = [Patch(facecolor=_VERDICTS[kinds[at]][1], label=_VERDICTS[kinds[at]][0]) for at in there]
    marks += [] if known else [Patch(facecolor=_UNKNOWN, label="distance unknown")]
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


def _draw_density(panel: Any, one: PairDetails, names: Sequence[str]) -> None:
    rows = one.counts.sum(-1)
    shares = rows / np.maximum(rows.sum(-1, keepdims=True), 1)
    marks = []
    for at in range(2):
        if one.ends is not None:
            marks.append(panel.stairs(shares[at] / np.diff(one.ends), one.ends, color=SIDES[at], linewidth=2))
        else:
            marks.append(panel.bar(np.arange(len(one.values)) + 0.4 * (at - 0.5), shares[at], 0.38, color=SIDES[at]))
    panel.set(ylabel="density" if one.ends is not None else "share of rows")
    set_legend(panel, marks, names, fontsize=9)


def _draw_posterior(panel: Any, one: PairDetails, classes: Sequence[str]) -> None:
    """In bins of ten rows or more of a silo."""
    rows = one.counts.sum(-1, keepdims=True)
    share = np.where(rows >= _LEAST, one.counts / np.maximum(rows, 1), np.nan)
    gap = np.where(one.shown[:, None], np.nan_to_num(np.abs(share[0] - share[1])).T, -1.0).mean(-1)
    both = 1 if len(classes) == 2 else 2  # of two labels one says it all
    worst = [at for at in np.argsort(-gap, kind="stable")[:both].tolist() if one.shown[at]]
    marks: list[Any] = []
    for dashes, of_class in zip(("-", ":"), worst, strict=False):
        for at in range(2):
            known = {"color": SIDES[at], "linewidth": 2, "linestyle": dashes}
            if one.ends is not None:
                panel.stairs(share[at, :, of_class], one.ends, baseline=None, **known)
            else:
                panel.plot(range(len(one.values)), share[at, :, of_class], marker="o", **known)
        marks += panel.plot([], [], color=GREY, linestyle=dashes, linewidth=2)
    set_title(panel, "Share of a label there")
    if not worst:
        panel.set_axis_off()
        panel.text(0.5, 0.5, "No label is told by both", ha="center", color=GREY, transform=panel.transAxes)
        return
    panel.set_ylim(0, 1.08 * max(0.01, np.nan_to_num(share[:, :, worst]).max(initial=0)))
    set_legend(panel, marks, [drawable_name(classes[at], _LETTERS) for at in worst], fontsize=9)


def _draw_labels(panel: Any, one: PairDetails, classes: Sequence[str]) -> None:
    rows = one.counts.sum(1)
    rows = rows if rows[:, -1].any() else rows[:, :-1]
    shares = rows / np.maximum(rows.sum(-1, keepdims=True), 1)
    few = len(classes) <= _NAMED
    for at in range(2):
        panel.bar(np.arange(shares.shape[1]) + 0.4 * (at - 0.5), shares[at], 0.38, color=SIDES[at])
    set_title(panel, "Share of each label (rare ones together)")
    if few:
        labels = [drawable_name(name, 18) for name in [*classes, "rare"][: shares.shape[1]]]
        panel.set_xticks(range(len(labels)), labels, rotation=90 if sum(map(len, labels)) > _LETTERS else 0)
