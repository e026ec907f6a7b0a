"""Describes the paired differences of a comparison: what their intervals are about, corrected for several methods.

`comparison.over` and `comparison.partitions` choose what is a draw: rows and seeds, silos too, or partitions too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flows.experiment.project import Project
from models.metrics.paired_difference import (
    Difference,
    Stratum,
    difference,
    difference_over_partitions,
    difference_over_silos,
    difference_record,
    holm_intervals,
)
from models.metrics.task_metrics import TaskMetrics
from silos.errors import UserError

LEAST_SILOS = 8
"""Fewer silos say too little about others: Student's interval would rest on six degrees of freedom or fewer."""


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
            "partition has other silos already. Set one of them back."
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


def paired_records(
    pairs: Sequence[MeasuredPair], over: str, shared: float, quantity: TaskMetrics
) -> list[dict[str, Any]]:
    """Describe each pair as JSON.

    `difference`, `low`, `high` and `p` are without a correction, and hold for the silos of the data, or for all
    partitions. With `over: silos`, `silos` holds the interval for other silos. `corrected` has the interval that the
    comparison asks for, by Holm's step-down over all pairs. `better`, `distinguishable` and `sentence` follow it.

    Args:
        pairs: What was measured.
        over: rows or silos.
        shared: As in `difference_over_partitions`.
        quantity: The metrics of the task.
    """
    plain = [_difference(pair, shared, quantity) for pair in pairs]
    silos = (
        [difference_over_silos(pair.partitions[0], bound=quantity.bound) for pair in pairs] if over == "silos" else []
    )
    records = []
    for index, (pair, corrected) in enumerate(zip(pairs, holm_intervals(silos or plain), strict=True)):
        found = difference_record(pair.method, pair.reference, corrected, quantity)
        records.append(
            {
                "method": pair.method,
                "reference": pair.reference,
                "seeds": list(pair.seeds),
                "distinguishable": corrected.distinguishable,
                **found,
                **_interval(plain[index]),
                **({"silos": _interval(silos[index])} if silos else {}),
                "corrected": {name: found[name] for name in ("low", "high", "better", "sentence")} | {"p": corrected.p},
            }
        )
    return records


def withhold_winners(paired: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records without a winner, for a comparison that lacks what --publish requires."""
    records = []
    for record in paired:
        if record["better"] is not None:
            sentence = f"{record['sentence'].rpartition(': ')[0]}: no winner is named"
            none: dict[str, Any] = {"better": None, "sentence": sentence}
            corrected = {**record["corrected"], **none}
            record = {**record, **none, "distinguishable": False, "corrected": corrected, "withheld": True}
        records.append(record)
    return records


def _difference(pair: MeasuredPair, shared: float, quantity: TaskMetrics) -> Difference:
    options: dict[str, Any] = {"bound": quantity.bound, "pooled_variance": quantity.alike}
    if len(pair.partitions) == 1:
        return difference(pair.partitions[0], **options)
    return difference_over_partitions(pair.partitions, shared, **options)


def _interval(measured: Difference) -> dict[str, float]:
    return {"low": measured.low, "high": measured.high, "p": measured.p}
