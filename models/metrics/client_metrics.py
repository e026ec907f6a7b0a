"""Metrics that a client computes from all of its test rows, such as AUC: each is the mean of one value a row.

A row's value is the metric plus the row's influence on it (delta method). So the mean over rows is the metric, and the
spread over rows estimates its variance. Paired differences, which add up outcomes of rows, hold for these metrics too.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import ClassVar, NotRequired, Self, TypedDict

import numpy as np

from ..model_card import Task
from .task_metrics import (
    TASK_METRICS,
    TaskMetrics,
    format_signed,
    format_significant,
    metric_value,
)


class NamedMetric(TaskMetrics):
    """A metric as it is aggregated over clients and shown. The name is that of the registry; see `named`.

    Attributes:
        task: Whether predictions are logits or numbers.
        higher_is_better: Whether more is better; the worst client has the least value, or else the largest.
        bound: The largest possible value; infinite if there is none.
    """

    task: ClassVar[Task] = "classification"
    higher_is_better: ClassVar[bool] = True
    bound: ClassVar[float] = math.inf
    alike = False

    def named(self, name: str) -> Self:
        """Return a copy with this name, from which its aggregates, columns and titles follow."""
        named, title = copy(self), name.replace("_", " ")
        side = "right" if self.higher_is_better else "left"
        values = {
            "name": name,
            "outcome": name,
            "headline": f"{name}/mean",
            "columns": {f"{name}/mean": title, f"{name}/worst": "worst client"},
            "title": f"Mean test {title} over clients",
            "difference_axis": f"difference in {title}; {side} of 0 is better",
            "also": TASK_METRICS[self.task].also,
            "reported": (TASK_METRICS[self.task],),
        }
        for key, value in values.items():
            object.__setattr__(named, key, value)  # a plugin's class may be a frozen dataclass
        return named

    def summary(self, values: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Return mean, deviation (with n - 1) and worst over the clients for which the metric is defined."""
        with np.errstate(invalid="ignore"):
            return {
                f"{self.name}/mean": float(values.mean()),
                f"{self.name}/sd": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
                f"{self.name}/worst": float(values.min() if self.higher_is_better else values.max()),
            }

    def as_text(self, metrics: Mapping[str, object]) -> str:
        """Format mean, deviation and worst client, then the task's usual metric, loss and entropy."""
        if self.score(metrics) == -math.inf:
            return f"{self.label} is not finite: training diverged. Try a lower training.optimiser.learning_rate"
        mean, spread, worst = (
            self.number(metric_value(metrics, f"{self.name}/{part}")) for part in ("mean", "sd", "worst")
        )
        usual = TASK_METRICS[self.task]
        others = [usual.headline_text(metrics) or usual.name]
        if "loss/mean" in metrics:
            others.append(self.loss_text(metric_value(metrics, "loss/mean")))
        if "entropy/mean" in metrics:
            others.append(f"entropy {usual.number(metric_value(metrics, 'entropy/mean'))} nats")
        return f"{self.label} {mean} ± {spread} over clients, worst {worst}\n{', '.join(others)}"

    def number(self, value: float | None, digits: int = 4) -> str:
        """Format with three decimals if the metric is bounded, else with significant digits."""
        if value is None or not math.isfinite(value):
            return "-"
        return f"{value:.3f}" if math.isfinite(self.bound) else format_significant(value, digits)

    def difference(self, mean: float, low: float, high: float) -> str:
        """Format as `+0.012 in auc, +0.003 to +0.021`."""
        bounded = math.isfinite(self.bound)
        mean_, low_, high_ = (
            format_signed(f"{v:+.3f}" if bounded else format_significant(v, 3, "+")) for v in (mean, low, high)
        )
        return f"{mean_} in {self.name.replace('_', ' ')}, {low_} to {high_}"


