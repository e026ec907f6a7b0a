"""Why nothing can be said of a pair, where nothing can."""

import numpy as np

from models.shift.class_moments import ROWS
from models.shift.pairs import Pairs
from models.shift.told.summaries import LEAST_ROWS
from models.shift.verdict import FEWEST

WHY = ("rows", "untold", "apart", "rough", "constant")
"""Too few rows; a client that may tell nothing of its rows; no class that both tell; none with as many rows as the verdict
needs; no feature that varies within such a class."""


def tells(pairs: Pairs) -> np.ndarray:
    """Whether each client tells more than its number of rows: (pairs, 2) bool."""
    return np.isfinite(pairs.moments[..., ROWS]).any((1, 3))


def why(pairs: Pairs, least: int = LEAST_ROWS) -> np.ndarray:
    """The first of WHY that holds, the last where none does, if a pair is undetermined: (pairs,) places.

    least: rows of a class that the verdict needs on both sides.
    """
    rows = np.nan_to_num(pairs.moments[..., :-1, ROWS]).min(2)
    most = rows.max((1, 2), initial=0)
    reasons = [(pairs.rows < FEWEST).any(-1), ~tells(pairs).all(-1), most < LEAST_ROWS, most < least]
    return np.select(reasons, range(len(reasons)), len(reasons))
