"""What a local statistic is, and the two ways in which labels become columns.

How a vector of statistics was made, in words: two vectors of one length may be of other kinds, or signs.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

STEADY = 0.5  # the agreement of halves below which a statistic tells more of single rows than of their law
_CONSTANT = 1e-12  # a column whose range is this part of its size or less is constant


class StatisticError(ValueError):
    """Rows or a vector from which no statistic comes; a sentence for people, to which the caller adds the client."""


@dataclass(frozen=True)
class Found:
    """A statistic of one client.

    vector: (length,) float64; `ok`: whether the rows determine it, else zeros stand in (or, for least squares, the smallest
    of many solutions); `gap`: the smallest relative distance of eigenvalues at which it can turn, in [0, 1]; `agreement`:
    how alike the statistic is of two halves of the rows, the cosine of what is least alike, in [-1, 1].
    """

    vector: Tensor
    ok: bool = True
    gap: float | None = None
    agreement: float | None = None


class Statistic(ABC):
    """A frozen record of a statistic's options.

    `features` is the number of entries of a row, `classes` the number of classes that all clients agreed on, 0 where the
    task is regression. The length is a contract between clients: it never depends on rows.
    """

    kind: ClassVar[str]
    least_rows: ClassVar[int] = 1  # with fewer, zeros stand in

    def length(self, features: int, classes: int) -> int:
        """Numbers in the vector; one a feature unless the statistic says otherwise."""
        return features

    def rows_needed(self, features: int, classes: int) -> int:
        """With fewer rows than this the statistic is not determined."""
        return self.least_rows

    @abstractmethod
    def of(self, x: Tensor, y: Tensor, classes: int) -> Found:
        """x: (least_rows or more, features) float64; y: (rows,) int64 codes, or float64 targets where classes is 0."""


def targets(y: Tensor, classes: int) -> Tensor:
    """y as numbers, (rows, columns) float64: the target itself, 0/1 where there are two classes, else one-hot."""
    return one_hot(y, classes) if classes > 2 else y.double()[:, None]


def target_columns(classes: int) -> int:
    """Columns of `targets`."""
    return classes if classes > 2 else 1


def one_hot(y: Tensor, classes: int) -> Tensor:
    """(rows, classes) float64; the target itself, (rows, 1), in a regression."""
    return torch.nn.functional.one_hot(y, classes).double() if classes else y.double()[:, None]


def one_hot_columns(classes: int) -> int:
    """Columns of `one_hot`."""
    return classes or 1


def centred(z: Tensor) -> Tensor:
    """The columns less their means, (rows, columns), rows at least 1; a constant column becomes exactly 0."""
    low, high = z.amin(0), z.amax(0)
    constant = high - low <= _CONSTANT * torch.maximum(low.abs(), high.abs())
    return (z - z.mean(0)).masked_fill(constant, 0.0)


def need_classes(kind: str, classes: int) -> int:
    """The number of classes; StatisticError in a regression, which has none."""
    if not classes:
        raise StatisticError(f"the statistic {kind} is made of classes, and this task is a regression; leave it out")
    return classes


def made_as(specs: Sequence[Mapping[str, Any]]) -> str:
    """Each kind with all of its options, as `loadings components 1 sign free norm null, mean`; empty of none."""
    return ", ".join(" ".join([spec["kind"], *_options(spec)]) for spec in specs)


def _options(spec: Mapping[str, Any]) -> list[str]:
    options = {name: value for name, value in spec.items() if name != "kind"}
    return [f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in options.items()]
