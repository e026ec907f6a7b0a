"""Define features of random tables: numbers of several shapes and categories, made from standard normal numbers.

`direction` draws how a margin is shifted; a strength of 0 shifts nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, stdtrit

SHAPES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "normal": lambda z: z,
    "uniform": lambda z: np.sqrt(12) * (ndtr(z) - 0.5),
    "skewed": lambda z: np.exp(0.8 * z),
    "heavy tails": lambda z: stdtrit(3, ndtr(z)),  # Student's t with three degrees of freedom
    "two humps": lambda z: z + 2 * np.tanh(2 * z),
}

MOST_CATEGORIES = 8


@dataclass(frozen=True)
class Number:
    """A number with one of SHAPES, scaled by `width` about its median, and then shifted by `added`."""

    shape: str
    added: float = 0.0
    width: float = 1.0

    @property
    def categories(self) -> int:
        """Return 0, since a number has no categories."""
        return 0

    def values(self, z: np.ndarray) -> np.ndarray:
        """Return the numbers of standard normal z, (rows,)."""
        middle = self._at(0.0)
        return middle + self.width * (SHAPES[self.shape](z) - middle) + self.added

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Return distances from the unshifted median, in halves of the width of the middle 68 %: (rows,)."""
        return (x - self._at(0.0)) / ((self._at(1.0) - self._at(-1.0)) / 2)

    def direction(self, rng: np.random.Generator) -> "Callable[[float], Number]":
        """Draw a shift of the location or of the width, with equal chances."""
        sign, wider = rng.choice([-1.0, 1.0]), rng.random() < 0.5
        if wider:
            return lambda strength: replace(self, width=self.width * np.exp(sign * strength))
        return lambda strength: replace(self, added=self.added + sign * strength)

    def _at(self, z: float) -> float:
        return float(SHAPES[self.shape](np.array(z)))


@dataclass(frozen=True)
class Codes:
    """Categories with the codes 1 to K and these shares."""

    shares: tuple[float, ...]

    @property
    def categories(self) -> int:
        """Return K."""
        return len(self.shares)

    def values(self, z: np.ndarray) -> np.ndarray:
        """Return the codes of standard normal z, (rows,)."""
        return 1.0 + np.searchsorted(np.cumsum(self.shares)[:-1], ndtr(z), side="right")

    def direction(self, rng: np.random.Generator) -> "Callable[[float], Codes]":
        """Draw which categories become more frequent, and which less."""
        pull = rng.normal(size=len(self.shares))
        return lambda strength: Codes(tilted(self.shares, strength * pull))


Margin = Number | Codes


def random_margin(rng: np.random.Generator, discrete: bool) -> Margin:
    """Draw two to MOST_CATEGORIES categories, none of them very rare, or a number of any shape."""
    if discrete:
        shares = rng.dirichlet(np.full(rng.integers(2, MOST_CATEGORIES + 1), 4.0))
        return Codes(tuple(shares.tolist()))
    return Number(str(rng.choice(list(SHAPES))))


def tilted(shares: tuple[float, ...] | np.ndarray, logs: np.ndarray) -> tuple[float, ...]:
    """Multiply shares by exp(logs), and normalise them."""
    weights = np.log(np.asarray(shares)) + logs
    weights = np.exp(weights - weights.max())
    return tuple((weights / weights.sum()).tolist())
