"""Pictures that a method's page adds to its run: stages, groups, codewords."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from tasks.tracking.plots import style
from tasks.tracking.plots.style import (
    COLOURS,
    GREY,
    MARKERS,
    drawable_names,
    new_figure,
    set_legend,
    set_rounds,
    set_title,
)

ACCURACY = TASK_METRICS["classification"]
_LINES = 100  # that can be read beside each other
_LEGEND = 24  # domains that a legend has room for
_HIGHEST = 30  # inches of a picture


def draw_stages(path: Path, records: Sequence[Mapping[str, Any]], quantity: TaskMetrics = ACCURACY) -> None:
    """The headline and every check's entropy by round, a line at the end of each stage with who got words."""
    figure, axes = new_figure(8, 4.6, 1)
    scored = [(r["round"], r["metrics"][quantity.headline]) for r in records if quantity.headline in r["metrics"]]
    axes.plot(*zip(*scored, strict=True), color=COLOURS[0], linewidth=2, label=f"test {quantity.name}")
    doubts = axes.twinx()
    checks = [r for r in records if "check/entropy" in r["metrics"]]
    at = [r["round"] for r in checks]
    for name, colour, mark in (("entropy", COLOURS[1], "o--"), ("ece", COLOURS[3], "s:")):
        doubts.plot(at, [r["metrics"][f"check/{name}"] for r in checks], mark, color=colour, label=name)
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
    axes.set(ylabel=quantity.name)
    set_rounds(axes)
    doubts.set(ylabel="at the check: entropy in nats, ECE")
    doubts.grid(visible=False)
    doubts.spines["right"].set_visible(True)
    lines = [*axes.get_lines()[:1], *doubts.get_lines()]
    axes.legend(
        lines,
        [line.get_label() for line in lines],
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.12),
        ncols=3,
    )
    style.write_figure(figure, path)


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
    figure, axes = new_figure(8, min(1.4 + 0.28 * len(clients), _HIGHEST), 1)
    sides = (rounds[0] - 0.5, rounds[-1] + 0.5, len(clients) - 0.5, -0.5)
    axes.imshow(table, colours, vmin=-0.5, vmax=highest + 0.5, aspect="auto", interpolation="nearest", extent=sides)
    axes.grid(visible=False)
    if len(clients) <= _LINES:
        axes.set_yticks(range(len(clients)), drawable_names(clients))
    count = len(set(last.values()))
    set_title(axes, f"Who was with whom: {count} group{'s' * (count > 1)} at the end")
    axes.set(ylabel="client" if len(clients) <= _LINES else f"{len(clients)} clients")
    set_rounds(axes)
    if count <= 2 * _LINES:
        _number_groups(axes, [last[client] for client in clients])
    style.write_figure(figure, path)


def _number_groups(axes: Any, groups: Sequence[int]) -> None:
    """Beside the last round each group's number, in the middle of its clients: with many, colours come round."""
    for group in dict.fromkeys(groups):
        at = [line for line, held in enumerate(groups) if held == group]
        place = (1.01, (at[0] + at[-1]) / 2)
        axes.text(*place, f"group {group}", transform=axes.get_yaxis_transform(), va="center", fontsize=8)


Points = Sequence[tuple[float, float]]


def draw_codebook(
    path: Path, shared: Points, clients: Mapping[str, tuple[Points, Points]], domain: Mapping[str, str]
) -> None:
    """Features (small marks) and words (crosses) in the plane in which shared words spread most; a colour a domain."""
    figure, axes = new_figure(9, 6, 1)
    domains = list(dict.fromkeys(domain.values()))
    for client, (tokens, words) in clients.items():
        at = domains.index(domain[client])
        colour, mark = COLOURS[at % len(COLOURS)], MARKERS[at % len(MARKERS)]
        if len(tokens):
            axes.scatter(*zip(*tokens, strict=True), s=9, color=colour, marker=mark, alpha=0.4, linewidths=0)
        if len(words):
            axes.scatter(*zip(*words, strict=True), s=26, color=colour, marker="x", linewidths=1.2)
    marks = [axes.scatter(*zip(*shared, strict=True), s=34, color="black", marker="+", linewidths=1.2)]
    listed = domains if len(domains) <= _LEGEND else domains[: _LEGEND - 1]
    marks += [
        axes.scatter([], [], s=24, color=COLOURS[at % len(COLOURS)], marker=MARKERS[at % len(MARKERS)])
        for at in range(len(listed))
    ]
    if len(listed) < len(domains):
        marks += axes.plot([], [], linestyle="")
    marks += [axes.scatter([], [], s=26, color=GREY, marker="x")]
    set_title(axes, "Features and words")
    axes.set(xlabel="first direction of the shared words", ylabel="second")
    more = [f"and {len(domains) - len(listed)} more"] if len(listed) < len(domains) else []
    named = ["shared words", *(name or "features" for name in listed), *more, "own words"]
    set_legend(axes, marks, named, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    style.write_figure(figure, path)
