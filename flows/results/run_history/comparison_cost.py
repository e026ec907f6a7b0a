"""What each method of a comparison costs until it reaches a target, from the journals of its runs."""

import math
from collections.abc import Iterable, Mapping, Sequence

from flows.project.project import Project
from flows.results.run_history.list_runs import load_result
from flows.training.run_records.run_folder import RunFolder
from models.metrics.client_metrics import recorded_metric
from models.metrics.task_metrics import TaskMetrics
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
from tasks.tracking.result_types.comparison_result import CostToTarget, TableRow
from tasks.tracking.result_types.earlier_results import ComparisonCost
from tasks.tracking.result_types.run_result import ConstantBaseline, RunResult


def read_cost_curves(project: Project, runs: Iterable[RunResult], quantity: TaskMetrics) -> dict[str, CostCurve | None]:
    """Map each method with a finished run to its mean curve; None if one of its runs has no finite score."""
    by_method: dict[str, list[Records]] = {}
    for run in runs:
        records = RunFolder(project.root / run["folder"]).rounds(run["rounds"])
        by_method.setdefault(run["method"], []).append(records)
    return {method: cost_curve(records, quantity) for method, records in by_method.items()}


def table_on_data(
    table: list[TableRow], runs: Sequence[RunResult], drawn: bool, quantity: TaskMetrics
) -> list[TableRow]:
    """Return the table of a comparison over its runs on data/ alone, which costs are of; `drawn` says if it has others."""
    return table_rows(runs, quantity) if drawn else table


def costs_of(
    table: Sequence[TableRow],
    baseline: ConstantBaseline | None,
    curves: Mapping[str, CostCurve | None],
    quantity: TaskMetrics,
    target: float | None = None,
) -> dict[str, CostToTarget]:
    """Return `cost` of a comparison: by method the target, and rounds, bytes and seconds until it is reached.

    Args:
        table: A row for each method, over the runs on data/.
        baseline: The constant answer; None without test rows.
        curves: The mean curve of each method.
        quantity: The metric.
        target: What to reach; without it, 90 % of the way from the constant baseline to the best method.

    Returns:
        An empty mapping if there is no target, since no method is better than the baseline. `of_best` is the share of
        the way, None for a given target.
    """
    share = SHARE if target is None else None
    reach = target_of_best(table, baseline, quantity) if target is None else target
    costs = {} if reach is None else costs_to_target(curves, reach, quantity)
    return {method: {**cost, "of_best": share} for method, cost in costs.items()}


def cost_of_result(project: Project, name: str | None, other: str | None, target: float | None) -> ComparisonCost:
    """Return what each method of a comparison costs, from the journals of its runs.

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
    found = load_result(project, name)
    if found[1] != "compare":
        raise UserError(f"results --cost: got {name}, a run, expected a comparison. Name a comparison.")
    comparison = found[0]
    quantity = recorded_metric(comparison)
    costs = comparison.get("cost") if target is None else None
    if costs is None:  # another target, or a comparison of an earlier version
        runs, drawn = comparison["runs"], bool(comparison.get("partitions"))
        table, curves = (
            table_on_data(comparison["table"], runs, drawn, quantity),
            read_cost_curves(project, runs, quantity),
        )
        costs = costs_of(table, comparison.get("baseline"), curves, quantity, target)
    return {
        "experiment": comparison["experiment"],
        "task": quantity.task,
        "metric": quantity.name,
        "higher_is_better": quantity.higher_is_better,
        "cost": costs,
    }
