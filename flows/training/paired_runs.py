"""Compares two sets of runs row by row, and describes the paired differences of a comparison.

`comparison.over` and `comparison.partitions` choose what is a draw: rows and seeds, silos too, or partitions too.
Intervals are corrected for several methods.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flows.project.project import Project
from flows.training.run_records.run_folder import RunFolder
from models.metrics.paired_difference import (
    LEAST_SILOS,
    Difference,
    Stratum,
    difference,
    difference_over_partitions,
    difference_over_silos,
    difference_record,
    holm_intervals,
)
from models.metrics.task_metrics import TaskMetrics
from silos.cohort import Silos
from silos.errors import UserError
from silos.storage.partition_store import open_common_units
from tasks.execution.task_runner import Runner, map_clients
from tasks.messages.score_messages import (
    ClassCounts,
    CommonSums,
    OutcomeMeans,
    PairedSums,
    PredictionCounts,
    PriorShiftScores,
)
from tasks.paired_outcomes import (
    Outcomes,
    count_predictions,
    mean_outcomes,
    pair_common_rows,
    pair_outcomes,
    score_by_class,
    score_prior_shift,
)
from tasks.tracking.result_types.comparison_result import CorrectedInterval, Interval, PairedDifference

_STACK = 16  # clients; fixed, since sums over common rows are added stack by stack


def outcomes_of_run(project: Project, folder: Path) -> Outcomes:
    """Return where the clients of a run store their outcomes."""
    return project.store.private(folder), RunFolder(folder).outcome_hashes()


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

    They are in units of the metric: their mean over clients and seeds is the difference of the headline.

    Args:
        runner: Where clients compute.
        silos: The clients.
        first: The outcomes of the first method, by seed.
        second: Those of the second, on the same seeds.
        quantity: The metric; its `outcome` is the name under which clients store the value of a row.
        classes: The classes of the rows; all if None.
        split: The rows.
    """
    scales = scales_of_headline(quantity, means_by_client(runner, silos, first, second, quantity, split))
    if silos.common(split) and classes is None:
        return _common_strata(runner, silos, first, second, quantity.outcome, split, scales)
    return list(client_strata(runner, silos, first, second, quantity, classes, split, scales=scales).values())


Means = Mapping[str, np.ndarray]
"""By client the mean outcome of both methods in each seed, (2, seeds)."""
Scales = Mapping[str, Sequence[float]]
"""By client and seed the factor that gives a difference of outcomes in units of the metric."""


def means_by_client(
    runner: Runner,
    silos: Silos,
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    quantity: TaskMetrics,
    split: str = "test",
) -> Means:
    """Return the mean outcomes of both methods; empty if the metric is the mean outcome, so that nothing is scaled."""
    if quantity.is_mean:
        return {}
    messages: list[OutcomeMeans] = map_clients(
        runner, mean_outcomes, silos, first, second, outcome=quantity.outcome, split=split, stack=_STACK
    )
    return {client: means for m in messages for client, means in zip(m.clients, m.means.numpy(), strict=True)}


def scales_of_headline(quantity: TaskMetrics, means: Means) -> Scales | None:
    """Return scales with which the mean difference over clients is that of the headline, which pools clients' means."""
    if not means:
        return None
    with np.errstate(invalid="ignore"):
        pooled = np.mean(list(means.values()), axis=0)
    scales = tuple(quantity.secant(*of_seed) for of_seed in pooled.T)
    return dict.fromkeys(means, scales)


def scales_of_clients(quantity: TaskMetrics, means: Means) -> Scales | None:
    """Return scales with which a client's mean difference is that of its own metric."""
    if not means:
        return None
    return {client: [quantity.secant(*of_seed) for of_seed in own.T] for client, own in means.items()}


