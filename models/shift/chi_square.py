"""Chi-square tests of whether two clients' tables of bins and classes differ, and by what; many tables at once.

A table is (..., 2, bins, classes): rows of client A and of client B in every bin and class. All tests answer the statistic
and its degrees of freedom, (...); a hypothesis that cannot be tested has 0 of both.

noise: as the table, the variance of what was added to each count, which may then be negative. A difference of shares is
weighed by its own variance, the sample's and the noise's, cell by cell: with clients of two sizes, and cells of few and of
many rows, no one factor is right. Without noise these are Pearson's statistics.
"""

import numpy as np
from scipy.special import chdtrc

Tested = tuple[np.ndarray, np.ndarray]

AUDIBLE = 3.0
"""Deviations of the noise in it, that a number of rows has to have for shares of it to be compared."""

_SWEEPS = 60
_NONE = 1e-9  # rows
_CLOSE = 1e-6  # of the rows: margins that agree so well are fitted


def pearson(counts: np.ndarray, noise: np.ndarray | None = None) -> Tested:
    """Whether both rows of (..., 2, columns) are drawn alike: Pearson's X² without columns that are empty in both."""
    if noise is not None:
        return _noisy_shares(counts, noise)
    row, column = counts.sum(-1, keepdims=True), counts.sum(-2, keepdims=True)
    expected = np.divide(row * column, row.sum(-2, keepdims=True), out=np.zeros_like(counts), where=column > 0)
    squares = np.divide((counts - expected) ** 2, expected, out=np.zeros_like(counts), where=expected > 0)
    columns = (column[..., 0, :] > 0).sum(-1)
    there = (columns > 1) & (row[..., 0] > 0).all(-1)
    return np.where(there, squares.sum((-2, -1)), 0.0), np.where(there, columns - 1, 0)


def of_bins(tables: np.ndarray, noise: np.ndarray | None = None) -> Tested:
    """P(X) is equal."""
    return pearson(tables.sum(-1), None if noise is None else noise.sum(-1))


def of_bins_in_classes(tables: np.ndarray, noise: np.ndarray | None = None) -> Tested:
    """P(X | Y) is equal: the sum over classes."""
    return _summed(tables, noise, -1)


def of_classes_in_bins(tables: np.ndarray, noise: np.ndarray | None = None) -> Tested:
    """P(Y | X) is equal: the sum over bins."""
    return _summed(tables, noise, -2)


def homogeneous(tables: np.ndarray, noise: np.ndarray | None = None) -> Tested:
    """X and Y depend on each other alike: no interaction of all three, all odds ratios are equal.

    The expected counts have the three margins of two, by iterative proportional fitting (Deming and Stephan 1940).
    """
    expected = fitted(tables)
    if noise is not None:
        return _noisy_odds(tables, noise, expected)
    margins = [tables.sum(axis, keepdims=True) for axis in (-1, -2, -3)]
    there = expected > _NONE
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


def fitted(tables: np.ndarray, start: np.ndarray | None = None, summed: tuple[int, ...] = (-1, -2, -3)) -> np.ndarray:
    """Counts with these margins of the tables, as far as they are above none, and else as the start has them.

    summed: the axes of which each is added up in one margin, by default in those of two. start: as tables, above none; by
    default even, so that there is no interaction of all three.
    """
    expected = np.where(tables.sum(-3, keepdims=True) > 0, 1.0, 0.0) * (
        np.ones_like(tables) if start is None else start
    )
    margins = [np.maximum(tables.sum(axis, keepdims=True), 0.0) for axis in summed]
    close = _CLOSE * np.maximum(
        tables.sum((-3, -2, -1), keepdims=True), 1.0
    )  # each by its own size, whoever is beside it
    for _ in range(_SWEEPS):
        far = False
        for axis, margin in zip(summed, margins, strict=True):
            now = expected.sum(axis, keepdims=True)
            far |= bool((np.abs(now - margin) > close).any())
            expected = expected * np.divide(margin, now, out=np.zeros_like(now), where=now > 0)
        if not far:
            break
    return expected


