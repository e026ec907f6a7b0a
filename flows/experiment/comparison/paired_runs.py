"""Compares two sets of runs row by row, for a comparison and for a published table."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flows.experiment.project import Project
from flows.experiment.run.run_folder import RunFolder
from models.metrics.paired_difference import Difference, Stratum, difference
from models.metrics.task_metrics import TaskMetrics
from silos.cohort import Silos
from silos.storage.partition_store import open_common_units
from tasks.execution.task_runner import Runner, cohort_calls
from tasks.messages.score_messages import ClassCounts, CommonSums, PairedSums, PredictionCounts, PriorShiftScores
from tasks.paired_outcomes import (
    Outcomes,
    count_predictions,
    pair_common_rows,
    pair_outcomes,
    score_by_class,
    score_prior_shift,
)

_STACK = 16  # clients; fixed, since sums over common rows are added stack by stack


def outcomes_of_run(project: Project, folder: Path) -> Outcomes:
    """Return where the clients of a run store their outcomes."""
    return project.private(folder), RunFolder(folder).outcome_hashes()


def compare_pairs(
    runner: Runner,
    silos: Silos,
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    quantity: TaskMetrics,
    classes: Sequence[str] | None = None,
    split: str = "test",
    level: float = 0.95,
) -> Difference | None:
    """Return first minus second on the same seeds and rows of a split, or on its rows of some classes.

    None without such rows, or if no client's rows define the metric.
    """
    strata = strata_of_pairs(runner, silos, first, second, quantity, classes, split)
    return difference(strata, level, quantity.bound, quantity.alike) if strata else None


def strata_of_pairs(
    runner: Runner,
    silos: Silos,
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    quantity: TaskMetrics,
    classes: Sequence[str] | None = None,
    split: str = "test",
) -> list[Stratum]:
    """Return the sums of first minus second: a stratum for each client with such rows, or one of the common rows.

    Args:
        runner: Where clients compute.
        silos: The clients.
        first: The outcomes of the first method, by seed.
        second: Those of the second, on the same seeds.
        quantity: The metric; its `outcome` is the name under which clients store the value of a row.
        classes: The classes of the rows; all if None.
        split: The rows.
    """
    if silos.common(split) and classes is None:
        return _common_strata(runner, silos, first, second, quantity.outcome, split)
    return list(client_strata(runner, silos, first, second, quantity, classes, split).values())


def count_correct_by_class(runner: Runner, silos: Silos, run: Outcomes) -> dict[str, list[int]]:
    """Map each class to [correct, rows] of all clients' own test rows."""
    messages: list[ClassCounts] = _each_stack(runner, score_by_class, silos, run)
    correct, rows = (sum(getattr(m, name).numpy() for m in messages) for name in ("right", "rows"))
    return {name: [int(a), int(b)] for name, a, b in zip(silos.manifest.classes, correct, rows, strict=True)}


def predictions_by_class(runner: Runner, silos: Silos, runs: Sequence[Sequence[Outcomes]]) -> np.ndarray:
    """Count all clients' test rows by class and predicted class, over each method's runs: (methods, classes, classes + 1).

    The last column has rows without a finite prediction.
    """
    messages: list[PredictionCounts] = _each_stack(runner, count_predictions, silos, runs)
    counts: np.ndarray = sum(m.counts.numpy() for m in messages)  # type: ignore[assignment]
    return counts


def prior_shift_by_client(runner: Runner, silos: Silos, run: Outcomes) -> dict[str, float]:
    """Map each client to its accuracy on common test rows, weighted by the client's class shares.

    A client is left out if no common row is of one of its classes.
    """
    messages: list[PriorShiftScores] = _each_stack(runner, score_prior_shift, silos, run)
    values = {client: v for m in messages for client, v in zip(m.clients, m.accuracy.tolist(), strict=True)}
    return {client: value for client, value in values.items() if math.isfinite(value)}


def _each_stack(runner: Runner, task: Any, silos: Silos, *args: Any, **options: Any) -> list[Any]:
    """Run the task on every cohort, and return the messages of all stacks in stack order."""
    cohorts = runner.map_cohorts(task, cohort_calls(silos, _STACK, runner.workers, *args, **options))
    return [message for messages in cohorts for message in messages]


def client_strata(
    runner: Runner,
    silos: Silos,
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    quantity: TaskMetrics,
    classes: Sequence[str] | None = None,
    split: str = "test",
    least_of_class: int = 2,
) -> dict[str, Stratum]:
    """Return a stratum for each client that has such rows, in listing order; common rows count for every client.

    If the metric counts all classes the same, a client is left out with fewer than `least_of_class` own rows of one of its
    classes: a single row, which may decide, shows no spread. See `strata_of_pairs` for the other arguments.
    """
    strata: dict[str, Stratum] = {}
    options: dict[str, Any] = {"classes": classes, "outcome": quantity.outcome, "split": split}
    if quantity.by_class:
        options["least_of_class"] = least_of_class
    messages: list[PairedSums] = _each_stack(runner, pair_outcomes, silos, first, second, **options)
    for m in messages:
        columns = (m.rows.tolist(), m.by_seed.tolist(), m.mean_squares.tolist(), m.squares.tolist())
        strata |= {client: Stratum(*values) for client, *values in zip(m.clients, *columns, strict=True)}
    return {client: strata[client] for client in silos.clients if client in strata}


def _common_strata(
    runner: Runner, silos: Silos, first: Sequence[Outcomes], second: Sequence[Outcomes], outcome: str, split: str
) -> list[Stratum]:
    """Return one stratum: the difference on a row is its mean over clients. Empty if the rows do not define the metric."""
    messages: list[CommonSums] = _each_stack(
        runner, pair_common_rows, silos, first, second, outcome=outcome, split=split
    )
    total = sum((m.sums for m in messages[1:]), messages[0].sums)
    if not total.shape[1]:
        return []
    unit = open_common_units(Path(silos.folder), silos.manifest, split)
    return [Stratum.from_differences(total.numpy() / len(silos.clients), unit)]
