"""Define laws of one feature and a class, from which pairs of clients with a known shift are drawn.

A law draws rows: x (rows, features), y (rows,) classes from 0 on. The order of its draws must stay, since published numbers
depend on these bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

Rows = tuple[np.ndarray, np.ndarray]
Law = Callable[[np.random.Generator, int], Rows]
Noise = Callable[[np.random.Generator, int], np.ndarray]  # (rows, features)


@dataclass(frozen=True)
class Normals:
    """Classes 0 and 1; X is normal given the class."""

    positive: float = 0.5
    means: tuple[float, float] = (-1.0, 1.0)
    sds: tuple[float, float] = (1.0, 1.0)

    def __call__(self, rng: np.random.Generator, rows: int) -> Rows:
        y = rng.random(rows) < self.positive
        ones, zeros = (rng.normal(self.means[place], self.sds[place], rows) for place in (1, 0))
        return np.where(y, ones, zeros)[:, None], y.astype(np.int64)


@dataclass(frozen=True)
class Logistic:
    """X is normal, and class 1 has the log odds intercept + slope · X."""

    mean: float = 0.0
    sd: float = 1.0
    intercept: float = 0.0
    slope: float = 2.0

    def __call__(self, rng: np.random.Generator, rows: int) -> Rows:
        x = rng.normal(self.mean, self.sd, rows)
        y = rng.random(rows) < expit(self.intercept + self.slope * x)
        return x[:, None], y.astype(np.int64)


@dataclass(frozen=True)
class Bump:
    """X is normal, and class 1 has the probability 0.95 within a distance of 0, and 0.05 elsewhere."""

    mean: float = 0.0
    within: float = 1.0

    def __call__(self, rng: np.random.Generator, rows: int) -> Rows:
        x = rng.normal(self.mean, 1.0, rows)
        y = rng.random(rows) < np.where(np.abs(x) < self.within, 0.95, 0.05)
        return x[:, None], y.astype(np.int64)


def with_outlier(law: Law, value: float = 100.0) -> Law:
    """Add one row of class 1 that is far away."""

    def draw(rng: np.random.Generator, rows: int) -> Rows:
        x, y = law(rng, rows)
        return np.append(x, [[value]], 0), np.append(y, 1)

    return draw


def drawn(
    first: Law, second: Law, rng: np.random.Generator, rows: tuple[int, int], noise: Noise | None = None
) -> tuple[Rows, Rows]:
    """Draw the rows of a pair of clients.

    Args:
        first: The law of the first client, whose rows are drawn first.
        second: The law of the second client.
        rng: The random stream.
        rows: The rows of each client.
        noise: Draws features that do not depend on the class, after the rows.
    """
    pair = first(rng, rows[0]), second(rng, rows[1])
    if noise is None:
        return pair
    (x, y), (other_x, other_y) = pair
    return (np.hstack([x, noise(rng, len(y))]), y), (np.hstack([other_x, noise(rng, len(other_y))]), other_y)


Size = tuple[int, int]


@dataclass(frozen=True, eq=False)
class KnownPair:
    """Rows of two clients, or of more clients that are alike, and the types of their shift.

    Attributes:
        clients: The rows of each client.
        classes: The number of classes.
        categories: (features,) K of a feature with the codes 1 to K, and 0 of a numeric feature.
        truth: The true types; empty if there is no shift.
        shifted: The indices of the features that carry the shift, if they are known.
        about: Properties by which a table may count pairs.
        bounds: Agreed bounds of all numeric features.
        units: By client the patient of every row, (rows,), if rows are not independent.
    """

    clients: tuple[Rows, ...]
    classes: int
    categories: np.ndarray
    truth: frozenset[str]
    shifted: tuple[int, ...] = ()
    about: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    units: tuple[np.ndarray, ...] | None = None
