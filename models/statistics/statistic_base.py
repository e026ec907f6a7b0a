"""The base class of local statistics, the conversion of labels to columns, and a description of how a vector was made."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..model_card import StatisticSpec

STEADY = 0.5  # the agreement of halves below which a statistic reflects single rows more than their distribution
_CONSTANT = 1e-12  # relative range of a column up to which it is constant


class StatisticError(ValueError):
    """Rows or a vector that yield no statistic; a message for users, to which the caller adds the client."""


@dataclass(frozen=True)
class StatisticResult:
    """A statistic of one client.

    vector: (length,) float64; ok: whether the rows determine it, otherwise it is zeros or, for least squares, the
    smallest of many solutions; gap: the smallest relative distance of eigenvalues at which it can rotate, in [0, 1];
    agreement: the least cosine of the statistic on two halves of the rows, in [-1, 1].
    """

    vector: Tensor
    ok: bool = True
    gap: float | None = None
    agreement: float | None = None


class Statistic(ABC):
    """A frozen record of a statistic's options.

    `features` is the number of entries of a row, `classes` the number of classes that all clients agreed on, 0 in a
    regression. The length is the same for all clients and never depends on rows.
    """

    kind: ClassVar[str]
    least_rows: ClassVar[int] = 1  # zeros with fewer

    def length(self, features: int, classes: int) -> int:
        """Return the length of the vector, one number a feature by default."""
        return features

    def rows_needed(self, features: int, classes: int) -> int:
        """Return the number of rows that determine the statistic."""
        return self.least_rows

    @abstractmethod
    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        """Compute from x: (least_rows or more, features) float64, and y: (rows,) int64 codes, or float64 targets."""


def targets(y: Tensor, classes: int) -> Tensor:
    """Return y as (rows, columns) float64: the target itself, 0/1 for two classes, else one-hot."""
    return one_hot(y, classes) if classes > 2 else y.double()[:, None]


def target_columns(classes: int) -> int:
    """Return the number of columns of `targets`."""
    return classes if classes > 2 else 1


def one_hot(y: Tensor, classes: int) -> Tensor:
    """Return (rows, classes) float64; in a regression the target itself, (rows, 1)."""
    return torch.nn.functional.one_hot(y, classes).double() if classes else y.double()[:, None]


def one_hot_columns(classes: int) -> int:
    """Return the number of columns of `one_hot`."""
    return classes or 1


def centred(z: Tensor) -> Tensor:
    """Subtract the column means, (rows, columns) with at least one row; a constant column becomes exactly 0."""
    low, high = z.amin(0), z.amax(0)
    constant = high - low <= _CONSTANT * torch.maximum(low.abs(), high.abs())
    return (z - z.mean(0)).masked_fill(constant, 0.0)


def need_classes(kind: str, classes: int) -> int:
    """Return the number of classes; StatisticError in a regression, which has none."""
    if not classes:
        raise StatisticError(
            f"{kind}: got a regression, expected classes, of which this statistic is computed. Leave it out"
        )
    return classes


def made_as(specs: Sequence[StatisticSpec]) -> str:
    """Describe each kind with all its options, as `loadings components 1 sign free norm null, mean`.

    Two vectors of equal length may have different kinds, or signs.
    """
    return ", ".join(" ".join([spec["kind"], *_options(spec)]) for spec in specs)


def _options(spec: StatisticSpec) -> list[str]:
    options = {name: value for name, value in spec.items() if name != "kind"}
    return [f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in options.items()]
