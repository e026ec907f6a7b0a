"""The metrics of a task: accuracy for classification and rmse for regression.

This is the only module that defines their names, aggregates, sign and texts. It also computes accuracy under a
client's label distribution.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import ClassVar

import numpy as np

from ..model_card import Task


class TaskMetrics(ABC):
    """A client's metric, from the mean over its rows of `outcome` (see models.training.objectives.measures).

    `headline` is the aggregate over clients that is shown first; `columns` are all aggregates that tables show, with
    their titles.
    """

    task: ClassVar[Task]
    name: ClassVar[str]
    outcome: ClassVar[str]
    also: ClassVar[tuple[str, ...]]  # other measures of a row that are reported as their mean
    reported: ClassVar[tuple["TaskMetrics", ...]] = ()  # other metrics whose aggregates are reported
    headline: ClassVar[str]
    columns: ClassVar[Mapping[str, str]]
    higher_is_better: ClassVar[bool]
    title: ClassVar[str]  # of the curves of `headline`
    bound: ClassVar[float]  # the largest difference that two methods can have on a row's outcome
    alike: ClassVar[bool]  # whether one variance of that difference may be taken for the rows of all clients
    difference_axis: ClassVar[str]
    by_class: ClassVar[bool] = False  # whether all classes count the same, so that few rows of a rare one decide
    is_mean: ClassVar[bool] = True  # whether the metric is the mean outcome itself
    loss: ClassVar[str] = "loss"  # the objective's name in texts; cross-entropy and squared error are called "loss"

    @property
    def label(self) -> str:
        """The name in texts, such as `balanced accuracy`."""
        return self.name.replace("_", " ")

    def of_mean(self, mean: float) -> float:
        """Convert the mean outcome of a client's rows to its metric; by default they are equal."""
        return mean

    def mean_of(self, value: float) -> float:
        """Convert a metric to the mean outcome, the inverse of `of_mean`."""
        return value

    def secant(self, first: float, second: float) -> float:
        """Return the factor by which a difference of two mean outcomes becomes that of the metric."""
        return 1.0

    def over_clients(self, values: Sequence[float]) -> float:
        """Aggregate clients' metrics to the headline, by default their mean."""
        return math.fsum(values) / len(values)

    @abstractmethod
    def summary(self, values: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Return the aggregates over clients; values and rows: (clients,)."""

    @abstractmethod
    def as_text(self, metrics: Mapping[str, object]) -> str:
        """Format the metrics of one run, in one line or more."""

    @abstractmethod
    def number(self, value: float | None, digits: int = 4) -> str:
        """Format an aggregate; with `digits` digits if its size is not known beforehand, and `-` for a diverged run."""

    @abstractmethod
    def difference(self, mean: float, low: float, high: float) -> str:
        """Format a paired difference of mean outcomes with its interval, as part of a sentence."""

    def amount(self, difference: float) -> str:
        """Format a difference without sign and interval, as in `0.5 points`."""
        return self.difference(*[abs(difference)] * 3).partition(",")[0].lstrip("+")

    def least_that_matters(self, reference: float | None) -> float:
        """Return the smallest difference that matters by default, given the reference's headline.

        It is 0.005, half a point, of a metric that ends at a best value, such as accuracy. Of others it is 1 % of the
        reference's value.
        """
        if self.higher_is_better and math.isfinite(self.bound):
            return 0.005
        return 0.01 * abs(reference) if reference is not None and math.isfinite(reference) else 0.0

    def axis(self, difference: float) -> float:
        """Convert a paired difference to the unit of figures."""
        return difference

    def gain(self, difference: float) -> float:
        """Return a paired difference of outcomes, positive if the first method is better."""
        return difference if self.higher_is_better else -difference

    def score(self, metrics: Mapping[str, object], prefix: str = "") -> float:
        """Return the headline such that more is better; -inf if it is missing or not finite."""
        value = metric_value(metrics, f"{prefix}{self.headline}")
        return self.gain(value) if value is not None and math.isfinite(value) else -math.inf

    def with_metrics(self, names: Sequence[str], metrics: Sequence["TaskMetrics"] = ()) -> "TaskMetrics":
        """Return a copy that reports the means of more measures of a row, and the aggregates of more metrics."""
        extended = copy(self) if names or metrics else self
        if names:
            object.__setattr__(extended, "also", (*self.also, *names))  # a plugin's class may be a frozen dataclass
        if metrics:
            object.__setattr__(extended, "reported", (*self.reported, *metrics))
        return extended

    def with_loss(self, name: str) -> "TaskMetrics":
        """Return a copy that names the loss in texts, for an objective other than cross-entropy and squared error."""
        named = copy(self)
        object.__setattr__(named, "loss", name)
        return named

    def loss_text(self, value: float | None) -> str:
        """Format a mean loss with its name, and its unit if there is one."""
        unit = " nats" if self.task == "classification" and self.loss == TaskMetrics.loss else ""
        return f"{self.loss} {TASK_METRICS[self.task].number(value)}{unit}"

    def rank(self, metrics: Mapping[str, object], prefix: str = "") -> tuple[float, float]:
        """Return what models are selected by: the score and, for equal scores as with few rows, the least mean loss."""
        score, loss = self.score(metrics, prefix), metric_value(metrics, f"{prefix}loss/mean")
        if not math.isfinite(score) or loss is None or not math.isfinite(loss):
            return score, -math.inf
        return score, -loss

    def reaches(self, metrics: Mapping[str, object], target: float) -> bool:
        """Return whether the headline is as good as the target."""
        return self.score(metrics) >= self.gain(target) - 1e-9  # the mean of equal numbers may round down

    def headline_text(self, metrics: Mapping[str, object]) -> str | None:
        """Return `accuracy 0.912`; None without test rows."""
        value = metric_value(metrics, self.headline)
        if value is None:
            return None
        return f"{self.label} {self.number(value)}" if math.isfinite(value) else f"{self.label} diverged"


class Accuracy(TaskMetrics):
    """The share of a client's rows that are correct; every client counts once, however small."""

    task = "classification"
    name, outcome, also, headline = "accuracy", "correct", ("entropy",), "accuracy/mean"
    columns: ClassVar = {"accuracy/mean": "accuracy", "accuracy/worst": "worst client", "entropy/mean": "entropy, nats"}
    higher_is_better, bound, alike = True, 1.0, True
    title = "Mean test accuracy over clients"
    difference_axis = "points of accuracy; right of 0 is better"

    def summary(self, values: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Return mean, deviation (with n - 1) and minimum over clients, and the mean over rows."""
        return {
            "accuracy/mean": float(values.mean()),
            "accuracy/sd": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
            "accuracy/worst": float(values.min()),
            "accuracy/over_rows": float((values * rows).sum() / rows.sum()),
        }

    def as_text(self, metrics: Mapping[str, object]) -> str:
        """Format mean, deviation and worst client, loss and entropy."""
        names = ("accuracy/mean", "accuracy/sd", "accuracy/worst", "entropy/mean")
        mean, spread, worst, entropy = (self.number(metric_value(metrics, name)) for name in names)
        loss = self.loss_text(metric_value(metrics, "loss/mean"))
        return f"accuracy {mean} ± {spread} over clients, worst {worst}\n{loss}, entropy {entropy} nats"

    def number(self, value: float | None, digits: int = 4) -> str:
        """Format with three decimals."""
        return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"

    def difference(self, mean: float, low: float, high: float) -> str:
        """Format in points, hundredths of accuracy."""
        mean_, low_, high_ = (format_signed(f"{self.axis(v):+.1f}") for v in (mean, low, high))
        return f"{mean_} points, {low_} to {high_}"

    def axis(self, difference: float) -> float:
        return 100 * difference


class RootMeanSquaredError(TaskMetrics):
    """The root of the mean squared error of a client's rows, in units of y.

    `pooled` is the root of the mean over clients of their mean squared error, so every client counts once.
    """

    task = "regression"
    name, outcome, also, headline = "rmse", "squared_error", (), "rmse/pooled"
    columns: ClassVar = {"rmse/pooled": "rmse", "rmse/worst": "worst client", "rmse/median": "median client"}
    higher_is_better, bound, alike, is_mean = False, math.inf, False, False
    title = "Test rmse, pooled over clients"
    difference_axis = "difference in rmse; left of 0 is better"

    def of_mean(self, mean: float) -> float:
        return math.sqrt(mean) if mean >= 0 else math.nan

    def mean_of(self, value: float) -> float:
        return value * value

    def secant(self, first: float, second: float) -> float:
        """Return 1 / (a + b), since a - b = (a² - b²) / (a + b)."""
        total = self.of_mean(first) + self.of_mean(second)
        return 1 / total if total else 1.0

    def over_clients(self, values: Sequence[float]) -> float:
        return math.sqrt(math.fsum(v * v for v in values) / len(values))

    def summary(self, values: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Return pooled, worst and median."""
        return {
            "rmse/pooled": float(np.sqrt((values**2).mean())),
            "rmse/worst": float(values.max()),
            "rmse/median": float(np.median(values)),
        }

    def as_text(self, metrics: Mapping[str, object]) -> str:
        """Format pooled, worst and median client."""
        if self.score(metrics) == -math.inf:
            return "rmse is not finite: training diverged. Try a lower training.optimiser.learning_rate"
        pooled, worst, median = (self.number(metric_value(metrics, name)) for name in self.columns)
        return f"rmse {pooled} pooled over clients, worst {worst}, median {median}"

    def number(self, value: float | None, digits: int = 4) -> str:
        """Format with significant digits."""
        return "-" if value is None or not math.isfinite(value) else format_significant(value, digits)

    def difference(self, mean: float, low: float, high: float) -> str:
        """Format in rmse, with three digits."""
        mean_, low_, high_ = (format_signed(format_significant(v, 3, "+")) for v in (mean, low, high))
        return f"{mean_} in rmse, {low_} to {high_}"


def metric_value(metrics: Mapping[str, object], name: str) -> float | None:
    """Return the value of this name; None if it is missing, or not finite and was read from JSON."""
    value = metrics.get(name)
    return value if isinstance(value, int | float) else None


def format_significant(value: float, digits: int, sign: str = "") -> str:
    """Format as `0.0918`, `9.67`, `45231`; as powers of ten if that would be long."""
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:{sign}.{digits}g}"
    return f"{value:{sign}.{max(digits - 1 - math.floor(math.log10(abs(value))), 0)}f}"


def format_number(value: float, digits: int = 3, sign: str = "") -> str:
    """Format for a sentence: `6`, `0.6`, `45231`, `−100`."""
    text = format_significant(value, digits, sign)
    plain = text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
    return "0" if float(plain) == 0 else format_signed(plain)


def format_signed(number: str) -> str:
    """Use a true minus sign, and no sign on zero."""
    return number[1:] if float(number) == 0 else number.replace("-", "−").replace("inf", "∞")


TASK_METRICS: Mapping[str, TaskMetrics] = {"classification": Accuracy(), "regression": RootMeanSquaredError()}


def prior_shift_accuracy(correct: np.ndarray, labels: np.ndarray, client_labels: np.ndarray, classes: int) -> float:
    """Return the accuracy on common rows if each class had its share of the client's labels.

    Classes without common rows are ignored.

    Args:
        correct: Whether each common row is predicted correctly, (rows,) bool.
        labels: The classes of the common rows, (rows,) int64.
        client_labels: The classes of the client's own rows, (own rows,) int64.
        classes: The number of classes.

    Returns:
        The accuracy, in [0, 1]; NaN if no class is in both.
    """
    common_counts, client_counts = (np.bincount(y, minlength=classes) for y in (labels, client_labels))
    present = common_counts > 0
    if not client_counts[present].sum():
        return math.nan
    accuracy_by_class = np.bincount(labels[correct], minlength=classes)[present] / common_counts[present]
    return float(accuracy_by_class @ client_counts[present] / client_counts[present].sum())
