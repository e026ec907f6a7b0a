"""Which of v and -v a principal direction is told as, and a form that is the same for both.

Every rule that picks one of the two jumps somewhere: no continuous function of a line through the origin tells its ends
apart. Where a law's direction lies near the jump its clients fall on either side, and few rows move far
(docs/statistics.md has the shares). `free` picks none: it tells vvᵀ, which v and -v share.

Sources: `data` is the rule of Bro, Acar and Kolda, "Resolving the sign ambiguity in the singular value decomposition",
Journal of Chemometrics 22(2), 135-140 (2008); the sketch is that of Pham and Pagh, "Fast and scalable polynomial kernels
via explicit feature maps", KDD 2013.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sklearn.kernel_approximation import PolynomialCountSketch

RULES = ("free", "ones", "largest", "data")

_TIE = 1e-6  # entries of a unit vector that are as large as each other
_SETTLED = 1e-3  # a number below this does not settle a sign
_FEWEST = 100  # numbers of a sketch: the inner products of shorter ones are mostly noise


def turned(v: Tensor, rule: str, z: Tensor, inputs: int) -> Tensor:
    """v or -v, the same for both: v a unit direction (columns,) of z (rows, columns), whose first `inputs` are inputs.

    z is centred. ones: the inputs' cosine with all ones is positive; data: the direction is where most of the rows and
    columns are; largest, and where those are nearly 0: the largest entry is positive.
    """
    if rule == "ones":
        return fix_sign(v, v[:inputs].sum() / inputs**0.5)
    if rule == "data":
        return fix_sign(v, _with_the_data(v, z))
    return fix_sign(v, v.new_zeros(()))


def fix_sign(v: Tensor, deciding: Tensor) -> Tensor:
    """v or -v, the same for both: v is a unit vector (length,), `deciding` a number of it that changes sign with it.

    So that the number is positive; where it is nearly 0, the largest entry; where entries of both signs are the largest,
    their sum with all others; where that is 0 too, the first of them.
    """
    if deciding.abs() >= _SETTLED:
        return v * deciding.sign()
    largest = v[v.abs() >= v.abs().max() - _TIE]
    if not bool((largest.sign() == largest[0].sign()).all()) and v.sum().abs() > _TIE:
        return v * v.sum().sign()
    return v * largest[0].sign()


def unsigned(directions: Tensor, values: Tensor, length: int) -> Tensor:
    """The sum of λ v vᵀ as a unit vector (length,), a number of `unsigned_length`; zeros where there is no direction.

    directions: (k, columns), orthonormal, and values: (k,) their eigenvalues. It is the covariance as far as the k
    directions tell it, which depends on no sign, and on no basis where eigenvalues are equal. Of few columns its entries
    are told, of many a sketch, by a public map that is the same for every client: then the inner product of two is on
    average their cosine. Of one direction each that is the square of the directions' own.
    """
    columns = directions.shape[1]
    if not len(directions):
        return directions.new_zeros(length)
    if length == _entries(columns):
        row, column = torch.triu_indices(columns, columns)
        told = (directions.T @ (values[:, None] * directions))[row, column]
        told = torch.where(row == column, told, told * 2**0.5)  # each stands for two
    else:
        told = directions.new_zeros(length)
        for v, value in zip(directions, values, strict=True):  # one at a time: a sketch's work is as long as all of it
            told += value / values[0] * torch.from_numpy(_sketch(columns, length).transform(v[None].numpy())[0])
    size = told.norm()
    return told / torch.where(size > 0, size, 1.0)


def unsigned_length(columns: int, components: int) -> int:
    """How many numbers it has: as many as signed directions, but 100 at least, and never more than there are entries."""
    return min(_entries(columns), max(_FEWEST, components * columns))


def _entries(columns: int) -> int:
    """Of a symmetric matrix on and above the diagonal."""
    return columns * (columns + 1) // 2


def unsigned_cosine(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> float:
    """Of two sets of directions (k, columns) with eigenvalues (k,), the root of the cosine of what `unsigned` tells.

    0 to 1; of one direction each, their cosine without its sign; 0 where one has no direction.
    """
    (directions, values), (others, weights) = one, other
    if not len(values) or not len(weights):
        return 0.0
    inner = values @ (directions @ others.T) ** 2 @ weights
    return float((inner / (values.norm() * weights.norm())).sqrt())


def _with_the_data(v: Tensor, z: Tensor) -> Tensor:
    """Bro, Acar and Kolda's number of a singular pair, rows and columns together, over its singular value squared: -2 to 2.

    Of the two sums they let the larger decide, which is the sign of both together.
    """
    scores = z @ v
    return (scores.sign() * scores**2).sum() / (scores**2).sum() + (v.sign() * v**2).sum()


@lru_cache(maxsize=8)
def _sketch(columns: int, length: int) -> "PolynomialCountSketch":
    from sklearn.kernel_approximation import PolynomialCountSketch

    return PolynomialCountSketch(degree=2, n_components=length, random_state=0).fit(torch.zeros(1, columns).numpy())
