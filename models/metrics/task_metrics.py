"""What a task is judged by: accuracy of a classification, rmse of a regression.

The one place that knows their names, aggregates, sign and texts; loops, tables and figures ask it.

Rows that are nobody's, weighed as a client's own: what it is right on says how right it is on rows of its law.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Literal

import numpy as np

Task = Literal["classification", "regression"]


class TaskMetrics(ABC):
    """A client's number under `name`, from the mean over its rows of `outcome` (see models.training.objectives.measures).

    `headline` is the aggregate over clients that is shown first; `columns` are all that tables show, with their titles.
    """

    name: ClassVar[str]
    outcome: ClassVar[str]
    also: ClassVar[tuple[str, ...]]  # other measures of a row that are reported as their mean
    headline: ClassVar[str]
    columns: ClassVar[Mapping[str, str]]
    higher_is_better: ClassVar[bool]
    title: ClassVar[str]  # of the curves of `headline`
    bound: ClassVar[float]  # the largest difference that two methods can have on a row's outcome
    alike: ClassVar[bool]  # whether one variance of that difference may be taken for the rows of all clients
    difference_axis: ClassVar[str]

    @abstractmethod
    def of_mean(self, mean: float) -> float:
        """A client's number from the mean outcome of its rows."""

    @abstractmethod
    def mean_of(self, value: float) -> float:
        """The mean outcome from a number: the inverse of `of_mean`."""

    @abstractmethod
    def over_clients(self, values: Sequence[float]) -> float:
        """The headline of clients with these numbers."""

    @abstractmethod
    def summary(self, values: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """The aggregates over clients; values: (clients,) numbers of the clients, rows: (clients,)."""

    @abstractmethod
    def as_text(self, metrics: Mapping[str, Any]) -> str:
        """The metrics of one run, in one line or more."""

    @abstractmethod
    def number(self, value: float | None, digits: int = 4) -> str:
        """An aggregate as it is printed, `digits` of it where its size is not known beforehand; a diverged run has none."""

    @abstractmethod
    def difference(self, mean: float, low: float, high: float) -> str:
        """A paired difference of mean outcomes, with its interval, as a sentence says it."""

    def axis(self, difference: float) -> float:
        """A paired difference as figures show it."""
        return difference

    def gain(self, difference: float) -> float:
        """A paired difference of outcomes, above 0 where the first method is better."""
        return difference if self.higher_is_better else -difference

    def score(self, metrics: Mapping[str, Any], before: str = "") -> float:
        """The headline as a number of which more is better; -inf if it is missing or not finite."""
        value = metrics.get(f"{before}{self.headline}")
        return self.gain(value) if value is not None and math.isfinite(value) else -math.inf

    def with_metrics(self, names: Sequence[str]) -> "TaskMetrics":
        """Itself, with more measures of a row whose means are reported."""
        if not names:
            return self
        more = copy(self)
        more.also = (*self.also, *names)  # type: ignore[misc]
        return more

    def rank(self, metrics: Mapping[str, Any], before: str = "") -> tuple[float, float]:
        """Return what models are chosen by: the score, and of equal scores, as few rows have them, the least mean loss."""
        score, loss = self.score(metrics, before), metrics.get(f"{before}loss/mean")
        if not math.isfinite(score) or loss is None or not math.isfinite(loss):
            return score, -math.inf
        return score, -loss

    def reaches(self, metrics: Mapping[str, Any], target: float) -> bool:
        """Whether the headline is as good as the target."""
        return self.score(metrics) >= self.gain(target) - 1e-9  # the mean of equal numbers may round down

    def said(self, metrics: Mapping[str, Any]) -> str | None:
        """`accuracy 0.912`; None without test rows."""
        value = metrics.get(self.headline)
        if value is None:
            return None
        return f"{self.name} {self.number(value)}" if math.isfinite(value) else f"{self.name} diverged"


class Accuracy(TaskMetrics):
    """Share of a client's rows that are right; every client counts once, however small."""

    name, outcome, also, headline = "accuracy", "correct", ("entropy",), "accuracy/mean"
    columns: ClassVar = {
        "accuracy/mean": "accuracy",
        "accuracy/worst": "worst client",
        "entropy/mean": "entropy, nats",
    }
    higher_is_better, bound, alike = True, 1.0, True
    title = "Mean test accuracy over clients"
    difference_axis = "points of accuracy, right of 0 is better"

    def of_mean(self, mean: float) -> float:
        """The mean itself."""
        return mean

    def mean_of(self, value: float) -> float:
        """The number itself."""
        return value

    def over_clients(self, values: Sequence[float]) -> float:
        """Their mean."""
        return math.fsum(values) / len(values)

    def summary(self, values: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Mean, spread and worst over clients, and the mean over rows; `sd` is with n - 1."""
        return {
            "accuracy/mean": float(values.mean()),
            "accuracy/sd": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
            "accuracy/worst": float(values.min()),
            "accuracy/over_rows": float((values * rows).sum() / rows.sum()),
        }

    def as_text(self, metrics: Mapping[str, Any]) -> str:
        """Mean, spread and worst client; loss and entropy."""
        names = ("accuracy/mean", "accuracy/sd", "accuracy/worst", "loss/mean", "entropy/mean")
        mean, spread, worst, loss, entropy = (self.number(metrics.get(name)) for name in names)
        return f"accuracy {mean} ± {spread} over clients, worst {worst}\nloss {loss} nats, entropy {entropy} nats"

    def number(self, value: float | None, digits: int = 4) -> str:
        """Three decimals."""
        return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"

    def difference(self, mean: float, low: float, high: float) -> str:
        """In points, hundredths of accuracy."""
        mean_, low_, high_ = (_signed(f"{self.axis(v):+.1f}") for v in (mean, low, high))
        return f"{mean_} points, {low_} to {high_}"

    def axis(self, difference: float) -> float:
        """Points."""
        return 100 * difference


class RootMeanSquaredError(TaskMetrics):
    """Root of the mean squared error of a client's rows, in units of y.

    `pooled` is the root of the mean over clients of their mean squared error, so that every client counts once.
    """

    name, outcome, also, headline = "rmse", "squared_error", (), "rmse/pooled"
    columns: ClassVar = {"rmse/pooled": "rmse", "rmse/worst": "worst client", "rmse/median": "median client"}
    higher_is_better, bound, alike = False, math.inf, False
    title = "Test rmse, pooled over clients"
    difference_axis = "mean squared error, left of 0 is better"

    def of_mean(self, mean: float) -> float:
        """The root."""
        return math.sqrt(mean) if mean >= 0 else math.nan

    def mean_of(self, value: float) -> float:
        """The square."""
        return value * value

    def over_clients(self, values: Sequence[float]) -> float:
        """The root of their mean square."""
        return math.sqrt(math.fsum(v * v for v in values) / len(values))

    def summary(self, values: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Pooled, worst and median."""
        return {
            "rmse/pooled": float(np.sqrt((values**2).mean())),
            "rmse/worst": float(values.max()),
            "rmse/median": float(np.median(values)),
        }

    def as_text(self, metrics: Mapping[str, Any]) -> str:
        """Pooled, worst and median client."""
        if self.score(metrics) == -math.inf:
            return "rmse is no finite number: training diverged, try a lower training.optimiser.learning_rate"
        pooled, worst, median = (self.number(metrics.get(name)) for name in self.columns)
        return f"rmse {pooled} pooled over clients, worst {worst}, median {median}"

    def number(self, value: float | None, digits: int = 4) -> str:
        """Significant digits."""
        return "-" if value is None or not math.isfinite(value) else _significant(value, digits)

    def difference(self, mean: float, low: float, high: float) -> str:
        """Of mean squared error, three digits."""
        mean_, low_, high_ = (_signed(_significant(v, 3, "+")) for v in (mean, low, high))
        return f"{mean_} in mean squared error, {low_} to {high_}"


def _significant(value: float, digits: int, sign: str = "") -> str:
    """`0.0918`, `9.67`, `45231`; powers of ten for what would be long."""
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:{sign}.{digits}g}"
    return f"{value:{sign}.{max(digits - 1 - math.floor(math.log10(abs(value))), 0)}f}"


def _signed(number: str) -> str:
    """With a true minus sign, and none on zero."""
    return number[1:] if float(number) == 0 else number.replace("-", "−").replace("inf", "∞")


def lower_is_better(metric: str) -> bool:
    """Of a metric such as `fresh/rmse/pooled`, `loss/mean` or `accuracy/worst`."""
    return Accuracy.name not in metric.split("/")


TASK_METRICS: Mapping[str, TaskMetrics] = {"classification": Accuracy(), "regression": RootMeanSquaredError()}


def prior_shift_accuracy(right: np.ndarray, labels: np.ndarray, own: np.ndarray, classes: int) -> float:
    """Accuracy where each class counts as it does among the client's own labels; NaN where no class is in both.

    right: (rows,) bool and labels: (rows,) of common rows, own: (more rows,) labels of the client's. A class that no common
    row has counts for nothing.
    """
    rows, held = (np.bincount(y, minlength=classes) for y in (labels, own))
    there = rows > 0
    if not held[there].sum():
        return math.nan
    of_class = np.bincount(labels[right], minlength=classes)[there] / rows[there]
    return float(of_class @ held[there] / held[there].sum())
