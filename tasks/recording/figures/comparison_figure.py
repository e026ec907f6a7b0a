"""A comparison as a picture."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.assessment.quantities import QUANTITIES, Quantity
from tasks.recording.figures import style
from tasks.recording.figures.style import (
    COLOURS,
    GREY,
    drawable_name,
    drawable_names,
    new_figure,
    set_legend,
    set_title,
)

ACCURACY = QUANTITIES["classification"]


def draw_comparison(
    path: Path,
    comparison: Mapping[str, Any],
    curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]],
    quantity: Quantity = ACCURACY,
) -> None:
    """Learning curves by method, every client's accuracy or rmse, and the paired differences with their intervals."""
    figure, (left, middle, right) = new_figure(15, 4.6, 3)
    colours = {m: COLOURS[i % len(COLOURS)] for i, m in enumerate(curves)}
    lines = []
    for method, seeds in curves.items():
        for curve in seeds:
            left.plot(*zip(*curve, strict=True), color=colours[method], alpha=0.25, linewidth=1)
        lines += left.plot(*_mean_curve(seeds), color=colours[method], linewidth=2.2)
    set_title(left, quantity.title)
    left.set(xlabel="round", ylabel=quantity.name)
    if curves:
        set_legend(left, lines, list(curves), loc="lower right" if quantity.higher_is_better else "upper right")

    methods = list(curves)
    for at, method in enumerate(methods):
        runs = [r for r in comparison["runs"] if r["method"] == method]
        by_client = zip(*(r["metrics"][f"{quantity.name}/by_client"] for r in runs), strict=True)
        numbers = [[row[quantity.name] for row in rows] for rows in by_client]
        scored = [[v for v in values if v is not None and math.isfinite(v)] for values in numbers]
        means = [statistics.fmean(values) for values in scored if values]
        offsets = [at + 0.5 * (i / max(len(means) - 1, 1) - 0.5) for i in range(len(means))]
        middle.scatter(offsets, means, s=22, color=colours[method], alpha=0.8, linewidths=0)
        if means:
            middle.hlines(quantity.over_clients(means), at - 0.36, at + 0.36, color=colours[method], linewidth=2)
    set_title(middle, "Each client (dot: mean over seeds)")
    middle.set(ylabel=f"test {quantity.name}")
    middle.set_xticks(range(len(methods)), drawable_names(methods))

    paired = comparison["paired"]
    right.axvline(0, color=GREY, linewidth=1)
    for at, p in enumerate(paired):
        colour = colours[p["method"]]
        right.plot([quantity.axis(p["low"]), quantity.axis(p["high"])], [at, at], color=colour, linewidth=2.2)
        right.plot(quantity.axis(p["difference"]), at, "o", color=colour)
    right.set_yticks(range(len(paired)), drawable_names([p["method"] for p in paired]))
    right.set_ylim(max(len(paired), 1) - 0.5, -0.5)
    set_title(right, f"Difference to {drawable_name(paired[0]['reference'])}, 95 % interval" if paired else "")
    right.set(xlabel=quantity.difference_axis)
    style.write_figure(figure, path)


def _mean_curve(seeds: Sequence[Sequence[tuple[int, float]]]) -> tuple[list[int], list[float]]:
    """Over the rounds that every seed has."""
    tables = [dict(curve) for curve in seeds]
    rounds = sorted(set.intersection(*(set(t) for t in tables))) if tables else []
    return rounds, [statistics.fmean(t[r] for t in tables) for r in rounds]
