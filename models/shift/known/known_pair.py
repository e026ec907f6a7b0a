"""A pair of clients whose shift is known: what is drawn for every truth table."""

from dataclasses import dataclass, replace

import numpy as np

from models.shift.known.generators import Rows

Size = tuple[int, int]


@dataclass(frozen=True, eq=False)
class KnownPair:
    """Rows of both clients, and the types by which they truly differ; without any there is no shift.

    categories: (features,) K of a feature with the codes 1 to K and 0 of a numeric one; shifted: places of the features that
    carry the shift, where they are known; about: what a table may count pairs by.
    """

    clients: tuple[Rows, Rows]
    classes: int
    categories: np.ndarray
    truth: frozenset[str]
    shifted: tuple[int, ...] = ()
    about: tuple[str, ...] = ()

    def without_rows(self) -> "KnownPair":
        """What it was, for a table."""
        (x, y), (other_x, other_y) = self.clients
        return replace(self, clients=((x[:0], y[:0]), (other_x[:0], other_y[:0])))
