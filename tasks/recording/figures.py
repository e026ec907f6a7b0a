"""Tables and figures: the one module of style."""

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from models.assessment.quantities import QUANTITIES, Quantity
from silos.machine.files import write_bytes, writing
from tasks.recording.legible_names import legible

ACCURACY = QUANTITIES["classification"]


def write_client_table(path: Path, records: Callable[[], Iterable[Mapping[str, Any]]]) -> Path:
    """A row for each client and round, as CSV; the records are asked for twice, and read one at a time."""
    columns = sorted({c for record in records() for row in record["clients"].values() for c in row})
    with writing(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["round", "client", "dropped", *columns])
        for record in records():
            dropped = set(record["dropped"])
            for client, row in record["clients"].items():
                values = ["" if row.get(c) is None else row[c] for c in columns]
                writer.writerow([record["round"], client, int(client in dropped), *values])
        text.detach()
    return path


def table_rows(results: Sequence[Mapping[str, Any]], quantity: Quantity = ACCURACY) -> list[dict[str, Any]]:
    """One row a method: means over seeds, `accuracy/mean/sd` the standard deviation over seeds (n - 1)."""
    rows = []
    others = tuple(f"{role}/{quantity.headline}" for role in ("fresh", "unseen"))  # where the data have such clients
    for method in dict.fromkeys(r["method"] for r in results):
        runs = [r for r in results if r["method"] == method]
        row: dict[str, Any] = {"method": method, "model": runs[0]["model"], "seeds": len(runs)}
        for name in (*quantity.columns, "loss/mean", *others):
            numbers = [r["metrics"].get(name) for r in runs]
            if name in others and numbers == [None] * len(runs):
                continue
            values = [v for v in numbers if v is not None and math.isfinite(v)]  # a run may have diverged
            row[name] = statistics.fmean(values) if values else None
            row[f"{name}/sd"] = statistics.stdev(values) if len(values) > 1 else 0.0
        row["seconds"] = statistics.fmean(r["seconds"]["total"] for r in runs)
        row["bytes/up"] = statistics.fmean(r["bytes"]["up"] for r in runs)
        row["bytes/down"] = statistics.fmean(r["bytes"]["down"] for r in runs)
        rows.append(row)
    return rows


# Okabe and Ito's palette: told apart also by colour-blind readers
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
_MARKERS = ["o", "s", "^", "D"]  # where there are more lines than colours
GREY = "#666666"
_LETTERS = 40  # of a name
_LINES = 100  # that can be read beside each other


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
    write_figure(figure, path)


def draw_stages(path: Path, records: Sequence[Mapping[str, Any]], quantity: Quantity = ACCURACY) -> None:
    """The headline and every check's entropy by round, a line at the end of each stage with who got words."""
    figure, axes = new_figure(8, 4.6, 1)
    scored = [(r["round"], r["metrics"][quantity.headline]) for r in records if quantity.headline in r["metrics"]]
    axes.plot(*zip(*scored, strict=True), color=COLOURS[0], linewidth=2, label=f"test {quantity.name}")
    doubts = axes.twinx()
    checks = [r for r in records if "check/entropy" in r["metrics"]]
    at = [r["round"] for r in checks]
    for name, colour in (("entropy", COLOURS[1]), ("ece", COLOURS[3])):
        doubts.plot(at, [r["metrics"][f"check/{name}"] for r in checks], "o--", color=colour, label=name)
    for record in checks:
        axes.axvline(record["round"], color=GREY, linewidth=0.8, linestyle=":")
        extended = record["metrics"].get("clients/extended", 0)
        axes.annotate(
            f"+{extended:.0f}" if extended else "end",
            (record["round"], 1),
            xycoords=("data", "axes fraction"),
            fontsize=9,
            color=GREY,
            ha="right",
            va="top",
        )
    set_title(axes, "Stages: dotted lines are checks, +n gave n clients words")
    axes.set(xlabel="round", ylabel=quantity.name)
    doubts.set(ylabel="at the check: entropy in nats, ECE")
    doubts.grid(visible=False)
    doubts.spines["right"].set_visible(True)
    lines = [*axes.get_lines()[:1], *doubts.get_lines()]
    axes.legend(lines, [line.get_label() for line in lines], frameon=False, loc="center right")
    write_figure(figure, path)


def draw_groups(path: Path, history: Mapping[int, Mapping[str, int]]) -> None:
    """A line a client, a column a round, a colour a group; empty where it was in none, or was not there to be asked.

    Clients that ended together lie together. history: round, client, group.
    """
    from matplotlib.colors import ListedColormap

    last: dict[str, int] = {}
    for groups in history.values():
        last |= groups
    clients = sorted(last, key=lambda client: (last[client], client))
    rounds = sorted(history)
    table = [[history[number].get(client, math.nan) for number in rounds] for client in clients]
    highest = max(g for groups in history.values() for g in groups.values())
    colours = ListedColormap([COLOURS[group % len(COLOURS)] for group in range(highest + 1)])
    figure, axes = new_figure(8, min(1.4 + 0.28 * len(clients), 30), 1)
    sides = (rounds[0] - 0.5, rounds[-1] + 0.5, len(clients) - 0.5, -0.5)
    axes.imshow(table, colours, vmin=-0.5, vmax=highest + 0.5, aspect="auto", interpolation="nearest", extent=sides)
    axes.grid(visible=False)
    if len(clients) <= _LINES:
        axes.set_yticks(range(len(clients)), drawable_names(clients))
    set_title(axes, f"Who was with whom: {len(set(last.values()))} groups at the end")
    axes.set(xlabel="round", ylabel="" if len(clients) <= _LINES else f"{len(clients)} clients")
    write_figure(figure, path)


