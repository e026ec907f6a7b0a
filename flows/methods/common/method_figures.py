"""Draws figures that several methods request at the end of their runs: stages, clusters, codes."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.methods.figure_context import FigureContext
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics, metric_value
from models.networks.wrappers.codebook_network import SHARED
from tasks.codebooks import principal_plane, projection
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
from tasks.tracking.result_types.journal_record import RoundSummary

if TYPE_CHECKING:  # matplotlib takes long to import
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

ACCURACY = TASK_METRICS["classification"]
_LINES = 100  # client names that remain legible
_LEGEND = 24  # domains in a legend
_HIGHEST = 30  # inches of a figure

Points = Sequence[tuple[float, float]]


def stages(scene: FigureContext) -> Path:
    """Draw the metric and the clients' uncertainty over rounds, with the end of each stage."""
    path = scene.folder / "stages.png"
    draw_stages(path, scene.records, scene.quantity)
    return path


def group_history(scene: FigureContext) -> Path | None:
    """Draw the group of each client after each round; return None if there were no groups."""
    history = {
        record["round"]: {
            client: int(group)
            for client, row in record["clients"].items()
            if (group := metric_value(row, "group")) is not None
        }
        for record in scene.journal()
    }
    if not any(history.values()):
        return None
    path = scene.folder / "groups.png"
    draw_groups(path, history)
    return path


def codewords(scene: FigureContext) -> Path | None:
    """Draw each client's features and own codewords in the plane of the shared codewords.

    Return None without two shared codewords, or if params.yaml hides personal state (`tracking.personal_models`).
    """
    member = scene.model.network.single_networks[0]
    shared = scene.model.shared.get(member.prefix + SHARED)
    if shared is None or len(shared) < 2 or not scene.personal:
        return None
    silos, axes, setup = scene.silos.select(scene.model.clients), principal_plane(shared), scene.round.setup
    options: dict[str, Any] = {"training": setup.training, "axes": axes, "seed": setup.seed}
    points = {
        client: (tokens.tolist(), codewords.tolist())
        for message in scene.round.map_clients(projection, scene.model, silos=silos, **options)
        for client, tokens, codewords in zip(message.clients, message.tokens, message.words, strict=True)
    }
    path = scene.folder / "codebook.png"
    draw_codebook(path, (shared @ axes).tolist(), points, {c: silos.domain(c) or "" for c in points})
    return path