def count_correct_by_class(runner: Runner, silos: Silos, run: Outcomes) -> dict[str, list[int]]:
    """Map each class to [correct, rows] of all clients' own test rows."""
    messages: list[ClassCounts] = map_clients(runner, score_by_class, silos, run, stack=_STACK)
    correct, rows = (sum(getattr(m, name).numpy() for m in messages) for name in ("right", "rows"))
    return {name: [int(a), int(b)] for name, a, b in zip(silos.manifest.classes, correct, rows, strict=True)}


def predictions_by_class(runner: Runner, silos: Silos, runs: Sequence[Sequence[Outcomes]]) -> np.ndarray:
    """Count all clients' test rows by class and predicted class, over each method's runs: (methods, classes, classes + 1).

    The last column has rows without a finite prediction.
    """
    messages: list[PredictionCounts] = map_clients(runner, count_predictions, silos, runs, stack=_STACK)
    counts: np.ndarray = sum(m.counts.numpy() for m in messages)  # type: ignore[assignment]
    return counts


def prior_shift_by_client(runner: Runner, silos: Silos, run: Outcomes) -> dict[str, float]:
    """Map each client to its accuracy on common test rows, weighted by the client's class shares.

    A client is left out if no common row is of one of its classes.
    """
    messages: list[PriorShiftScores] = map_clients(runner, score_prior_shift, silos, run, stack=_STACK)
    values = {client: v for m in messages for client, v in zip(m.clients, m.accuracy.tolist(), strict=True)}
    return {client: value for client, value in values.items() if math.isfinite(value)}


def client_strata(
    runner: Runner,
    silos: Silos,
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    quantity: TaskMetrics,
    classes: Sequence[str] | None = None,
    split: str = "test",
    least_of_class: int = 2,
    scales: Scales | None = None,
) -> dict[str, Stratum]:
    """Return a stratum for each client that has such rows, in listing order; common rows count for every client.

    If the metric counts all classes the same, a client is left out with fewer than `least_of_class` own rows of one of its
    classes: a single row, which may decide, shows no spread. Without `scales`, sums are those of outcomes. See
    `strata_of_pairs` for the other arguments.
    """
    strata: dict[str, Stratum] = {}
    options: dict[str, Any] = {"classes": classes, "outcome": quantity.outcome, "split": split, "scales": scales}
    if quantity.by_class:
        options["least_of_class"] = least_of_class
    messages: list[PairedSums] = map_clients(runner, pair_outcomes, silos, first, second, stack=_STACK, **options)
    for m in messages:
        columns = (m.rows.tolist(), m.by_seed.tolist(), m.mean_squares.tolist(), m.squares.tolist())
        strata |= {client: Stratum(*values) for client, *values in zip(m.clients, *columns, strict=True)}
    return {client: strata[client] for client in silos.clients if client in strata}


def _common_strata(
    runner: Runner,
    silos: Silos,
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    outcome: str,
    split: str,
    scales: Scales | None,
) -> list[Stratum]:
    """Return one stratum: the difference on a row is its mean over clients. Empty if the rows do not define the metric."""
    messages: list[CommonSums] = map_clients(
        runner,
        pair_common_rows,
        silos,
        first,
        second,
        outcome=outcome,
        split=split,
        scales=scales,
        stack=_STACK,
    )
    total = sum((m.sums for m in messages[1:]), messages[0].sums)
    if not total.shape[1]:
        return []
    unit = open_common_units(Path(silos.folder), silos.manifest, split)
    return [Stratum.from_differences(total.numpy() / len(silos.clients), unit)]


@dataclass(frozen=True)
class MeasuredPair:
    """The differences of a method from the reference: on each partition, a stratum for each client with test rows."""

    method: str
    reference: str
    seeds: Sequence[int]
    partitions: Sequence[Sequence[Stratum]]


