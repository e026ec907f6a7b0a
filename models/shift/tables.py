"""Chi-square tests of whether two clients' tables of bins and classes differ, and by what; many tables at once.

A table is (..., 2, bins, classes): rows of client A and of client B in every bin and class. All tests answer the statistic
and its degrees of freedom, (...); a hypothesis that cannot be tested has 0 of both.
"""

import numpy as np
from scipy.special import chdtrc

Tested = tuple[np.ndarray, np.ndarray]

_SWEEPS = 60
_CLOSE = 1e-6  # of the rows: margins that agree so well are fitted


def pearson(counts: np.ndarray) -> Tested:
    """Whether both rows of (..., 2, columns) are drawn alike: Pearson's X² without columns that are empty in both."""
    row, column = counts.sum(-1, keepdims=True), counts.sum(-2, keepdims=True)
    expected = np.divide(row * column, row.sum(-2, keepdims=True), out=np.zeros_like(counts), where=column > 0)
    squares = np.divide((counts - expected) ** 2, expected, out=np.zeros_like(counts), where=expected > 0)
    columns = (column[..., 0, :] > 0).sum(-1)
    there = (columns > 1) & (row[..., 0] > 0).all(-1)
    return np.where(there, squares.sum((-2, -1)), 0.0), np.where(there, columns - 1, 0)


def of_classes(tables: np.ndarray) -> Tested:
    """P(Y) is equal."""
    return pearson(tables.sum(-2))


def of_bins(tables: np.ndarray) -> Tested:
    """P(X) is equal."""
    return pearson(tables.sum(-1))


def of_bins_in_classes(tables: np.ndarray) -> Tested:
    """P(X | Y) is equal: the sum over classes."""
    statistic, free = pearson(np.moveaxis(tables, -1, -3))
    return statistic.sum(-1), free.sum(-1)


def of_classes_in_bins(tables: np.ndarray) -> Tested:
    """P(Y | X) is equal: the sum over bins."""
    statistic, free = pearson(np.moveaxis(tables, -2, -3))
    return statistic.sum(-1), free.sum(-1)


def homogeneous(tables: np.ndarray) -> Tested:
    """X and Y depend on each other alike: no interaction of all three, all odds ratios are equal.

    The expected counts have the three margins of two, by iterative proportional fitting (Deming and Stephan 1940).
    """
    expected = np.where(tables.sum(-3, keepdims=True) > 0, 1.0, 0.0) * np.ones_like(tables)
    margins = [tables.sum(axis, keepdims=True) for axis in (-1, -2, -3)]
    size = max(float(tables.sum((-3, -2, -1)).max(initial=0.0)), 1.0)
    for _ in range(_SWEEPS):
        apart = 0.0
        for axis, margin in zip((-1, -2, -3), margins, strict=True):
            now = expected.sum(axis, keepdims=True)
            apart = max(apart, float(np.abs(now - margin).max(initial=0.0)))
            expected = expected * np.divide(margin, now, out=np.zeros_like(now), where=now > 0)
        if apart < _CLOSE * size:
            break
    there = expected > 1e-9
    squares = np.divide((tables - expected) ** 2, expected, out=np.zeros_like(tables), where=there)
    clients, bins, classes = (
        np.count_nonzero(tables.sum(axes) > 0, axis=-1) for axes in ((-2, -1), (-3, -1), (-3, -2))
    )
    pairs = sum(
        np.count_nonzero(margin.squeeze(axis) > 0, axis=(-2, -1))
        for axis, margin in zip((-1, -2, -3), margins, strict=True)
    )
    free = np.maximum(there.sum((-3, -2, -1)) - pairs + clients + bins + classes - 1, 0)
    return np.where(free > 0, squares.sum((-3, -2, -1)), 0.0), free


def of_bins_at_prior(tables: np.ndarray, prior: np.ndarray) -> Tested:
    """P(X) would be equal if both clients had these classes; prior: (..., classes), 0 for a class that one of them lacks."""
    held = tables.sum(-2, keepdims=True)
    within = np.divide(tables, held, out=np.zeros_like(tables), where=held > 0)
    both = tables.sum(-3)
    pooled = np.divide(
        both, both.sum(-2, keepdims=True), out=np.zeros_like(both), where=both.sum(-2, keepdims=True) > 0
    )
    share = (within * prior[..., None, None, :]).sum(-1)
    per_row = np.divide(1.0, held[..., 0, :], out=np.zeros_like(held[..., 0, :]), where=held[..., 0, :] > 0).sum(-2)
    variance = (prior[..., None, :] ** 2 * pooled * (1 - pooled) * per_row[..., None, :]).sum(-1)
    there = variance > 0
    squares = np.divide((share[..., 0, :] - share[..., 1, :]) ** 2, variance, out=np.zeros_like(variance), where=there)
    bins = there.sum(-1)
    free = np.maximum(bins - 1, 0)
    scale = np.divide(free, bins, out=np.zeros(bins.shape), where=bins > 0)
    return squares.sum(-1) * scale, free


def chance(tested: Tested) -> np.ndarray:
    """The probability of such a statistic or a larger one where nothing differs; 1 where nothing could be tested."""
    statistic, free = tested
    return np.where(free > 0, chdtrc(np.maximum(free, 1), statistic), 1.0)


def effect(tested: Tested, rows: np.ndarray) -> np.ndarray:
    """φ: how large the difference is, whatever the rows; `rows` is n_A n_B / (n_A + n_B)."""
    statistic, free = tested
    return np.sqrt(np.maximum(statistic - free, 0) / np.maximum(rows, 1))
