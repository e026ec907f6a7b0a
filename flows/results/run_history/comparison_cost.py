"""What each method of a comparison costs until it reaches a target, from the journals of its runs."""

import math
from collections.abc import Mapping
from typing import Any

from flows.project.project import Project
from flows.results.run_history.list_runs import load_result
from flows.training.run_folder import RunFolder
from models.metrics.base_metrics import TaskMetrics
from models.metrics.client_metrics import recorded_metric
from silos.errors import UserError
from tasks.tracking.cost_to_target import (
    SHARE,
    CostCurve,
    Records,
    cost_curve,
    costs_to_target,
    target_of_best,
)
from tasks.tracking.result_tables import table_rows


def read_cost_curves(
    project: Project, comparison: Mapping[str, Any], quantity: TaskMetrics
) -> dict[str, CostCurve | None]:
    """Map each method with a finished run to its mean curve; None if one of its runs has no finite score."""
    runs: dict[str, list[Records]] = {}
    for run in comparison["runs"]:
        records = RunFolder(project.root / run["folder"]).rounds(run["rounds"])
        runs.setdefault(run["method"], []).append(records)
    return {method: cost_curve(records, quantity) for method, records in runs.items()}


def costs_of(
    comparison: Mapping[str, Any],
    curves: Mapping[str, CostCurve | None],
    quantity: TaskMetrics,
    target: float | None = None,
) -> dict[str, dict[str, Any]]:
    """Return `cost` of a comparison: by method the target, and rounds, bytes and seconds until it is reached.

    Args:
        comparison: Its runs, table and baseline. Of several partitions, costs are those of data/.
        curves: The mean curve of each method.
        quantity: The metric.
        target: What to reach; without it, 90 % of the way from the constant baseline to the best method.

    Returns:
        An empty mapping if there is no target, since no method is better than the baseline. `of_best` is the share of
        the way, None for a given target.
    """
    share = SHARE if target is None else None
    table = table_rows(comparison["runs"], quantity) if comparison.get("partitions") else comparison["table"]
    reach = target_of_best(table, comparison.get("baseline"), quantity) if target is None else target
    costs = {} if reach is None else costs_to_target(curves, reach, quantity)
    return {method: {**cost, "of_best": share} for method, cost in costs.items()}


def cost_of_result(project: Project, name: str | None, other: str | None, target: float | None) -> dict[str, Any]:
    """Return experiment, task and `cost` as plain JSON, from the journals of the runs.

    Args:
        project: The project.
        name: The comparison, or the start of its name.
        other: A second comparison, which is refused.
        target: The metric to reach; without it, that of the comparison's table.

    Raises:
        UserError: If there is not one comparison of this name, it is not finished, or the target is no number.
    """
    if name is None or other is not None:
        raise UserError(
            f"results --cost: got {'no comparison' if name is None else 'two comparisons'}, expected one. "
            "Name it: `siloflow results NAME --cost`."
        )
    if target is not None and not math.isfinite(target):
        raise UserError(f"--target: got {target}, expected a finite number. Choose a value of the metric.")
    comparison, kind = load_result(project, name)
    if kind != "compare":
        raise UserError(f"results --cost: got {name}, a run, expected a comparison. Name a comparison.")
    quantity = recorded_metric(comparison)
    costs = comparison.get("cost") if target is None else None
    if costs is None:  # another target, or a comparison of an earlier version
        costs = costs_of(comparison, read_cost_curves(project, comparison, quantity), quantity, target)
    about: dict[str, Any] = {
        key: comparison[key] for key in ("experiment", "task", "metric", "higher_is_better") if key in comparison
    }
    return {**about, "cost": costs}