Points = Sequence[tuple[float, float]]


def draw_codebook(
    path: Path, shared: Points, clients: Mapping[str, tuple[Points, Points]], domain: Mapping[str, str]
) -> None:
    """Features (dots) and words (crosses) in the plane in which shared words spread most; a colour for each domain."""
    figure, axes = new_figure(7.5, 6, 1)
    domains = list(dict.fromkeys(domain.values()))
    for client, (tokens, words) in clients.items():
        colour = COLOURS[domains.index(domain[client]) % len(COLOURS)]
        if len(tokens):
            axes.scatter(*zip(*tokens, strict=True), s=5, color=colour, alpha=0.35, linewidths=0)
        if len(words):
            axes.scatter(*zip(*words, strict=True), s=26, color=colour, marker="x", linewidths=1.2)
    marks = [axes.scatter(*zip(*shared, strict=True), s=34, color="black", marker="+", linewidths=1.2)]
    marks += [axes.scatter([], [], s=24, color=COLOURS[at % len(COLOURS)]) for at in range(len(domains))]
    marks += [axes.scatter([], [], s=26, color=GREY, marker="x")]
    set_title(axes, "Features and words")
    axes.set(xlabel="first direction of the shared words", ylabel="second")
    named = ["shared words", *(name or "features" for name in domains), "own words"]
    set_legend(axes, marks, named, fontsize=9)
    write_figure(figure, path)


def _mean_curve(seeds: Sequence[Sequence[tuple[int, float]]]) -> tuple[list[int], list[float]]:
    """Over the rounds that every seed has."""
    tables = [dict(curve) for curve in seeds]
    rounds = sorted(set.intersection(*(set(t) for t in tables))) if tables else []
    return rounds, [statistics.fmean(t[r] for t in tables) for r in rounds]


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