class ClientMetric(NamedMetric):
    """A metric of a client's rows; `row_values` is what a subclass defines, and a plugin's class is registered so.

    Attributes:
        undefined_if: What rows have that do not define the metric, such as `one class`; empty if all rows define it.
        of_probabilities: Whether it depends on probabilities beyond the predicted class and the order of rows.
    """

    undefined_if: ClassVar[str] = "too little variety"
    of_probabilities: ClassVar[bool] = False

    @abstractmethod
    def row_values(self, prediction: np.ndarray, y: np.ndarray) -> np.ndarray | None:
        """Return a value for each row, (rows,), of which the mean is the metric; None if the metric is undefined.

        Whether it is undefined may depend on `y` only.

        Args:
            prediction: Logits (rows, classes), or a regression's predictions (rows,) in units of y; finite float64.
            y: Codes of classes (rows,) int64, or targets (rows,) float64; at least one row.
        """

    def of_client(self, prediction: np.ndarray, y: np.ndarray) -> np.ndarray | None:
        """Return `row_values`; if a prediction or a value is not finite, every row has the worst value, ±infinity.

        Raises:
            ValueError: If `row_values` returns anything but a number for each row.
        """
        finite = bool(np.isfinite(prediction).all())
        with np.errstate(all="ignore"):
            values = self.row_values(prediction if finite else np.zeros_like(prediction), y)
        if values is None:
            return None
        values = np.asarray(values, dtype=np.float64)
        if values.shape != y.shape:
            raise ValueError(f"metric {self.name!r}: got shape {values.shape}, expected a number for each row, (rows,)")
        if finite and np.isfinite(values).all():
            return values
        return np.full(len(y), -math.inf if self.higher_is_better else math.inf)

    def constant(self, shares: np.ndarray) -> np.ndarray:
        """Return the logits (classes,) of the constant answer that results are compared with, given the classes' shares.

        By default the commonest class has the largest, and the probabilities are the shares of training rows. A metric
        that another answer suits better may replace it.
        """
        return np.log(np.maximum(shares, np.finfo(np.float64).tiny))

    def constant_for(self, shares: Sequence[float]) -> np.ndarray:
        """Return `constant`; ValueError if that is anything but a finite number for each class."""
        logits = np.asarray(self.constant(np.asarray(shares, np.float64)), np.float64)
        if logits.shape != (len(shares),) or not np.isfinite(logits).all():
            raise ValueError(
                f"metric {self.name!r}: constant: got {logits.tolist()}, expected a finite number for each of "
                f"{len(shares)} classes"
            )
        return logits

    def is_defined(self, y: np.ndarray, classes: int) -> bool:
        """Return whether these targets, (rows,), define the metric; classes: 0 for a regression."""
        return self.row_values(np.zeros((len(y), classes) if classes else len(y)), y) is not None


class AreaUnderCurve(ClientMetric):
    """The area under the ROC curve; of more than two classes, the mean over the client's classes of one against rest.

    A row's influence is its placement among the rows of the other side (DeLong et al. 1988). Deviations are scaled such
    that the variance of few rows is that of DeLong, with n - 1 for each side.
    """

    bound = 1.0
    by_class = True
    undefined_if = "one class"

    def row_values(self, prediction: np.ndarray, y: np.ndarray) -> np.ndarray | None:
        """Return the area plus the influence of each row; None with one class."""
        classes = np.unique(y)
        if len(classes) < 2:
            return None
        odds = _log_odds(prediction)
        if prediction.shape[1] == 2:
            classes = classes[1:]
        return np.mean([_placements(odds[:, code], y == code) for code in classes], axis=0)