def check_over(project: Project) -> None:
    """Raise a UserError if `comparison.over` is silos, and the data cannot say anything about other silos."""
    comparison, silos = project.params.comparison, project.scored.federated()
    if comparison.over == "rows":
        return
    if comparison.partitions > 1:
        raise UserError(
            f"comparison.over: got silos with comparison.partitions {comparison.partitions}, expected rows, since each "
            "partition has other silos already. Set comparison.over to rows, or comparison.partitions to 1."
        )
    if silos.common("test"):
        raise UserError(
            "comparison.over: got silos, expected rows, since the silos share their test rows (data.split.test_rows "
            "common). Let each silo own its test rows, or compare over rows."
        )
    count = sum(rows > 0 for rows in silos.rows("test").values())
    if count < LEAST_SILOS:
        raise UserError(
            f"comparison.over: got silos with {count} silo{'s' * (count != 1)}, expected at least {LEAST_SILOS} that take "
            "part in training and have test rows. Compare over rows, which says nothing about other silos."
        )


def smallest_that_matters(project: Project, reference: float | None) -> float:
    """Return `comparison.matters`, or the metric's own smallest difference, given the reference's headline."""
    chosen = project.params.comparison.matters
    return project.quantity.least_that_matters(reference) if chosen is None else chosen


def paired_records(
    pairs: Sequence[MeasuredPair], over: str, shared: float, quantity: TaskMetrics, matters: float = 0.0
) -> list[PairedDifference]:
    """Describe each pair.

    `difference`, `low`, `high` and `p` are without a correction, and hold for the silos of the data, or for all
    partitions. With `over: silos`, `silos` holds the interval for other silos. `corrected` has the interval that the
    comparison asks for, by Holm's step-down over all pairs. `distinguishable` and `sentence` follow it. So
    does `better`, which is None for a difference that is smaller than `matters`.

    Args:
        pairs: What was measured.
        over: rows or silos.
        shared: As in `difference_over_partitions`.
        quantity: The metrics of the task.
        matters: The smallest difference that matters, in units of the metric.
    """
    plain = [_difference(pair, shared, quantity) for pair in pairs]
    silos = (
        [difference_over_silos(pair.partitions[0], bound=quantity.bound) for pair in pairs] if over == "silos" else []
    )
    records = []
    for index, (pair, corrected) in enumerate(zip(pairs, holm_intervals(silos or plain), strict=True)):
        found = difference_record(pair.method, pair.reference, corrected, quantity, matters)
        record: PairedDifference = {
            "method": pair.method,
            "reference": pair.reference,
            "seeds": list(pair.seeds),
            "distinguishable": corrected.distinguishable,
            "matters": matters,
            **found,
            # `low` and `high` of `found` are corrected: the plain ones replace them, and add p
            **_interval(plain[index]),
            "corrected": {
                "low": found["low"],
                "high": found["high"],
                "better": found["better"],
                "sentence": found["sentence"],
                "p": corrected.p,
            },
        }
        if silos:
            record["silos"] = _interval(silos[index])
        records.append(record)
    return records


def withhold_winners(paired: Sequence[PairedDifference]) -> list[PairedDifference]:
    """Return the records without a winner, for a comparison that lacks what --publish requires."""
    return [_withheld(record) if record["distinguishable"] else record for record in paired]


def _withheld(record: PairedDifference) -> PairedDifference:
    sentence = f"{record['sentence'].rpartition(': ')[0]}: no winner is named"
    corrected: CorrectedInterval = {**record["corrected"], "better": None, "sentence": sentence}
    return {
        **record,
        "better": None,
        "sentence": sentence,
        "distinguishable": False,
        "corrected": corrected,
        "withheld": True,
    }


def _difference(pair: MeasuredPair, shared: float, quantity: TaskMetrics) -> Difference:
    options: dict[str, Any] = {"bound": quantity.bound, "pooled_variance": quantity.alike}
    if len(pair.partitions) == 1:
        return difference(pair.partitions[0], **options)
    return difference_over_partitions(pair.partitions, shared, **options)


def _interval(measured: Difference) -> Interval:
    return {"low": measured.low, "high": measured.high, "p": measured.p}
