"""Describe in text what the methods of a comparison cost until they reach a target."""

from collections.abc import Mapping
from typing import Any

from models.metrics.client_metrics import recorded_metric
from models.metrics.task_metrics import TaskMetrics
from silos.dataset import some
from silos.io.free_memory import size


def target_text(costs: Mapping[str, Any], quantity: TaskMetrics) -> str:
    """Return `90 % of best`, or the metric and value of a target that the user set."""
    record = next(iter(costs.values()))
    return f"{record['of_best']:.0%}".replace("%", " % of best") if record["of_best"] else _value(record, quantity)


def _value(record: Mapping[str, Any], quantity: TaskMetrics) -> str:
    return f"{quantity.name} {quantity.number(record['target'])}"


def cost_table(costs: Mapping[str, Any]) -> list[list[str]]:
    """Return titles, then the rounds, bytes and seconds of each method until it reaches the target."""
    rows = [
        [
            method,
            "-" if cost["rounds"] is None else str(cost["rounds"]),
            bytes_text(cost["bytes"]),
            "-" if cost["seconds"] is None else f"{cost['seconds']:.1f}",
        ]
        for method, cost in costs.items()
    ]
    return [["method", "rounds", "bytes", "seconds"], *rows]


def bytes_text(count: float | None) -> str:
    """Format a mean number of bytes; `-` if there is none."""
    if not count:
        return "-" if count is None else "0 B"
    return size(round(count))


def cost_sentences(costs: Mapping[str, Any], quantity: TaskMetrics) -> list[str]:
    """Return what the target is, and which methods do not reach it."""
    if not costs:
        return []
    record = next(iter(costs.values()))
    where = "of the way from the constant baseline to the best method's result"
    share = f", {record['of_best']:.0%}".replace("%", f" % {where}") if record["of_best"] else ""
    failed = [method for method, cost in costs.items() if cost["rounds"] is None]
    lines = [f"The target is {_value(record, quantity)}{share}. Costs are of the mean curve over seeds."]
    if len(failed) == len(costs):
        return [*lines, f"No method reached {_value(record, quantity)} within its rounds."]
    return [*lines, *([f"Not reached by {some(failed)}."] if failed else [])]


def unreached(comparison: Mapping[str, Any]) -> list[str]:
    """Return a sentence if no method reached the target. Comparisons of earlier versions have no target."""
    costs = list((comparison.get("cost") or {}).values())
    if not costs or any(cost["rounds"] is not None for cost in costs):
        return []
    return [f"No method reached {_value(costs[0], recorded_metric(comparison))} within its rounds."]
