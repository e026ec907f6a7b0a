"""Sign conventions of principal directions: which of v and -v is reported, and a form that is equal for both.

Every rule that picks one of the two is discontinuous, since no continuous function of a line through the origin
distinguishes its ends. If a distribution's direction lies near a discontinuity, its clients fall on either side, and
few rows move far (docs/statistics.md has the shares). `free` picks neither: it reports vvᵀ, which v and -v share.

Sources: `data` is the rule of Bro, Acar and Kolda, "Resolving the sign ambiguity in the singular value decomposition",
Journal of Chemometrics 22(2), 135-140 (2008); the sketch is that of Pham and Pagh, "Fast and scalable polynomial
kernels via explicit feature maps", KDD 2013.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sklearn.kernel_approximation import PolynomialCountSketch

RULES = ("free", "ones", "largest", "data")

_TIE = 1e-6  # entries of a unit vector that count as equally large
_DECISIVE = 1e-3  # smaller numbers do not decide a sign
_MIN_SKETCH = 100  # numbers; the inner products of shorter sketches are mostly noise


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
