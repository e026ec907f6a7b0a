"""Statistics that are parts of the spectrum of [flattened input, one-hot label]: loadings and eigenvalues.

Sources: loadings are those of Conditioning on Local Statistics for Scalable Heterogeneous Federated Learning (arXiv
2503.00378), eigenvalues those of Client-Conditional Federated Learning via Local Training Data Statistics (arXiv
2603.11307). Signs, scale and feature map are not stated there; the choices made here are in docs/statistics.md.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from .statistic import Found, Statistic, centred, one_hot, one_hot_columns

_TIE = 1e-6  # entries of a unit vector that are as large as each other
_MOST = 10_000  # components or values
_LONGEST = 1e9
_ANCHORED = 1e-3  # a cosine below this does not settle a sign


@dataclass(frozen=True)
class Loadings(Statistic):
    """The first principal directions of [flattened input, one-hot label]: (components * (features + label columns),).

    Each is a vector of the Euclidean length `norm`, or, without it, of the root of its number of entries, so that those
    have size 1. Its sign makes its sum over the inputs positive (`ones`, the same anchor for every client) or its largest
    entry positive (`largest`). Directions that the rows do not have are zeros.
    """

    kind: ClassVar[str] = "loadings"
    least_rows: ClassVar[int] = 2
    components: int = 1
    sign: Literal["ones", "largest"] = "ones"
    norm: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.components <= _MOST:
            raise ValueError(f"components is {self.components}, and must be 1 to {_MOST:,}")
        if self.sign not in ("ones", "largest"):
            raise ValueError(f"sign is {self.sign!r}, and must be ones or largest")
        if self.norm is not None and not (isinstance(self.norm, int | float) and 0 < self.norm <= _LONGEST):
            raise ValueError(f"norm is {self.norm!r}, and must be above 0 and at most {_LONGEST:,.0f}")

    def length(self, features: int, classes: int) -> int:
        """A number for each feature and label column, for each component."""
        return self.components * (features + one_hot_columns(classes))

    def rows_needed(self, features: int, classes: int) -> int:
        """One more than components: so many rows have that many directions once they are centred."""
        return self.components + 1

    def of(self, x: Tensor, y: Tensor, classes: int) -> Found:
        """See Statistic."""
        z = centred(torch.cat([x, one_hot(y, classes)], 1))
        width = z.shape[1]
        values, directions = spectrum(z)
        rounding = values[0] * max(z.shape) * torch.finfo(z.dtype).eps
        there = min(self.components, int((values > rounding).sum()))
        loadings = torch.zeros(self.components, width, dtype=z.dtype)
        anchor = torch.zeros(width, dtype=z.dtype)
        anchor[: x.shape[1]] = float(self.sign == "ones")
        for at in range(there):
            loadings[at] = fix_sign(directions[at], anchor) * (self.norm or width**0.5)
        return Found(loadings.flatten(), there == self.components, _gap(values, there))


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


def fix_sign(v: Tensor, anchor: Tensor) -> Tensor:
    """v or -v, the same for both: v is a unit vector (length,), anchor a public direction or zeros.

    Along the anchor; where that is nearly at right angles, the largest entry is positive; where entries of both signs are
    the largest, the sum is; where that is 0 too, the first of them.
    """
    size = anchor.norm()
    along = v @ anchor / size if size > 0 else size
    if along.abs() >= _ANCHORED:
        return v * along.sign()
    largest = v[v.abs() >= v.abs().max() - _TIE]
    if not bool((largest.sign() == largest[0].sign()).all()) and v.sum().abs() > _TIE:
        return v * v.sum().sign()
    return v * largest[0].sign()


def _gap(values: Tensor, used: int) -> float | None:
    """The smallest of (value - next) / value over the values used; None where none is."""
    if not used:
        return None
    following = torch.cat([values[1:], values.new_zeros(1)])[:used]
    return float(((values[:used] - following) / values[:used]).min())
