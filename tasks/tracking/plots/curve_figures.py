"""Curves of a published table's cells, and lines over a setting beside what is published.

A comparison as a picture.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from tasks.tracking.plots import style
from tasks.tracking.plots.style import (
    GREY,
    drawable_name,
    drawable_names,
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


_SHORT = 20  # letters of a name


def draw_comparison(
    path: Path,
    comparison: Mapping[str, Any],
    curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]],
    quantity: TaskMetrics = ACCURACY,
) -> None:
    """Learning curves by method, every client's accuracy or rmse, and the paired differences with their intervals."""
    methods = list(curves)
    longest = max(map(len, drawable_names(methods)), default=0)
    width = 16.5 + 0.35 * max(0, longest - _SHORT)  # names stand left of each of the three panels
    figure, (left, middle, right) = new_figure(width, max(4.6, 1.5 + 0.3 * len(methods)), 3)
    looks = {method: look(at, max(map(len, curves[method]), default=1)) for at, method in enumerate(methods)}
    lines = []
    for method, seeds in curves.items():
        for curve in seeds:
            left.plot(*zip(*curve, strict=True), color=looks[method]["color"], alpha=0.2, linewidth=0.8)
        lines += left.plot(*_mean_curve(seeds), **looks[method], linewidth=1.8)
    set_title(left, quantity.title)
    left.set(ylabel=quantity.name)
    set_rounds(left)

    for at, method in enumerate(methods):
        colour, marker = looks[method]["color"], looks[method]["marker"]
        runs = [r for r in comparison["runs"] if r["method"] == method]
        by_client = zip(*(r["metrics"][f"{quantity.name}/by_client"] for r in runs), strict=True)
        numbers = [[row[quantity.name] for row in rows] for rows in by_client]
        scored = [[v for v in values if v is not None and math.isfinite(v)] for values in numbers]
        means = [statistics.fmean(values) for values in scored if values]
        offsets = [at + 0.5 * (i / max(len(means) - 1, 1) - 0.5) for i in range(len(means))]
        middle.scatter(means, offsets, s=22, color=colour, marker=marker, alpha=0.8, linewidths=0)
        if means:
            middle.vlines(quantity.over_clients(means), at - 0.4, at + 0.4, color=colour, linewidth=2)
    baseline = comparison.get("baseline")
    if baseline:
        _draw_baseline(left.axhline, left.get_ylim(), baseline["metrics"][quantity.headline])
        _draw_baseline(middle.axvline, middle.get_xlim(), baseline["metrics"][quantity.headline])
    set_title(middle, "Each client (mark: mean over seeds; line: all clients)")
    middle.set(xlabel=f"test {quantity.name}")
    _set_rows(middle, methods)

    paired = comparison["paired"]
    right.axvline(0, color=GREY, linewidth=1)
    for at, p in enumerate(paired):
        colour, marker = looks[p["method"]]["color"], looks[p["method"]]["marker"]
        right.plot([quantity.axis(p["low"]), quantity.axis(p["high"])], [at, at], color=colour, linewidth=2.2)
        right.plot(quantity.axis(p["difference"]), at, marker, color=colour)
    _set_rows(right, [p["method"] for p in paired])
    set_title(right, f"Difference to {drawable_name(paired[0]['reference'], _SHORT)}, 95 % interval" if paired else "")
    right.set(xlabel=quantity.difference_axis)
    if curves:
        label_ends(left, lines, methods)
    style.write_figure(figure, path)


def _draw_baseline(line: Callable[..., Any], limits: tuple[float, float], value: float) -> None:
    """Draw the score of the constant answer, dotted, if it lies among those of the methods."""
    if limits[0] <= value <= limits[1]:
        line(value, color=GREY, linewidth=1.2, linestyle=":")


def _set_rows(axes: Any, names: Sequence[str]) -> None:
    """A line a method, the first on top; what is read is along it."""
    axes.set_yticks(range(len(names)), drawable_names(names))
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color="#e6e6e6", linewidth=0.8)


def _mean_curve(seeds: Sequence[Sequence[tuple[int, float]]]) -> tuple[list[int], list[float]]:
    """Over the rounds that every seed has."""
    tables = [dict(curve) for curve in seeds]
    rounds = sorted(set.intersection(*(set(t) for t in tables))) if tables else []
    return rounds, [statistics.fmean(t[r] for t in tables) for r in rounds]
