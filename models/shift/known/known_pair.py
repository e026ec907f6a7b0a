"""A pair of clients whose shift is known: what is drawn for every truth table."""

from dataclasses import dataclass

import numpy as np

from models.shift.known.generators import Rows

Size = tuple[int, int]


@dataclass(frozen=True, eq=False)
class KnownPair:
    """Rows of both clients, and the types by which they truly differ; without any there is no shift.

    categories: (features,) K of a feature with the codes 1 to K and 0 of a numeric one; shifted: places of the features that
    carry the shift, where they are known; about: what a table may count pairs by; bounds: agreed ones of every number.
    """

    clients: tuple[Rows, Rows]
    classes: int
    categories: np.ndarray
    truth: frozenset[str]
    shifted: tuple[int, ...] = ()
    about: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
