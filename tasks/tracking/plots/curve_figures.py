"""Draw learning curves of published tables, lines over a setting next to published values, comparisons, and costs."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from tasks.tracking.cost_to_target import CostCurve
from tasks.tracking.plots import style
from tasks.tracking.plots.style import (
    GREY,
    LineStyle,
    drawable_name,
    drawable_names,
    label_ends,
    new_figure,
    set_legend,
    set_rounds,
    set_title,
    style_of_line,
)

if TYPE_CHECKING:  # matplotlib takes long to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

ACCURACY = TASK_METRICS["classification"]


def draw_curves(
    path: Path,
    curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]],
    target: float | None,
    title: str,
    metric: TaskMetrics = ACCURACY,
) -> None:
    """Draw each seed's curve, thin, and their mean, by cell of a table.

    With a `target`, draw the target and each seed's running best, on a logarithmic axis. Without one, curves are as
    measured, because a running best hides later, worse rounds.
    """
    figure, axes = new_figure(9, max(4.6, 0.6 + 0.2 * len(curves)), 1)
    lines = {}
    for index, (cell, seeds) in enumerate(curves.items()):
        line_style = style_of_line(index, max(map(len, seeds), default=1))
        draw = _draw_mean if target is None else _draw_best
        lines[cell] = draw(axes, seeds, line_style, metric)
    if target is not None:
        axes.axhline(target, color=GREY, linewidth=1, linestyle="--")
    set_title(axes, drawable_name(title, letters=80))
    axes.set(ylabel=f"test {metric.name}" + (", running best" if target is not None else ""))
    set_rounds(axes)
    if target is not None:
        _set_powers(axes)
    if lines:
        label_ends(axes, list(lines.values()), list(lines))
    style.write_figure(figure, path)


def _draw_best(
    axes: "Axes", seeds: Sequence[Sequence[tuple[int, float]]], line_style: LineStyle, metric: TaskMetrics
) -> "Line2D":
    for curve in seeds:
        best = list(accumulate((value for _, value in curve), max if metric.higher_is_better else min))
        (line,) = axes.plot([round for round, _ in curve], best, **line_style, linewidth=1.5)
    return line


def _draw_mean(
    axes: "Axes", seeds: Sequence[Sequence[tuple[int, float]]], line_style: LineStyle, metric: TaskMetrics
) -> "Line2D":
    """Draw the mean over the rounds that all seeds have."""
    if len(seeds) > 1:
        for curve in seeds:
            axes.plot(*zip(*curve, strict=True), color=line_style["color"], linewidth=0.8, alpha=0.4)
    (line,) = axes.plot(*_mean_curve(seeds), **line_style, linewidth=1.8)
    return line


def _set_powers(axes: "Axes") -> None:
    from matplotlib.ticker import LogFormatter

    axes.set(xscale="log")
    axes.xaxis.set(major_formatter=LogFormatter(), minor_formatter=LogFormatter())  # the default writes formulas


def draw_lines(
    path: Path,
    ours: Mapping[str, Mapping[float, Sequence[float]]],
    published: Mapping[str, Mapping[float, float]],
    over: str,
    unit: str,
    title: str,
) -> None:
    """Draw each line's mean over seeds, with a dot per seed, over the axis `over`; published values are thin and dotted.

    Published values that several lines share are drawn once.
    """
    figure, axes = new_figure(10.5, 5.2, 1)
    legend: dict[str, Line2D] = {}
    drawn_published: list[Mapping[float, float]] = []
    for index, (name, points) in enumerate(ours.items()):
        line_style = style_of_line(index)
        line_style["markevery"] = 1
        colour = line_style["color"]
        # a point without a finished seed has no mean
        measured = sorted((x, values) for x, values in points.items() if values)
        means = [statistics.fmean(values) for _, values in measured]
        (legend[name],) = axes.plot([x for x, _ in measured], means, linewidth=1.6, **line_style)
        for x, values in measured:
            axes.plot([x] * len(values), values, color=colour, marker="o", markersize=2.5, linestyle="", alpha=0.45)
        if name in published and published[name] not in drawn_published:
            drawn_published.append(published[name])
            xs, values = zip(*sorted(published[name].items()), strict=True)
            (line,) = axes.plot(
                xs, values, color=colour, linewidth=0.8, alpha=0.7, marker="x", markersize=5, linestyle=(0, (1, 3))
            )
            legend[f"{name}, published"] = line
    set_title(axes, drawable_name(title, letters=80))
    axes.set(xlabel=over, ylabel=unit)
    set_legend(axes, list(legend.values()), list(legend), loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=9)
    style.write_figure(figure, path)


_SHORT = 20  # letters of a name
_UNITS = ((1e9, "gigabytes"), (1e6, "megabytes"), (1e3, "kilobytes"))
_PANEL = 5.0  # inches, for a page that a phone shows
_PANEL_DPI = 180


def draw_comparison(
    path: Path,
    comparison: Mapping[str, Any],
    curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]],
    metric: TaskMetrics = ACCURACY,
) -> None:
    """Draw learning curves by method, each client's accuracy or rmse, and the paired differences with their intervals.

    A thin line is the interval of the sentence, corrected for several methods.
    """
    methods = list(curves)
    longest = max(map(len, drawable_names(methods)), default=0)
    width = 16.5 + 0.35 * max(0, longest - _SHORT)  # names are left of each of the three panels
    figure, axes = new_figure(width, max(4.6, 1.5 + 0.3 * len(methods)), 3)
    _fill_panels(axes, comparison, curves, metric)
    style.write_figure(figure, path)


def comparison_panels(
    comparison: Mapping[str, Any],
    curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]],
    metric: TaskMetrics = ACCURACY,
) -> tuple[bytes, bytes, bytes]:
    """Return the panels of `draw_comparison` as PNGs that stay legible on a phone, without titles."""
    figures = [new_figure(_PANEL, max(3.4, 1.2 + 0.25 * len(curves)), 1) for _ in range(3)]
    _fill_panels([axes for _, axes in figures], comparison, curves, metric)
    return _panels(figures)  # type: ignore[return-value]


def _panels(figures: "Sequence[tuple[Figure, Axes]]") -> tuple[bytes, ...]:
    for figure, axes in figures:
        axes.set_title("", loc="left")
        figure.set_dpi(_PANEL_DPI)
    return tuple(style.png_bytes(figure) for figure, _ in figures)


def _fill_panels(
    axes: "Sequence[Axes]",
    comparison: Mapping[str, Any],
    curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]],
    metric: TaskMetrics,
) -> None:
    (left, middle, right), methods = axes, list(curves)
    looks = {m: style_of_line(index, max(map(len, curves[m]), default=1)) for index, m in enumerate(methods)}
    baseline = comparison.get("baseline")
    constant = baseline["metrics"][metric.headline] if baseline else None
    lines = _draw_rounds(left, curves, metric, looks, constant)
    _draw_clients(middle, comparison["runs"], metric, looks, constant)
    _draw_differences(right, comparison["paired"], metric, looks)
    if curves:
        label_ends(left, lines, methods)


def _draw_rounds(
    axes: "Axes",
    curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]],
    metric: TaskMetrics,
    looks: Mapping[str, Any],
    constant: float | None,
) -> list[Any]:
    """Draw each method's score by round, faint for each seed, and return the lines of the means over seeds."""
    lines = []
    for method, seeds in curves.items():
        for curve in seeds:
            axes.plot(*zip(*curve, strict=True), color=looks[method]["color"], alpha=0.2, linewidth=0.8)
        lines += axes.plot(*_mean_curve(seeds), **looks[method], linewidth=1.8)
    set_title(axes, metric.title)
    axes.set(ylabel=metric.name)
    set_rounds(axes)
    if constant is not None:
        _draw_baseline(axes.axhline, axes.get_ylim(), constant)
    return lines