def write_figure(figure: Any, path: Path) -> None:
    """As PNG, whole or not at all; no text in it is a formula."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a name with two $ is no formula
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    write_bytes(path, content.getvalue())


def draw_curves(
    path: Path,
    curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]],
    target: float | None,
    title: str,
    quantity: Quantity = ACCURACY,
) -> None:
    """Every seed's curve, thin, and their mean, by cell, as they are: a best round hides that a later one is worse.

    Where rounds to a `target` are counted, the running best of each seed instead, on a logarithmic axis, and the target.
    """
    figure, axes = new_figure(8, 4.6, 1)
    lines = {}
    for number, (cell, seeds) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        if target is None:
            lines[cell] = _draw_mean(axes, seeds, colour)
        else:
            lines[cell] = _draw_best(axes, seeds, colour, quantity)
    if target is not None:
        axes.axhline(target, color=GREY, linewidth=1, linestyle="--")
    set_title(axes, drawable_name(title, letters=80))
    axes.set(xlabel="round", ylabel=f"test {quantity.name}" + (", running best" if target is not None else ""))
    if target is not None:
        _set_powers(axes)
    if lines:
        set_legend(axes, list(lines.values()), list(lines))
    write_figure(figure, path)


def _draw_best(axes: Any, seeds: Sequence[Sequence[tuple[int, float]]], colour: str, quantity: Quantity) -> Any:
    for curve in seeds:
        best = list(accumulate((value for _, value in curve), max if quantity.higher_is_better else min))
        (line,) = axes.plot([round for round, _ in curve], best, color=colour, linewidth=1.5)
    return line


def _draw_mean(axes: Any, seeds: Sequence[Sequence[tuple[int, float]]], colour: str) -> Any:
    """Of the rounds that all seeds have."""
    if len(seeds) > 1:
        for curve in seeds:
            axes.plot(*zip(*curve, strict=True), color=colour, linewidth=0.8, alpha=0.4)
    common = sorted(set.intersection(*({round for round, _ in curve} for curve in seeds)))
    means = [statistics.fmean(dict(curve)[round] for curve in seeds) for round in common]
    (line,) = axes.plot(common, means, color=colour, linewidth=1.8)
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
    """Each line's mean over seeds, with a dot a seed, over the axis `over`; dashed what is published, once if of several."""
    figure, axes = new_figure(9, 5.2, 1)
    drawn: dict[str, Any] = {}
    shown: list[Mapping[float, float]] = []
    for number, (name, points) in enumerate(ours.items()):
        colour, marker = COLOURS[number % len(COLOURS)], _MARKERS[number // len(COLOURS) % len(_MARKERS)]
        there = sorted((at, values) for at, values in points.items() if values)
        means = [statistics.fmean(values) for _, values in there]
        (drawn[name],) = axes.plot(
            [at for at, _ in there], means, color=colour, linewidth=1.6, marker=marker, markersize=4
        )
        for at, values in there:
            axes.plot([at] * len(values), values, color=colour, marker="o", markersize=2.5, linestyle="", alpha=0.45)
        if name in published and published[name] not in shown:
            shown.append(published[name])
            places, values = zip(*sorted(published[name].items()), strict=True)
            (line,) = axes.plot(places, values, color=colour, linewidth=1, linestyle="--", marker="x", markersize=4)
            drawn[f"{name}, published"] = line
    set_title(axes, drawable_name(title, letters=80))
    axes.set(xlabel=over, ylabel=unit)
    set_legend(axes, list(drawn.values()), list(drawn), loc="lower right")
    write_figure(figure, path)


Examples = Mapping[str, Sequence[Any | None]]
"""Client to one image for each class that is shown, None where it has no row of that class."""


def draw_silos(path: Path, overview: Mapping[str, Any], examples: Examples) -> None:
    """Rows of each client, its label shares or its targets, and where rows are images one of each class."""
    clients, classes = overview["clients"], overview["classes"]
    height = min(max(3.2, 0.34 * len(clients) + 1.4), 14)
    panels = 2 + bool(examples)
    figure, axes = new_figure(4.5 * panels, height, panels)
    _draw_rows(axes[0], clients)
    if classes:
        shares = [list(c["label_shares"].values()) for c in clients]
        shown = axes[1].imshow(shares, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
        set_title(axes[1], "Label shares")
        axes[1].set(yticks=[], ylim=(len(clients) - 0.5, -0.5))
        axes[1].grid(visible=False)
        if len(classes) <= 30:
            axes[1].set_xticks(range(len(classes)), drawable_names(classes))
        figure.colorbar(shown, ax=axes[1], fraction=0.04, pad=0.02)
    else:
        _draw_targets(axes[1], clients)
    if examples:
        sheet, step = _contact_sheet(list(examples.values()))
        columns = len(next(iter(examples.values())))
        axes[-1].imshow(sheet, cmap="gray", aspect="equal", interpolation="nearest")
        set_title(axes[-1], "A training row of each class" + (" (first 20 clients)" if len(clients) > 20 else ""))
        axes[-1].set_xticks([step * (i + 0.5) for i in range(columns)], drawable_names(classes[:columns]))
        axes[-1].set(yticks=[])
        axes[-1].spines[["left", "bottom"]].set_visible(False)
        axes[-1].tick_params(length=0)
        axes[-1].grid(visible=False)
    write_figure(figure, path)


def _draw_rows(ax: Any, clients: Sequence[Mapping[str, Any]]) -> None:
    """Stacked bars; above some hundred clients one filled outline a split, since a bar each takes half a minute."""
    few = len(clients) <= 200
    start = [0] * len(clients)
    for split, colour in zip(("train", "validation", "test"), COLOURS, strict=False):
        rows = [c["rows"][split] for c in clients]
        ends = [a + b for a, b in zip(start, rows, strict=True)]
        if few:
            ax.barh(range(len(clients)), rows, left=start, color=colour, label=split, height=0.75)
        else:
            ax.fill_betweenx(range(len(clients)), start, ends, color=colour, label=split, step="mid", linewidth=0)
        start = ends
    set_title(ax, "Rows")
    ax.set(ylim=(len(clients) - 0.5, -0.5))
    if len(clients) <= 60:
        roles = [f"({c['role']})" if c.get("role", "federated") != "federated" else "" for c in clients]
        names = [" ".join(filter(None, (c["name"], c["domain"], role))) for c, role in zip(clients, roles, strict=True)]
        ax.set_yticks(range(len(clients)), drawable_names(names))
    ax.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.06), handlelength=1)


def _draw_targets(ax: Any, clients: Sequence[Mapping[str, Any]]) -> None:
    """Each client's mean of y, and a standard deviation to both sides."""
    means, spreads = ([c["target"][name] for c in clients] for name in ("mean", "standard_deviation"))
    ax.errorbar(means, range(len(clients)), xerr=spreads, fmt="o", color=COLOURS[0], markersize=4, linewidth=1)
    set_title(ax, "y, mean ± standard deviation")
    ax.set(yticks=[], ylim=(len(clients) - 0.5, -0.5))


def _contact_sheet(clients: Sequence[Sequence[Any | None]]) -> tuple[Any, int]:
    """One line of images a client, (lines, columns) pixels in [0, 1] with a pixel of white between; and a column's width."""
    import numpy as np

    first = next(image for images in clients for image in images if image is not None)
    height, width = first.shape[:2]
    sheet = np.ones((len(clients) * (height + 1), len(clients[0]) * (width + 1), *first.shape[2:]))
    for line, images in enumerate(clients):
        for column, image in enumerate(images):
            if image is not None:
                scale = 255 if image.dtype == np.uint8 else max(float(np.abs(image).max()), 1e-9)
                y, x = line * (height + 1), column * (width + 1)
                sheet[y : y + height, x : x + width] = np.clip(image / scale, 0, 1)
    return sheet, width + 1
