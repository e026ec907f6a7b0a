"""Statistics that are moments of the rows: means, variances, shapes, and the dependence of inputs and targets.

Source: Conditioning on Local Statistics for Scalable Heterogeneous Federated Learning (arXiv 2503.00378), which uses
covariances of inputs and targets, and least squares in its appendix.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .statistic_base import Statistic, StatisticResult, centred, need_classes, one_hot, target_columns, targets


@dataclass(frozen=True)
class Mean(Statistic):
    """The mean of each feature: (features,)."""

    kind: ClassVar[str] = "mean"

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        return StatisticResult(x.mean(0))


@dataclass(frozen=True)
class Variance(Statistic):
    """The variance of each feature, over rows - 1: (features,)."""

    kind: ClassVar[str] = "variance"
    least_rows: ClassVar[int] = 2

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        return StatisticResult((centred(x) ** 2).sum(0) / (len(x) - 1))


@dataclass(frozen=True)
class Covariance(Statistic):
    """The upper triangle of the features' covariance, row by row and with its diagonal: (features (features + 1) / 2,)."""

    kind: ClassVar[str] = "covariance"
    least_rows: ClassVar[int] = 2

    def length(self, features: int, classes: int) -> int:
        """Return the number of entries on and above the diagonal."""
        return features * (features + 1) // 2

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        centred_x = centred(x)
        row, column = torch.triu_indices(x.shape[1], x.shape[1])
        return StatisticResult((centred_x.T @ centred_x / (len(x) - 1))[row, column])


@dataclass(frozen=True)
class Skewness(Statistic):
    """m3 / m2^1.5 of each feature, with moments over rows: (features,); 0 for a constant one."""

    kind: ClassVar[str] = "skewness"
    least_rows: ClassVar[int] = 3  # of two rows it is always 0

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        return StatisticResult((_standardised(x) ** 3).mean(0))


@dataclass(frozen=True)
class Kurtosis(Statistic):
    """m4 / m2^2 - 3 of each feature, with moments over rows: (features,); 0 for a constant one."""

    kind: ClassVar[str] = "kurtosis"
    least_rows: ClassVar[int] = 4  # of three rows it is always -1.5

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        z = _standardised(x)
        return StatisticResult(torch.where((z != 0).any(0), (z**4).mean(0) - 3, 0.0))


@dataclass(frozen=True)
class LabelMean(Statistic):
    """The mean target: one number, or the frequency of each class if there are more than two."""

    kind: ClassVar[str] = "label_mean"

    def length(self, features: int, classes: int) -> int:
        """Return the number of target columns."""
        return target_columns(classes)

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        return StatisticResult(targets(y, classes).mean(0))


@dataclass(frozen=True)
class ClassFrequencies(Statistic):
    """The share of each agreed class in the rows: (classes,), sum 1."""

    kind: ClassVar[str] = "class_frequencies"

    def length(self, features: int, classes: int) -> int:
        """Return the number of classes; StatisticError in a regression."""
        return need_classes(self.kind, classes)

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        return StatisticResult(one_hot(y, classes).mean(0))


@dataclass(frozen=True)
class ClassMeans(Statistic):
    """The mean row of each agreed class, concatenated: (classes * features,); zeros for a class without rows."""

    kind: ClassVar[str] = "class_means"

    def length(self, features: int, classes: int) -> int:
        """Return classes * features; StatisticError in a regression."""
        return need_classes(self.kind, classes) * features

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        member = one_hot(y, classes)
        return StatisticResult((member.T @ x / member.sum(0).clamp_min(1)[:, None]).flatten())


@dataclass(frozen=True)
class CovarianceXY(Statistic):
    """cov(x, y) of every feature and the target: (target columns * features,), target columns concatenated."""

    kind: ClassVar[str] = "covariance_xy"
    least_rows: ClassVar[int] = 2

    def length(self, features: int, classes: int) -> int:
        """Return features for numeric targets and for two classes, else classes * features."""
        return target_columns(classes) * features

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        return StatisticResult((centred(targets(y, classes)).T @ centred(x)).flatten() / (len(x) - 1))


@dataclass(frozen=True)
class LeastSquares(Statistic):
    """Coefficients and intercept of the regression on the client's rows; of minimum norm if not unique.

    (target columns * (features + 1),), the intercept last in each target column.
    """

    kind: ClassVar[str] = "least_squares"

    def length(self, features: int, classes: int) -> int:
        """Return a coefficient for each feature and an intercept, for each target column."""
        return target_columns(classes) * (features + 1)

    def rows_needed(self, features: int, classes: int) -> int:
        """Return more rows than there are coefficients."""
        return features + 2

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        rows, features = x.shape
        design = torch.cat([x, torch.ones(rows, 1, dtype=x.dtype)], 1)
        solution = torch.linalg.lstsq(design, targets(y, classes), driver="gelsd")
        unique = rows >= self.rows_needed(features, classes) and int(solution.rank) == features + 1
        return StatisticResult(solution.solution.T.flatten(), unique)


def _standardised(x: Tensor) -> Tensor:
    """Centre, and divide by the root of the second moment; a constant column becomes 0."""
    centred_x = centred(x)
    spread = (centred_x**2).mean(0).sqrt()
    return centred_x / torch.where(spread > 0, spread, 1.0)
