"""Statistics that are parts of the spectrum of [flattened input, one-hot label]: loadings and eigenvalues.

Sources: loadings are those of Conditioning on Local Statistics for Scalable Heterogeneous Federated Learning (arXiv
2503.00378), eigenvalues those of Client-Conditional Federated Learning via Local Training Data Statistics (arXiv
2603.11307). Signs (signs.py), scale and feature map are not stated there; the choices made here are in docs/statistics.md.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from .sign_convention import RULES, turned, unsigned, unsigned_cosine, unsigned_length
from .statistic_base import Found, Statistic, centred, one_hot, one_hot_columns

_MOST = 10_000  # components or values
_LONGEST = 1e9
_LEAST_HALF = 10  # rows: a number that leaves a client stands for so many


@dataclass(frozen=True)
class Loadings(Statistic):
    """The first principal directions of [flattened input, one-hot label].

    `sign`: each is a vector, of a number for each feature and label column, whose sign is settled by `ones`, `largest`
    or `data` (signs.py); or they are told together, by what does not depend on signs (`free`). A vector has the Euclidean
    length `norm`, or, without it, the root of its number of entries, so that those have size 1; what is told together is
    as long as so many vectors end to end. Directions that the rows do not have are zeros, or missing in what is told
    together.
    """

    kind: ClassVar[str] = "loadings"
    least_rows: ClassVar[int] = 2
    components: int = 1
    sign: Literal["free", "ones", "largest", "data"] = "free"
    norm: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.components <= _MOST:
            raise ValueError(f"components is {self.components}, and must be 1 to {_MOST:,}")
        if self.sign not in RULES:
            raise ValueError(f"sign is {self.sign!r}, and must be {', '.join(RULES[:-1])} or {RULES[-1]}")
        if self.norm is not None and not (isinstance(self.norm, int | float) and 0 < self.norm <= _LONGEST):
            raise ValueError(f"norm is {self.norm!r}, and must be above 0 and at most {_LONGEST:,.0f}")

    def length(self, features: int, classes: int) -> int:
        """A number for each feature and label column, for each component; for `free` see signs.unsigned_length."""
        width = features + one_hot_columns(classes)
        return unsigned_length(width, self.components) if self.sign == "free" else self.components * width

    def rows_needed(self, features: int, classes: int) -> int:
        """One more than components: so many rows have that many directions once they are centred."""
        return self.components + 1

    def of(self, x: Tensor, y: Tensor, classes: int) -> Found:
        """See Statistic."""
        z = torch.cat([x, one_hot(y, classes)], 1)
        directions, values = self._directions(z, x.shape[1])
        there, width = directions.shape
        if self.sign == "free":
            vector = unsigned(directions, values[:there], unsigned_length(width, self.components))
            vector = vector * (self.norm * self.components**0.5 if self.norm else len(vector) ** 0.5)
        else:
            vector = torch.cat([directions, z.new_zeros(self.components - there, width)]).flatten()
            vector = vector * (self.norm or width**0.5)
        agreement = self._agreement(z, x.shape[1]) if there else None
        gaps = _gaps(values, there)
        if self.sign == "free":
            gaps = gaps[-1:]  # within what is told together a turn changes nothing, or little
        return Found(vector, there == self.components, min(gaps, default=None), agreement)

    def _directions(self, z: Tensor, inputs: int) -> tuple[Tensor, Tensor]:
        """The directions that the rows have, (components or fewer, columns), with their signs; and all eigenvalues."""
        z = centred(z)
        values, directions = spectrum(z)
        rounding = values[0] * max(z.shape) * torch.finfo(z.dtype).eps
        directions = directions[: min(self.components, int((values > rounding).sum()))]
        if self.sign != "free":
            for at, v in enumerate(directions):
                directions[at] = turned(v, self.sign, z, inputs)
        return directions, values

    def _agreement(self, z: Tensor, inputs: int) -> float | None:
        """See Found; the halves are every second of the rows as they are sorted."""
        halves = z[::2], z[1::2]
        if len(halves[1]) < _LEAST_HALF:
            return None
        (one, values), (other, others) = (self._directions(half, inputs) for half in halves)
        if self.sign == "free":
            return unsigned_cosine((one, values[: len(one)]), (other, others[: len(other)]))
        if min(len(one), len(other)) < self.components:
            return 0.0
        return float((one * other).sum(1).min())


@dataclass(frozen=True)
class Fingerprint(Statistic):
    """The largest eigenvalues of the covariance of [flattened input, one-hot label], falling: (values,); then zeros.

    Blind to any reordering of the columns: to permuted labels, and to images turned by 90 degrees.
    """

    kind: ClassVar[str] = "fingerprint"
    least_rows: ClassVar[int] = 2
    values: int = 32
    log: bool = False  # log(1 + eigenvalue)

    def __post_init__(self) -> None:
        if not 1 <= self.values <= _MOST:
            raise ValueError(f"values is {self.values}, and must be 1 to {_MOST:,}")

    def length(self, features: int, classes: int) -> int:
        """As many as asked for."""
        return self.values

    def of(self, x: Tensor, y: Tensor, classes: int) -> Found:
        """See Statistic."""
        top = spectrum(centred(torch.cat([x, one_hot(y, classes)], 1)))[0][: self.values]
        fingerprint = torch.zeros(self.values, dtype=x.dtype)
        fingerprint[: len(top)] = top.log1p() if self.log else top
        return Found(fingerprint)


def spectrum(z: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (k,), falling, and unit eigenvectors (k, columns) of zᵀz / (rows - 1); k = min(rows, columns).

    z: (2 or more rows, columns), centred. Through the smaller of zᵀz and the Gram matrix zzᵀ. A direction whose
    eigenvalue is rounding means nothing.
    """
    rows, columns = z.shape
    if columns <= rows:
        values, vectors = torch.linalg.eigh(z.T @ z / (rows - 1))
        return values.flip(0).clamp_min(0), vectors.T.flip(0)
    values, vectors = torch.linalg.eigh(z @ z.T / (rows - 1))
    directions = vectors.T.flip(0) @ z
    lengths = directions.norm(dim=1, keepdim=True)
    return values.flip(0).clamp_min(0), directions / torch.where(lengths > 0, lengths, 1.0)


def _gaps(values: Tensor, used: int) -> list[float]:
    """(value - next) / value of each of the values used; after the last of all stands 0."""
    following = torch.cat([values[1:], values.new_zeros(1)])[:used]
    gaps: list[float] = ((values[:used] - following) / values[:used]).tolist()
    return gaps