def of_bins_at_prior(tables: np.ndarray, prior: np.ndarray, noise: np.ndarray | None = None) -> Tested:
    """P(X) would be equal if both clients had these classes; prior: (..., classes), 0 for a class that one of them lacks."""
    held = np.maximum(tables.sum(-2, keepdims=True), 0.0)
    within = np.divide(tables, held, out=np.zeros_like(tables), where=held > 0)
    both = np.maximum(tables.sum(-3), 0.0)
    pooled = np.divide(
        both, both.sum(-2, keepdims=True), out=np.zeros_like(both), where=both.sum(-2, keepdims=True) > 0
    )
    share = (within * prior[..., None, None, :]).sum(-1)
    per_row = np.divide(1.0, held[..., 0, :], out=np.zeros_like(held[..., 0, :]), where=held[..., 0, :] > 0).sum(-2)
    variance = (prior[..., None, :] ** 2 * pooled * (1 - pooled) * per_row[..., None, :]).sum(-1)
    if noise is not None:
        weight = np.divide(prior[..., None, None, :], held, out=np.zeros(held.shape), where=held > 0)
        variance = variance + (weight**2 * noise).sum((-3, -1))
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


def _summed(tables: np.ndarray, noise: np.ndarray | None, axis: int) -> Tested:
    """`pearson` of each part along an axis, and their sum."""
    beside = None if noise is None else np.moveaxis(noise, axis, -3)
    statistic, free = pearson(np.moveaxis(tables, axis, -3), beside)
    return statistic.sum(-1), free.sum(-1)


def _noisy_shares(counts: np.ndarray, noise: np.ndarray) -> Tested:
    """The shares' difference, free of a factor that noise in the rows of a client makes; both (..., 2, columns)."""
    rows = counts.sum(-1, keepdims=True)
    there = (rows > AUDIBLE * np.sqrt(noise.sum(-1, keepdims=True))).all(-2)
    rows = np.where(there[..., None], rows, 1.0)
    column = np.maximum(counts.sum(-2), 0.0)
    pooled = column / rows.sum(-2)
    variance = pooled * (1 / rows).sum(-2) + (noise / rows**2).sum(-2)
    used = variance > 0
    weight = np.divide(1.0, variance, out=np.zeros_like(variance), where=used)
    shares = counts / rows
    apart = shares[..., 0, :] - shares[..., 1, :]
    scale = (weight * pooled**2).sum(-1)
    factor = np.divide((weight * apart * pooled).sum(-1) ** 2, scale, out=np.zeros_like(scale), where=scale > 0)
    free = np.where(there[..., 0], np.maximum(used.sum(-1) - 1, 0), 0)
    return np.where(free > 0, np.maximum((weight * apart**2).sum(-1) - factor, 0.0), 0.0), free


def _noisy_odds(tables: np.ndarray, noise: np.ndarray, expected: np.ndarray) -> Tested:
    """What is left of log odds between the clients beside a term of each bin and one of each class, by least squares."""
    first, second = expected[..., 0, :, :], expected[..., 1, :, :]
    both = np.where((first > _NONE) & (second > _NONE), first + second, np.inf)
    steady = first * second / both
    rest = tables - expected
    apart = (rest[..., 0, :, :] * second - rest[..., 1, :, :] * first) / both
    variance = steady + (noise[..., 0, :, :] * second**2 + noise[..., 1, :, :] * first**2) / both**2
    weight = np.divide(1.0, variance, out=np.zeros_like(variance), where=steady > 0)
    squares = steady**2 * weight
    bins, classes = (total[..., None] * np.eye(total.shape[-1]) for total in (squares.sum(-1), squares.sum(-2)))
    normal = np.block([[bins, squares], [np.swapaxes(squares, -1, -2), classes]])
    mixed = steady * apart * weight
    sums = np.concatenate([mixed.sum(-1), mixed.sum(-2)], -1)
    explained = np.einsum("...i,...ij,...j->...", sums, np.linalg.pinv(normal, hermitian=True), sums)
    used = steady > 0
    free = np.maximum(used.sum((-2, -1)) - used.any(-1).sum(-1) - used.any(-2).sum(-1) + 1, 0)
    return np.where(free > 0, np.maximum((weight * apart**2).sum((-2, -1)) - explained, 0.0), 0.0), free