def _draw_clients(
    axes: "Axes",
    runs: Sequence[Mapping[str, Any]],
    metric: TaskMetrics,
    looks: Mapping[str, Any],
    constant: float | None,
) -> None:
    """Draw each client's score in a row for each method; hollow: of clients that do not train."""
    has_others, longest = False, 0
    for index, method in enumerate(looks):
        colour, marker = looks[method]["color"], looks[method]["marker"]
        federated, others = _client_means([run for run in runs if run["method"] == method], metric)
        for means, face in ((federated, colour), (others, "none")):
            offsets = [index + 0.5 * (i / max(len(means) - 1, 1) - 0.5) for i in range(len(means))]
            values = list(means.values())
            axes.scatter(values, offsets, s=22, color=face, edgecolor=colour, marker=marker, alpha=0.8, linewidths=0.8)
            if means is federated:
                longest = max(longest, _name_extremes(axes, means, offsets))
        if federated:
            mean = metric.over_clients(list(federated.values()))
            axes.vlines(mean, index - 0.4, index + 0.4, color=colour, linewidth=2)
        has_others = has_others or bool(others)
    if constant is not None:  # before the margins, which are no scores
        _draw_baseline(axes.axvline, axes.get_xlim(), constant)
    set_title(axes, "Each client's mean over seeds; line: all" + (" that train; hollow: others" if has_others else ""))
    share = (5 * longest + 8) / 300  # of the panel's width in points, for a name on either side
    axes.margins(x=share / (1 - 2 * share))
    axes.set(xlabel=f"test {metric.name}")
    _set_rows(axes, list(looks))


