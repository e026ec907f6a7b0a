"""Fine bins that the schema agrees on, and those that a pair of clients is compared on."""

import numpy as np


def edges(low: float, high: float, bins: int) -> np.ndarray:
    """The inner edges of so many bins of equal width, of which the first and the last are open."""
    return np.linspace(low, high, bins + 1)[1:-1]


def merged(tables: np.ndarray, most: int = 10, deciding: slice = slice(None)) -> np.ndarray:
    """Neighbouring bins joined from the left until they hold a share 1 / most of the pair's rows; (..., 2, most, classes).

    tables: (..., 2, bins, classes), of which the classes `deciding` say how many rows there are. Bins that are not needed
    are empty.
    """
    into = joined_bins(tables[..., deciding].sum((-3, -1)), most)[..., None] == np.arange(most)
    return np.einsum("...cbm,...bk->...ckm", tables, into.astype(tables.dtype))


def joined_bins(rows: np.ndarray, most: int = 10) -> np.ndarray:
    """Which joined bin each is in, (..., bins) from 0, if these are their rows; a rest of less than half joins the last."""
    least = np.maximum(rows.sum(-1) / most, np.finfo(float).tiny)
    place = np.zeros(rows.shape, np.int64)
    current, held = np.zeros(least.shape, np.int64), np.zeros(least.shape)
    for at in range(rows.shape[-1]):
        place[..., at] = current
        held = held + rows[..., at]
        full = held >= least
        current, held = current + full, np.where(full, 0.0, held)
    rest = (held < least / 2) & (current > 0)
    place = np.where(rest[..., None] & (place == current[..., None]), current[..., None] - 1, place)
    return np.minimum(place, most - 1)
