"""Statistics from the spectrum of [flattened input, one-hot label], and the error floor of models conditioned on them.

Sources: loadings are those of Conditioning on Local Statistics for Scalable Heterogeneous Federated Learning (arXiv
2503.00378). Eigenvalues are those of Client-Conditional Federated Learning via Local Training Data Statistics (arXiv
2603.11307). The papers do not state signs (sign_convention.py), scale and feature map; the choices made here are in
docs/statistics.md.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from .sign_convention import RULES, orient, unsigned_cosine, unsigned_length, unsigned_vector
from .statistic_base import Statistic, StatisticResult, centred, one_hot, one_hot_columns

_MAX_COMPONENTS = 10_000  # or values
_MAX_NORM = 1e9
_MIN_HALF = 10  # rows that a reported number stands for


@dataclass(frozen=True)
class Loadings(Statistic):
    """The first principal directions of [flattened input, one-hot label].

    With `sign` `ones`, `largest` or `data` (sign_convention.py), each direction is a vector of a number for each
    feature and label column. With `free` all directions are combined into one vector that does not depend on signs. A
    direction has the Euclidean length `norm` or, without it, the root of its number of entries, so that entries have
    size 1. The combined vector is as long as that many directions concatenated. Directions that the rows lack are
    zeros, or missing from the combined vector.
    """

    kind: ClassVar[str] = "loadings"
    least_rows: ClassVar[int] = 2
    components: int = 1
    sign: Literal["free", "ones", "largest", "data"] = "free"
    norm: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.components <= _MAX_COMPONENTS:
            raise ValueError(f"components: got {self.components}, expected 1 to {_MAX_COMPONENTS:,}")
        if self.sign not in RULES:
            raise ValueError(f"sign: got {self.sign!r}, expected {', '.join(RULES[:-1])} or {RULES[-1]}")
        if self.norm is not None and not (isinstance(self.norm, int | float) and 0 < self.norm <= _MAX_NORM):
            raise ValueError(f"norm: got {self.norm!r}, expected above 0 and at most {_MAX_NORM:,.0f}")

    def length(self, features: int, classes: int) -> int:
        """Return a number for each feature and label column and component; for `free` see `unsigned_length`."""
        width = features + one_hot_columns(classes)
        return unsigned_length(width, self.components) if self.sign == "free" else self.components * width

    def rows_needed(self, features: int, classes: int) -> int:
        """Return one more than components: centred rows span one direction less than their number."""
        return self.components + 1

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        z = torch.cat([x, one_hot(y, classes)], 1)
        directions, values = self._directions(z, x.shape[1])
        num_directions, width = directions.shape
        if self.sign == "free":
            vector = unsigned_vector(directions, values[:num_directions], unsigned_length(width, self.components))
            vector = vector * (self.norm * self.components**0.5 if self.norm else len(vector) ** 0.5)
        else:
            vector = torch.cat([directions, z.new_zeros(self.components - num_directions, width)]).flatten()
            vector = vector * (self.norm or width**0.5)
        agreement = self._agreement(z, x.shape[1]) if num_directions else None
        gaps = _gaps(values, num_directions)
        if self.sign == "free":
            gaps = gaps[-1:]  # rotations within the directions change little or nothing
        return StatisticResult(vector, num_directions == self.components, min(gaps, default=None), agreement)

    def _directions(self, z: Tensor, inputs: int) -> tuple[Tensor, Tensor]:
        """Return the directions that the rows have, (components or fewer, columns), signed, and all eigenvalues."""
        z = centred(z)
        values, directions = spectrum(z)
        rounding = values[0] * max(z.shape) * torch.finfo(z.dtype).eps
        directions = directions[: min(self.components, int((values > rounding).sum()))]
        if self.sign != "free":
            for index, v in enumerate(directions):
                directions[index] = orient(v, self.sign, z, inputs)
        return directions, values

    def _agreement(self, z: Tensor, inputs: int) -> float | None:
        """Return the agreement of two halves, every second of the sorted rows (see Found)."""
        halves = z[::2], z[1::2]
        if len(halves[1]) < _MIN_HALF:
            return None
        (first, first_values), (second, second_values) = (self._directions(half, inputs) for half in halves)
        if self.sign == "free":
            return unsigned_cosine((first, first_values[: len(first)]), (second, second_values[: len(second)]))
        if min(len(first), len(second)) < self.components:
            return 0.0
        return float((first * second).sum(1).min())


@dataclass(frozen=True)
class Fingerprint(Statistic):
    """The largest eigenvalues of the covariance of [flattened input, one-hot label], descending: (values,).

    Missing eigenvalues are 0. Invariant to any reordering of the columns: to permuted labels, and to images rotated by
    90 degrees.
    """

    kind: ClassVar[str] = "fingerprint"
    least_rows: ClassVar[int] = 2
    values: int = 32
    log: bool = False  # log(1 + eigenvalue)

    def __post_init__(self) -> None:
        if not 1 <= self.values <= _MAX_COMPONENTS:
            raise ValueError(f"values: got {self.values}, expected 1 to {_MAX_COMPONENTS:,}")

    def length(self, features: int, classes: int) -> int:
        """Return the number of values."""
        return self.values

    def compute(self, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
        top = spectrum(centred(torch.cat([x, one_hot(y, classes)], 1)))[0][: self.values]
        fingerprint = torch.zeros(self.values, dtype=x.dtype)
        fingerprint[: len(top)] = top.log1p() if self.log else top
        return StatisticResult(fingerprint)


def spectrum(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (k,), descending, and unit eigenvectors (k, columns) of zᵀz / (rows - 1).

    k = min(rows, columns). z: (2 or more rows, columns), centred. The smaller of zᵀz and the Gram matrix zzᵀ is
    decomposed. A direction whose eigenvalue is rounding error is meaningless.
    """
    rows, columns = z.shape
    if columns <= rows:
        values, vectors = torch.linalg.eigh(z.T @ z / (rows - 1))
        return values.flip(0).clamp_min(0), vectors.T.flip(0)
    values, vectors = torch.linalg.eigh(z @ z.T / (rows - 1))
    directions = vectors.T.flip(0) @ z
    norms = directions.norm(dim=1, keepdim=True)
    return values.flip(0).clamp_min(0), directions / torch.where(norms > 0, norms, 1.0)


def _gaps(values: Tensor, used: int) -> list[float]:
    """Return (value - next) / value of each used value; the value after the last of all is 0."""
    following = torch.cat([values[1:], values.new_zeros(1)])[:used]
    gaps: list[float] = ((values[:used] - following) / values[:used]).tolist()
    return gaps