def _draw_differences(
    axes: "Axes", paired: Sequence[Mapping[str, Any]], metric: TaskMetrics, looks: Mapping[str, Any]
) -> None:
    """Draw the interval of each difference to the reference; thin: corrected over methods."""
    axes.axvline(0, color=GREY, linewidth=1)
    for index, pair in enumerate(paired):
        colour, marker = looks[pair["method"]]["color"], looks[pair["method"]]["marker"]
        for interval, width in ((pair, 2.2), (pair.get("corrected", pair), 0.9)):
            bounds = [metric.axis(interval["low"]), metric.axis(interval["high"])]
            axes.plot(bounds, [index, index], color=colour, linewidth=width)
        axes.plot(metric.axis(pair["difference"]), index, marker, color=colour)
    _set_rows(axes, [pair["method"] for pair in paired])
    set_title(axes, f"Difference to {drawable_name(paired[0]['reference'], _SHORT)}, 95 % interval" if paired else "")
    axes.set(xlabel=metric.difference_axis)


def draw_cost(
    path: Path,
    curves: Mapping[str, CostCurve | None],
    costs: Mapping[str, Mapping[str, Any]],
    metric: TaskMetrics = ACCURACY,
) -> None:
    """Draw the headline metric against bytes and against seconds, means over seeds; the target is a dashed line.

    Args:
        path: Of the figure.
        curves: By method; None of a method without a finite score, which is left out.
        costs: `cost` of a comparison, which has the target.
        metric: The metric of the curves.
    """
    figure, axes = new_figure(11, max(4.6, 1.5 + 0.3 * len(curves)), 2)
    _fill_cost_panels(axes, curves, costs, metric)
    style.write_figure(figure, path)