def draw_stages(path: Path, records: Sequence[RoundSummary], metric: TaskMetrics = ACCURACY) -> None:
    """Draw the headline metric and every check's entropy by round, with a line at each stage's end: +n clients got codes."""
    figure, axes = new_figure(8, 4.6, 1)
    scored = [(r["round"], r["metrics"][metric.headline]) for r in records if metric.headline in r["metrics"]]
    axes.plot(*zip(*scored, strict=True), color=COLOURS[0], linewidth=2, label=f"test {metric.name}")
    uncertainty_axes = axes.twinx()
    checks = [record for record in records if "check/entropy" in record["metrics"]]
    rounds = [record["round"] for record in checks]
    for name, colour, mark in (("entropy", COLOURS[1], "o--"), ("ece", COLOURS[3], "s:")):
        checked = [metric_value(record["metrics"], f"check/{name}") for record in checks]
        values = [math.nan if value is None else value for value in checked]
        uncertainty_axes.plot(rounds, values, mark, color=colour, label=name)
    for record in checks:
        axes.axvline(record["round"], color=GREY, linewidth=0.8, linestyle=":")
        extended = metric_value(record["metrics"], "clients/extended")
        axes.annotate(
            f"+{extended:.0f}" if extended else "end",
            (record["round"], 1),
            xycoords=("data", "axes fraction"),
            fontsize=9,
            color=GREY,
            ha="right",
            va="top",
        )
    set_title(axes, "Stages: dotted lines are checks, +n gave n clients codewords")
    axes.set(ylabel=metric.name)
    set_rounds(axes)
    uncertainty_axes.set(ylabel="at the check: entropy in nats, ECE")
    uncertainty_axes.grid(visible=False)
    uncertainty_axes.spines["right"].set_visible(True)
    lines = [*axes.get_lines()[:1], *uncertainty_axes.get_lines()]
    labels = [str(line.get_label()) for line in lines]
    axes.legend(lines, labels, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    style.write_figure(figure, path)


def draw_groups(path: Path, history: Mapping[int, Mapping[str, int]]) -> None:
    """Draw a line per client, a column per round and a colour per cluster; empty if the client had no cluster or was absent.

    Clients of the same last cluster are adjacent. history: round, client, cluster.
    """
    from matplotlib.colors import ListedColormap

    last: dict[str, int] = {}
    for groups in history.values():
        last |= groups
    clients = sorted(last, key=lambda client: (last[client], client))
    rounds = sorted(history)
    table = [[history[round].get(client, math.nan) for round in rounds] for client in clients]
    highest = max(g for groups in history.values() for g in groups.values())
    colours = ListedColormap([COLOURS[group % len(COLOURS)] for group in range(highest + 1)])
    figure, axes = new_figure(8, min(1.4 + 0.28 * len(clients), _HIGHEST), 1)
    sides = (rounds[0] - 0.5, rounds[-1] + 0.5, len(clients) - 0.5, -0.5)
    axes.imshow(table, colours, vmin=-0.5, vmax=highest + 0.5, aspect="auto", interpolation="nearest", extent=sides)
    axes.grid(visible=False)
    if len(clients) <= _LINES:
        axes.set_yticks(range(len(clients)), drawable_names(clients))
    count = len(set(last.values()))
    set_title(axes, f"Groups of clients over time: {count} group{'s' * (count > 1)} at the end")
    axes.set(ylabel="client" if len(clients) <= _LINES else f"{len(clients)} clients")
    set_rounds(axes)
    if count <= 2 * _LINES:
        _number_groups(axes, [last[client] for client in clients])
    style.write_figure(figure, path)


def _number_groups(axes: "Axes", groups: Sequence[int]) -> None:
    """Label the clusters at the last round, in the middle of their clients, because colours repeat with many clusters."""
    for group in dict.fromkeys(groups):
        lines = [line for line, other in enumerate(groups) if other == group]
        position = (1.01, (lines[0] + lines[-1]) / 2)
        axes.text(*position, f"group {group}", transform=axes.get_yaxis_transform(), va="center", fontsize=8)


def draw_codebook(
    path: Path, shared: Points, clients: Mapping[str, tuple[Points, Points]], domain: Mapping[str, str]
) -> None:
    """Draw tokens (small marks) and codes (crosses) in the plane in which shared codes vary most; one colour per domain."""
    figure, axes = new_figure(9, 6, 1)
    domains = list(dict.fromkeys(domain.values()))
    for client, (tokens, words) in clients.items():
        index = domains.index(domain[client])
        colour, mark = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        if len(tokens):
            xs, ys = zip(*tokens, strict=True)
            axes.scatter(xs, ys, s=9, color=colour, marker=mark, alpha=0.4, linewidths=0)
        if len(words):
            xs, ys = zip(*words, strict=True)
            axes.scatter(xs, ys, s=26, color=colour, marker="x", linewidths=1.2)
    xs, ys = zip(*shared, strict=True)
    marks: list[Artist] = [axes.scatter(xs, ys, s=34, color="black", marker="+", linewidths=1.2)]
    listed = domains if len(domains) <= _LEGEND else domains[: _LEGEND - 1]
    marks += [
        axes.scatter([], [], s=24, color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)])
        for index in range(len(listed))
    ]
    if len(listed) < len(domains):
        marks += axes.plot([], [], linestyle="")
    marks += [axes.scatter([], [], s=26, color=GREY, marker="x")]
    set_title(axes, "Features and codewords")
    axes.set(xlabel="first direction of the shared codewords", ylabel="second")
    more = [f"and {len(domains) - len(listed)} more"] if len(listed) < len(domains) else []
    named = ["shared codewords", *(name or "features" for name in listed), *more, "own codewords"]
    set_legend(axes, marks, named, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    style.write_figure(figure, path)
