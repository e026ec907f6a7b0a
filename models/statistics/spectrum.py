"""Statistics from the spectrum of [flattened input, one-hot label], and the error floor of models conditioned on them.

A principal direction v may be reported as v or as -v. Every rule that picks one of the two is discontinuous, since no
continuous function of a line through the origin distinguishes its ends. If a distribution's direction lies near a
discontinuity, its clients fall on either side, and few rows move far (docs/statistics.md has the shares). The
convention `free` picks neither: it reports vvᵀ, which v and -v share.

Sources: loadings are those of Conditioning on Local Statistics for Scalable Heterogeneous Federated Learning (arXiv
2503.00378). Eigenvalues are those of Client-Conditional Federated Learning via Local Training Data Statistics (arXiv
2603.11307). The papers do not state signs, scale and feature map; the choices made here are in docs/statistics.md. The
convention `data` is the rule of Bro, Acar and Kolda, "Resolving the sign ambiguity in the singular value
decomposition", Journal of Chemometrics 22(2), 135-140 (2008). The sketch is that of Pham and Pagh, "Fast and scalable
polynomial kernels via explicit feature maps", KDD 2013.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from .statistic_base import Statistic, StatisticResult, centred, one_hot, one_hot_columns

if TYPE_CHECKING:
    from sklearn.kernel_approximation import PolynomialCountSketch

RULES = ("free", "ones", "largest", "data")

_TIE = 1e-6  # entries of a unit vector that count as equally large
_DECISIVE = 1e-3  # smaller numbers do not decide a sign
_MIN_SKETCH = 100  # numbers; the inner products of shorter sketches are mostly noise

_MAX_COMPONENTS = 10_000  # or values
_MAX_NORM = 1e9
_MIN_HALF = 10  # rows that a reported number stands for


def orient(v: Tensor, rule: str, z: Tensor, num_inputs: int) -> Tensor:
    """Return v or -v, the same for both, for a unit direction v (columns,) of centred z (rows, columns).

    `ones` makes the cosine of the first `num_inputs` columns, the inputs, with all ones positive. `data` points where
    most rows and columns are. `largest`, and either rule if its indicator is nearly 0, makes the largest entry
    positive.
    """
    if rule == "ones":
        return fix_sign(v, v[:num_inputs].sum() / num_inputs**0.5)
    if rule == "data":
        return fix_sign(v, _data_indicator(v, z))
    return fix_sign(v, v.new_zeros(()))


def fix_sign(v: Tensor, indicator: Tensor) -> Tensor:
    """Return v or -v, the same for both, for a unit vector v (length,) and an indicator that changes sign with it.

    The sign makes the indicator positive. If it is nearly 0, the largest entry decides; if largest entries have both
    signs, the sum of all entries; if that is 0 too, the first of them.
    """
    if indicator.abs() >= _DECISIVE:
        return v * indicator.sign()
    largest = v[v.abs() >= v.abs().max() - _TIE]
    if not bool((largest.sign() == largest[0].sign()).all()) and v.sum().abs() > _TIE:
        return v * v.sum().sign()
    return v * largest[0].sign()


def unsigned_vector(directions: Tensor, values: Tensor, length: int) -> Tensor:
    """Return the sum of λ v vᵀ as a unit vector (length,), see `unsigned_length`; zeros without directions.

    It is the covariance as far as the directions determine it, and depends on no sign, nor on the basis of equal
    eigenvalues. With few columns its entries are returned. With many it is a sketch by a public map, equal for every
    client, such that the inner product of two sketches is on average their cosine. For one direction each that is the
    square of the directions' cosine. directions: (k, columns), orthonormal; values: (k,) their eigenvalues.
    """
    columns = directions.shape[1]
    if not len(directions):
        return directions.new_zeros(length)
    if length == _entries(columns):
        row, column = torch.triu_indices(columns, columns)
        vector = (directions.T @ (values[:, None] * directions))[row, column]
        vector = torch.where(row == column, vector, vector * 2**0.5)  # each represents two entries
    else:
        vector = directions.new_zeros(length)
        for v, value in zip(directions, values, strict=True):  # one at a time: a sketch's buffers grow with its input
            vector += value / values[0] * torch.from_numpy(_sketch(columns, length).transform(v[None].numpy())[0])
    norm = vector.norm()
    return vector / torch.where(norm > 0, norm, 1.0)


def unsigned_length(columns: int, components: int) -> int:
    """Return the length of `unsigned_vector`: that of signed directions, at least 100, at most the number of entries."""
    return min(_entries(columns), max(_MIN_SKETCH, components * columns))


def _entries(columns: int) -> int:
    """Return the number of entries of a symmetric matrix on and above the diagonal."""
    return columns * (columns + 1) // 2


def unsigned_cosine(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> float:
    """Return the root of the cosine of the `unsigned_vector` of two sets of directions and eigenvalues.

    A set is (k, columns) directions and (k,) eigenvalues. The root is in [0, 1], and 0 if one set is empty. For one
    direction each it is their cosine without its sign.
    """
    (directions, values), (others, other_values) = first, second
    if not len(values) or not len(other_values):
        return 0.0
    inner = values @ (directions @ others.T) ** 2 @ other_values
    return float((inner / (values.norm() * other_values.norm())).sqrt())


def _data_indicator(v: Tensor, z: Tensor) -> Tensor:
    """Return the indicator of Bro, Acar and Kolda for rows and columns, over the squared singular value: -2 to 2.

    The larger of their two sums decides, which is the sign of both together.
    """
    scores = z @ v
    return (scores.sign() * scores**2).sum() / (scores**2).sum() + (v.sign() * v**2).sum()


@lru_cache(maxsize=8)
def _sketch(columns: int, length: int) -> "PolynomialCountSketch":
    from sklearn.kernel_approximation import PolynomialCountSketch

    return PolynomialCountSketch(degree=2, n_components=length, random_state=0).fit(torch.zeros(1, columns).numpy())


@dataclass(frozen=True)
class Loadings(Statistic):
    """The first principal directions of [flattened input, one-hot label].

    With `sign` `ones`, `largest` or `data`, each direction is a vector of a number for each feature and label column. With
    `free` all directions are combined into one vector that does not depend on signs. A direction has the Euclidean length
    `norm` or, without it, the root of its number of entries, so that entries have size 1. The combined vector is as long
    as that many directions concatenated. Directions that the rows lack are zeros, or missing from the combined vector.
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