def _client_means(runs: Sequence[Mapping[str, Any]], metric: TaskMetrics) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean over seeds of each client with a finite one: of the federated clients, and of fresh and unseen."""
    federated: dict[str, float] = {}
    others: dict[str, float] = {}
    for rows in zip(*(run["metrics"][f"{metric.name}/by_client"] for run in runs), strict=True):
        values = [row[metric.name] for row in rows]
        scored = [value for value in values if value is not None and math.isfinite(value)]
        if scored:
            side = federated if rows[0].get("role", "federated") == "federated" else others
            side[rows[0]["client"]] = statistics.fmean(scored)
    return federated, others


_ENDS = (4, 7)  # letters of a long name's start and end, within a panel


def _name_extremes(axes: "Axes", means: Mapping[str, float], offsets: Sequence[float]) -> int:
    """Name the clients with the least and the largest mean next to their markers; return the letters of the longer name."""
    if len(means) < 2:
        return 0
    clients, letters = list(means), 0
    for client, side in ((min(clients, key=lambda c: means[c]), -1), (max(clients, key=lambda c: means[c]), 1)):
        name = drawable_name(client)  # letters that the font lacks become codes of six
        name = name if len(name) <= sum(_ENDS) else f"{name[: _ENDS[0]]}…{name[-_ENDS[1] :]}"
        letters = max(letters, len(name))
        axes.annotate(
            name,
            (means[client], offsets[clients.index(client)]),
            (5 * side, 0),
            textcoords="offset points",
            fontsize=8,
            ha="right" if side < 0 else "left",
            va="center",
        )
    return letters


def cost_panels(
    curves: Mapping[str, CostCurve | None], costs: Mapping[str, Mapping[str, Any]], metric: TaskMetrics = ACCURACY
) -> tuple[bytes, ...]:
    """Return the panels of `draw_cost` as PNGs, as `comparison_panels` does."""
    figures = [new_figure(_PANEL, max(3.4, 1.2 + 0.25 * len(curves)), 1) for _ in range(2)]
    _fill_cost_panels([axes for _, axes in figures], curves, costs, metric)
    return _panels(figures)


def _fill_cost_panels(
    axes: "Sequence[Axes]",
    curves: Mapping[str, CostCurve | None],
    costs: Mapping[str, Mapping[str, Any]],
    metric: TaskMetrics,
) -> None:
    drawn = [(index, name, curve) for index, (name, curve) in enumerate(curves.items()) if curve is not None]
    most = max((curve.bytes[-1] for _, _, curve in drawn), default=0.0)
    factor, name = next(unit for unit in _UNITS if most >= unit[0] or unit is _UNITS[-1])
    units = {"bytes": (factor, f"{name}, up and down"), "seconds": (1.0, "seconds")}
    for panel, (column, (divisor, unit)) in zip(axes, units.items(), strict=True):
        lines = []
        for index, _, curve in drawn:
            spent = [value / divisor for value in getattr(curve, column)]
            lines += panel.plot(spent, curve.values, **style_of_line(index, len(spent)), linewidth=1.8)
        if column == "bytes" and drawn and all(spent > 0 for _, _, curve in drawn for spent in curve.bytes):
            _set_logarithmic(panel)  # methods may differ a thousandfold
        for cost in [*costs.values()][:1]:
            panel.axhline(cost["target"], color=GREY, linewidth=1, linestyle="--")
        set_title(panel, f"{metric.title}, by {column}")
        panel.set(xlabel=unit, ylabel=metric.name)
        if lines:
            label_ends(panel, lines, [name for _, name, _ in drawn])


def _set_logarithmic(axes: "Axes") -> None:
    """Use a logarithmic x axis with labels such as 0.05, 1 and 200."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set(xscale="log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axes.xaxis.set(major_formatter=FuncFormatter(lambda x, _: f"{x:,g}"), minor_formatter=NullFormatter())


def _draw_baseline(line: "Callable[..., Line2D]", limits: tuple[float, float], value: float) -> None:
    """Draw the score of the constant answer, dotted, if it lies among the scores of the methods."""
    if limits[0] <= value <= limits[1]:
        line(value, color=GREY, linewidth=1.2, linestyle=":")


def _set_rows(axes: "Axes", names: Sequence[str]) -> None:
    """Give each method a row, the first on top, with grid lines along the values."""
    axes.set_yticks(range(len(names)), drawable_names(names))
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color="#e6e6e6", linewidth=0.8)


def _mean_curve(seeds: Sequence[Sequence[tuple[int, float]]]) -> tuple[list[int], list[float]]:
    """Return the mean over seeds, for the rounds that every seed has."""
    tables = [dict(curve) for curve in seeds]
    rounds = sorted(set.intersection(*(set(t) for t in tables))) if tables else []
    return rounds, [statistics.fmean(t[r] for t in tables) for r in rounds]
