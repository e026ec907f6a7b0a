"""Curves of a published table's cells, and lines over a setting beside what is published."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from tasks.tracking.plots import style
from tasks.tracking.plots.style import (
    GREY,
    drawable_name,
    label_ends,
    look,
    new_figure,
    set_legend,
    set_rounds,
    set_title,
)

ACCURACY = TASK_METRICS["classification"]


def draw_curves(
    path: Path,
    curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]],
    target: float | None,
    title: str,
    quantity: TaskMetrics = ACCURACY,
) -> None:
    """Every seed's curve, thin, and their mean, by cell, as they are: a best round hides that a later one is worse.

    Where rounds to a `target` are counted, the running best of each seed instead, on a logarithmic axis, and the target.
    """
    figure, axes = new_figure(9, max(4.6, 0.6 + 0.2 * len(curves)), 1)
    lines = {}
    for number, (cell, seeds) in enumerate(curves.items()):
        drawn = look(number, max(map(len, seeds), default=1))
        lines[cell] = _draw_mean(axes, seeds, drawn) if target is None else _draw_best(axes, seeds, drawn, quantity)
    if target is not None:
        axes.axhline(target, color=GREY, linewidth=1, linestyle="--")
    set_title(axes, drawable_name(title, letters=80))
    axes.set(ylabel=f"test {quantity.name}" + (", running best" if target is not None else ""))
    set_rounds(axes)
    if target is not None:
        _set_powers(axes)
    if lines:
        label_ends(axes, list(lines.values()), list(lines))
    style.write_figure(figure, path)


def _draw_best(
    axes: Any, seeds: Sequence[Sequence[tuple[int, float]]], drawn: dict[str, Any], quantity: TaskMetrics
) -> Any:
    for curve in seeds:
        best = list(accumulate((value for _, value in curve), max if quantity.higher_is_better else min))
        (line,) = axes.plot([round for round, _ in curve], best, **drawn, linewidth=1.5)
    return line


def _draw_mean(axes: Any, seeds: Sequence[Sequence[tuple[int, float]]], drawn: dict[str, Any]) -> Any:
    """Of the rounds that all seeds have."""
    if len(seeds) > 1:
        for curve in seeds:
            axes.plot(*zip(*curve, strict=True), color=drawn["color"], linewidth=0.8, alpha=0.4)
    common = sorted(set.intersection(*({round for round, _ in curve} for curve in seeds)))
    means = [statistics.fmean(dict(curve)[round] for curve in seeds) for round in common]
    (line,) = axes.plot(common, means, **drawn, linewidth=1.8)
    return line


def _set_powers(axes: Any) -> None:
    from matplotlib.ticker import LogFormatter

    axes.set(xscale="log")
    axes.xaxis.set(major_formatter=LogFormatter(), minor_formatter=LogFormatter())  # the usual one writes formulas


def draw_lines(
    path: Path,
    ours: Mapping[str, Mapping[float, Sequence[float]]],
    published: Mapping[str, Mapping[float, float]],
    over: str,
    unit: str,
    title: str,
) -> None:
    """Each line's mean over seeds, with a dot a seed, over the axis `over`; thin and dotted what is published.

    What is published of several is drawn once.
    """
    figure, axes = new_figure(10.5, 5.2, 1)
    drawn: dict[str, Any] = {}
    shown: list[Mapping[float, float]] = []
    for number, (name, points) in enumerate(ours.items()):
        drawn_as = look(number) | {"markevery": 1}
        colour = drawn_as["color"]
        there = sorted((at, values) for at, values in points.items() if values)
        means = [statistics.fmean(values) for _, values in there]
        (drawn[name],) = axes.plot([at for at, _ in there], means, linewidth=1.6, **drawn_as)
        for at, values in there:
            axes.plot([at] * len(values), values, color=colour, marker="o", markersize=2.5, linestyle="", alpha=0.45)
        if name in published and published[name] not in shown:
            shown.append(published[name])
            places, values = zip(*sorted(published[name].items()), strict=True)
            (line,) = axes.plot(
                places, values, color=colour, linewidth=0.8, alpha=0.7, marker="x", markersize=5, linestyle=(0, (1, 3))
            )
            drawn[f"{name}, published"] = line
    set_title(axes, drawable_name(title, letters=80))
    axes.set(xlabel=over, ylabel=unit)
    set_legend(axes, list(drawn.values()), list(drawn), loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=9)
    style.write_figure(figure, path)
