"""Compute what a method costs until it reaches a target: bytes, seconds and rounds, from the journals of its runs."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from models.metrics.task_metrics import TaskMetrics, metric_value
from tasks.tracking.result_types.comparison_result import TableRow, TargetCost
from tasks.tracking.result_types.journal_record import RoundSummary
from tasks.tracking.result_types.run_result import ConstantBaseline

SHARE = 0.9
"""Share of the way from the constant baseline to the best method's final metric, which is the target by default."""

Records = Sequence[RoundSummary]
"""The records of a run's rounds, in order, from round 1."""


@dataclass(frozen=True)
class CostCurve:
    """The headline metric after each scored round, and what all rounds so far cost: means over a method's runs.

    Bytes are those up and down of all clients together. Seconds are those of the rounds, with their evaluation.
    """

    rounds: tuple[int, ...]
    values: tuple[float, ...]
    bytes: tuple[float, ...]
    seconds: tuple[float, ...]


def cost_curve(runs: Sequence[Records], quantity: TaskMetrics) -> CostCurve | None:
    """Return the mean curve of a method's runs; None if a run has no finite score.

    A run that ended earlier than others keeps its last score and costs nothing more.
    """
    scores = [_scores(records, quantity) for records in runs]
    if not scores or not all(scores):
        return None
    first = max(min(of_run) for of_run in scores)
    rounds = sorted({number for of_run in scores for number in of_run if number >= first})
    bytes_, seconds = (
        [list(accumulate(spent(record) for record in records)) for records in runs] for spent in (_bytes, _seconds)
    )
    return CostCurve(
        tuple(rounds),
        tuple(statistics.fmean(of[max(n for n in of if n <= number)] for of in scores) for number in rounds),
        *(
            tuple(statistics.fmean(of[min(number, len(of)) - 1] for of in spent) for number in rounds)
            for spent in (bytes_, seconds)
        ),
    )


def _scores(records: Records, quantity: TaskMetrics) -> dict[int, float]:
    scores = {record["round"]: metric_value(record["metrics"], quantity.headline) for record in records}
    return {number: value for number, value in scores.items() if value is not None and math.isfinite(value)}


def _bytes(record: RoundSummary) -> float:
    return math.fsum(metric_value(record["metrics"], name) or 0.0 for name in ("bytes/up", "bytes/down"))


def _seconds(record: RoundSummary) -> float:
    return float(record["seconds"]["round"])


def target_of_best(table: Sequence[TableRow], baseline: ConstantBaseline | None, quantity: TaskMetrics) -> float | None:
    """Return the metric at 90 % of the way from the constant baseline to the best method of a comparison's table.

    A share of the way also has a meaning if less of the metric is better, or if the metric is high by chance. None if
    no method is better than the baseline, or without test rows.
    """
    best = metric_value(max(table, key=quantity.score, default={}), quantity.headline)
    constant = None if baseline is None else metric_value(baseline["metrics"], quantity.headline)
    if best is None or not math.isfinite(best) or constant is None:
        return None
    return constant + SHARE * (best - constant) if quantity.gain(best - constant) > 0 else None


def costs_to_target(
    curves: Mapping[str, CostCurve | None], target: float, quantity: TaskMetrics
) -> dict[str, TargetCost]:
    """Map each method to the target, and to rounds, bytes and seconds until it is reached; None where it is not."""
    return {method: _cost(curve, target, quantity) for method, curve in curves.items()}


def _cost(curve: CostCurve | None, target: float, quantity: TaskMetrics) -> TargetCost:
    for i, value in enumerate(curve.values if curve else ()):
        if quantity.reaches({quantity.headline: value}, target):
            assert curve is not None
            return {"target": target, "rounds": curve.rounds[i], "bytes": curve.bytes[i], "seconds": curve.seconds[i]}
    return {"target": target, "rounds": None, "bytes": None, "seconds": None}