class BalancedAccuracy(ClientMetric):
    """The mean over the client's classes of their recall."""

    bound = 1.0
    by_class = True
    undefined_if = ""

    def row_values(self, prediction: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the mean recall plus the influence of each row."""
        correct, classes = (prediction.argmax(1) == y).astype(float), np.unique(y)
        values = np.zeros(len(y))
        for code in classes:
            members = y == code
            recall = correct[members].mean()
            values += recall
            values[members] += (correct[members] - recall) * _share_factor(members)
        return values / len(classes)


class MacroF1(ClientMetric):
    """The mean of F1 over the classes that the client has or is predicted to have."""

    bound = 1.0
    undefined_if = ""

    def row_values(self, prediction: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the mean F1 plus the influence of each row: F1 is a ratio of two means over rows."""
        predicted = prediction.argmax(1)
        classes = np.union1d(y, predicted)
        values = np.zeros(len(y))
        for code in classes:
            either = (y == code).astype(float) + (predicted == code)
            both = 2.0 * ((y == code) & (predicted == code))
            f1 = both.sum() / either.sum()
            values += f1 + (both - f1 * either) / either.mean()
        return values / len(classes)


class LogLoss(ClientMetric):
    """The mean of -ln p of the right class, in nats; scikit-learn clips p at 2e-16, this does not."""

    higher_is_better = False
    of_probabilities = True
    undefined_if = ""

    def row_values(self, prediction: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return -ln p of each row."""
        shifted, _, total = _exponentials(prediction)
        return np.log(total) - shifted[np.arange(len(y)), y]


class BrierScore(ClientMetric):
    """The mean squared error of p of the second of two classes; of more classes, the sum of squares over classes.

    These are scikit-learn's definitions. The score of two classes is half of the sum over both.
    """

    higher_is_better = False
    of_probabilities = True
    bound = 2.0
    undefined_if = ""

    def row_values(self, prediction: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the squared error of each row."""
        _, powers, total = _exponentials(prediction)
        error = powers / total[:, None]
        error[np.arange(len(y)), y] -= 1
        squares: np.ndarray = (error**2).sum(1)
        return squares / 2 if prediction.shape[1] == 2 else squares


class MeanAbsoluteError(ClientMetric):
    """The mean absolute error, in units of y."""

    task = "regression"
    higher_is_better = False
    undefined_if = ""

    def row_values(self, prediction: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the absolute error of each row."""
        return np.abs(prediction - y)


class RSquared(ClientMetric):
    """One minus the sum of squared errors over that of the client's mean target."""

    task = "regression"
    undefined_if = "a constant target"

    def least_that_matters(self, reference: float | None) -> float:
        """Return 0.005: R² has no least value, but 1 is its best, as of a share."""
        return 0.005

    def row_values(self, prediction: np.ndarray, y: np.ndarray) -> np.ndarray | None:
        """Return R² plus the influence of each row on the ratio of both means; None with a constant target."""
        if (y == y[0]).all():
            return None
        errors, spread = (prediction - y) ** 2, (y - y.mean()) ** 2
        ratio = errors.mean() / spread.mean()
        return 1 - ratio - (errors - ratio * spread) / spread.mean()


def _placements(score: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Return the area under the curve of `score` plus the influence of each row, (rows,)."""
    values, sides = np.empty(len(score)), (score[positive], score[~positive])
    for members, own, other, sign in ((positive, *sides, 1.0), (~positive, *sides[::-1], -1.0)):
        ordered = np.sort(other)
        below = (np.searchsorted(ordered, own, "left") + np.searchsorted(ordered, own, "right")) / (2 * len(other))
        placement = below if sign > 0 else 1 - below
        area = placement.mean()
        values[members] = area + (placement - area) * _share_factor(members)
    return values


def _share_factor(members: np.ndarray) -> float:
    """Return the factor of a deviation from the mean of some rows, to be its influence as one of all rows.

    It includes the root of n / (n - 1), so that the variance of few rows is not too small.
    """
    count = int(members.sum())
    return len(members) / count * math.sqrt(count / max(count - 1, 1))


def _exponentials(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return logits less their maximum, their exponentials, and the sum of these, (rows,)."""
    shifted = logits - logits.max(1, keepdims=True)
    powers = np.exp(shifted)
    return shifted, powers, powers.sum(1)


def _log_odds(logits: np.ndarray) -> np.ndarray:
    """Return ln p - ln(1 - p), which ranks rows like p but does not round to a tie where p is nearly 1."""
    if logits.shape[1] == 2:
        odds = logits[:, 1] - logits[:, 0]
        return np.stack([-odds, odds], 1)
    shifted, powers, _ = _exponentials(logits)
    rest = np.sort(powers, 1)[:, :-1].sum(1)  # sorted, so that equal logits in another order give an equal sum
    others = 1 + rest[:, None] - powers
    np.put_along_axis(others, logits.argmax(1)[:, None], rest[:, None], 1)
    return shifted - np.log(others)


CLIENT_METRICS: Mapping[str, ClientMetric] = {
    name: metric.named(name)
    for name, metric in {
        "auc": AreaUnderCurve(),
        "macro_f1": MacroF1(),
        "balanced_accuracy": BalancedAccuracy(),
        "log_loss": LogLoss(),
        "brier": BrierScore(),
        "mae": MeanAbsoluteError(),
        "r2": RSquared(),
    }.items()
}

METRICS_BY_NAME: Mapping[str, TaskMetrics] = {
    **{metric.name: metric for metric in TASK_METRICS.values()},
    **CLIENT_METRICS,
}


class MetricRecord(TypedDict):
    """What a result or comparison says about its metric, as JSON."""

    task: Task
    metric: str
    higher_is_better: bool
    loss_name: NotRequired[str]
    """The loss in texts, if it is neither cross-entropy nor squared error."""
    bound: NotRequired[float]
    """The largest possible value of a plugin's metric, if there is one."""


def metric_record(metric: TaskMetrics) -> MetricRecord:
    """Return what a result says about its metric; `recorded_metric` reads it."""
    record: MetricRecord = {"task": metric.task, "metric": metric.name, "higher_is_better": metric.higher_is_better}
    if metric.loss != TaskMetrics.loss:
        record["loss_name"] = metric.loss
    if metric.name not in METRICS_BY_NAME and math.isfinite(metric.bound):
        record["bound"] = metric.bound
    return record


def recorded_metric(record: Mapping[str, object]) -> TaskMetrics:
    """Return the metric of a result or comparison that was written as JSON; results of earlier versions name none."""
    name = str(record.get("metric") or TASK_METRICS[str(record["task"])].name)
    known = METRICS_BY_NAME.get(name)
    if known is None:
        plain = NamedMetric()
        for key in ("task", "higher_is_better", "bound"):
            if key in record:
                object.__setattr__(plain, key, record[key])
        known = plain.named(name)
    return known.with_loss(str(record["loss_name"])) if "loss_name" in record else known


def metrics_of_task(task: Task) -> list[str]:
    """Return the names of the metrics that a task has, the default first."""
    usual = TASK_METRICS[task]
    return [usual.name, *(name for name, metric in CLIENT_METRICS.items() if metric.task == task)]


def lower_is_better(metric: str) -> bool:
    """Return whether less is better for a metric such as `fresh/rmse/pooled`, `loss/mean` or `auc/worst`."""
    named = [METRICS_BY_NAME[part] for part in metric.split("/") if part in METRICS_BY_NAME]
    return not named or not named[-1].higher_is_better
