"""What the difference between two sets of runs is worth, row by row: for a comparison and for a published table."""

import math
from collections.abc import Sequence
from pathlib import Path

from flows.experiment.project import Project
from flows.experiment.run.run_folder import RunFolder
from models.metrics.paired_difference import Difference, Stratum, difference
from models.metrics.task_metrics import TaskMetrics
from silos.cohort import Silos
from tasks.execution.task_runner import Runner, cohort_calls
from tasks.messages.score_messages import ClassCounts, CommonSums, PairedSums, PriorShiftScores
from tasks.paired_outcomes import Outcomes, pair_common_rows, pair_outcomes, score_by_class, score_prior_shift

_STACK = 16  # clients; sums over common rows are added stack by stack, so it is the same wherever they are computed


def paired_records(project: Project, folder: Path) -> Outcomes:
    """Where the clients of a run keep their outcomes."""
    return project.private(folder), RunFolder(folder).kept()


def compare_pairs(
    runner: Runner,
    silos: Silos,
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    quantity: TaskMetrics,
    classes: Sequence[str] | None = None,
) -> Difference | None:
    """First less second on the same seeds and rows, or on those of some classes; None if there are no such rows."""
    common = bool(silos.common("test")) and classes is None
    strata = _over_common(runner, silos, first, second) if common else _over_own(runner, silos, first, second, classes)
    return difference(strata, bound=quantity.bound, pooled_variance=quantity.alike) if strata else None


def counted(runner: Runner, silos: Silos, run: Outcomes) -> dict[str, list[int]]:
    """class to [right, rows] of all clients' own test rows."""
    answers = runner.map_cohorts(score_by_class, cohort_calls(silos, _STACK, runner.workers, run))
    messages: list[ClassCounts] = [message for cohort in answers for message in cohort]
    right, rows = (sum(getattr(m, name).numpy() for m in messages) for name in ("right", "rows"))
    return {name: [int(a), int(b)] for name, a, b in zip(silos.manifest.classes, right, rows, strict=True)}


def by_prior_shift(runner: Runner, silos: Silos, run: Outcomes) -> dict[str, float]:
    """client to its accuracy on common test rows as its own classes count; without those that none of the rows has."""
    answers = runner.map_cohorts(score_prior_shift, cohort_calls(silos, _STACK, runner.workers, run))
    messages: list[PriorShiftScores] = [message for cohort in answers for message in cohort]
    values = {client: v for m in messages for client, v in zip(m.clients, m.accuracy.tolist(), strict=True)}
    return {client: value for client, value in values.items() if math.isfinite(value)}


def _over_own(
    runner: Runner,
    silos: Silos,
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    classes: Sequence[str] | None,
) -> list[Stratum]:
    """A stratum for each client that has such rows, in the order of listing."""
    strata: dict[str, Stratum] = {}
    calls = cohort_calls(silos, _STACK, runner.workers, first, second, classes=classes)
    answers = runner.map_cohorts(pair_outcomes, calls)
    messages: list[PairedSums] = [message for cohort in answers for message in cohort]
    for m in messages:
        sums = (m.rows.tolist(), m.by_seed.tolist(), m.mean_squares.tolist(), m.squares.tolist())
        strata |= {client: Stratum(*numbers) for client, *numbers in zip(m.clients, *sums, strict=True)}
    return [strata[client] for client in silos.clients if client in strata]


def _over_common(runner: Runner, silos: Silos, first: Sequence[Outcomes], second: Sequence[Outcomes]) -> list[Stratum]:
    """Clients are no strata here: a row's difference is its mean over clients."""
    answers = runner.map_cohorts(pair_common_rows, cohort_calls(silos, _STACK, runner.workers, first, second))
    messages: list[CommonSums] = [message for cohort in answers for message in cohort]
    total = sum((m.sums for m in messages[1:]), messages[0].sums)
    return [Stratum.from_differences(total.numpy() / len(silos.clients))]
