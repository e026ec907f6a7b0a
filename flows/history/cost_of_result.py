"""What each method of a finished comparison cost until it reached a target."""

import math
from typing import Any

from flows.experiment.comparison.comparison_cost import costs_of, read_cost_curves
from flows.experiment.project import Project
from flows.history.list_runs import load_result
from models.metrics.client_metrics import recorded_metric
from silos.errors import UserError


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
