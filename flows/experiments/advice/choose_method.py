"""Choose the method to advise from the differences of a proof, and the silos to leave out."""

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from flows.experiments.advice.candidates import SHARED
from flows.experiments.advice.proof import Proof
from flows.experiments.comparison.client_gains import ALONE
from models.metrics.paired_difference import Difference, better_method
from models.metrics.task_metrics import TaskMetrics
from tasks.tracking.result_types.comparison_result import ComparisonConclusions

Differences = Mapping[tuple[str, str], Difference]


class Chosen(NamedTuple):
    """What the proof decides.

    Attributes:
        proved: The simplest method that is as good as any.
        outside: The silos that should train alone, and without which FedAvg is then better than that method.
        diverged: The methods whose predictions are not finite in all runs.
        matters: The smallest difference that matters.
    """

    proved: str
    outside: list[str]
    diverged: list[str]
    matters: float

    @property
    def advised(self) -> str:
        """Return the method that is advised."""
        return SHARED if self.outside else self.proved


def is_better(first: str, second: str, differences: Differences, quantity: TaskMetrics, matters: float = 0.0) -> bool:
    """Return whether the interval shows that the first method is better than the second, by what matters or more."""
    pair = (first, second) if (first, second) in differences else (second, first)
    return pair in differences and better_method(*pair, differences[pair], quantity, matters) == first


def choose(quantity: TaskMetrics, choice: str, proof: Proof, comparison: ComparisonConclusions) -> Chosen:
    """Choose the method, and the silos without which FedAvg is better; arguments as of `decide`."""
    rows = {str(row["method"]): row for row in comparison["table"]}
    diverged = [method for method, row in rows.items() if row.get(quantity.headline) is None]
    compared = [pair["matters"] for pair in comparison.get("paired", ())]
    matters = compared[0] if compared else quantity.least_that_matters(None)
    differences, finite = finite_differences(proof.differences), {*rows}.difference(diverged)
    proved = advised_method(choice, differences, quantity, finite, diverged, matters)
    return Chosen(proved, excluded_silos(proved, proof, quantity, matters), diverged, matters)


def advised_method(
    choice: str,
    differences: Differences,
    quantity: TaskMetrics,
    finite: Collection[str] = (),
    diverged: Collection[str] = (),
    matters: float = 0.0,
) -> str:
    """Return the simplest method that is as good as any in the proof: training alone, then FedAvg, then the choice.

    It is as good if its mean on test rows is at most `matters` behind each other's, and none is proved to be better.
    A method without a finite difference is not advised, unless none has one: then the choice is, or if it diverged the
    simplest that did not.

    Args:
        choice: The method that won the race.
        differences: The differences of the proof, first minus second.
        quantity: The metric.
        finite: The methods whose predictions are finite in all runs of the proof.
        diverged: Those whose predictions are not.
        matters: The smallest difference that matters.
    """
    differences = finite_differences(differences)
    measured = {method for pair in differences for method in pair}
    methods = [method for method in dict.fromkeys((ALONE, SHARED, choice)) if method in measured]
    if not methods and choice in diverged:
        return next((method for method in (ALONE, SHARED) if method in finite), choice)

    def is_near(method: str) -> bool:
        return all(lead(other, method, differences, quantity) <= matters for other in methods if other != method)

    unbeaten = [m for m in methods if not any(is_better(other, m, differences, quantity, matters) for other in methods)]
    return next((method for method in unbeaten if is_near(method)), (unbeaten or [choice])[-1])


def finite_differences(differences: Differences) -> dict[tuple[str, str], Difference]:
    """Return the differences of pairs in which the predictions of both methods are finite."""
    return {pair: measured for pair, measured in differences.items() if math.isfinite(measured.mean)}


def lead(first: str, second: str, differences: Differences, quantity: TaskMetrics) -> float:
    """Return the mean gain of the first method over the second; 0 if they were not compared."""
    forward, backward = differences.get((first, second)), differences.get((second, first))
    if forward is not None:
        return quantity.gain(forward.mean)
    return 0.0 if backward is None else -quantity.gain(backward.mean)


def excluded_silos(advised: str, proof: Proof, quantity: TaskMetrics, matters: float = 0.0) -> list[str]:
    """Return the silos without which FedAvg is proved better than the advised method, by what matters or more."""
    exclusion = proof.exclusion
    measured = None if exclusion is None else exclusion.differences.get(advised)
    if exclusion is None or measured is None or better_method(SHARED, advised, measured, quantity, matters) != SHARED:
        return []
    return list(exclusion.silos)
