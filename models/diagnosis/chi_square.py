"""Chi-square tests of whether and how two clients' tables of bins and classes differ, for many tables at once.

A table is (..., 2, bins, classes): rows of client A and of client B in every bin and class. All tests return the
statistic and its degrees of freedom, (...); both are 0 for a hypothesis that cannot be tested.

`noise` is shaped like the table and holds the variance added to each count, which may then be negative. A difference
of shares is weighted cell by cell by its own variance, of the sample and of the noise. No common factor would do for
clients of two sizes, or for cells with few and many rows. Without noise the statistics are Pearson's.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import chdtrc

from models.diagnosis.client_summaries.client_summary import divide_or_zero

ChiSquare = tuple[np.ndarray, np.ndarray]


class Focused(NamedTuple):
    """The largest of `hypotheses` tests of single contrasts of a table: (...) each.

    Where there are no degrees of freedom, nothing was tested.
    """

    statistic: np.ndarray
    dof: np.ndarray
    hypotheses: np.ndarray

    @property
    def result(self) -> ChiSquare:
        """Return the statistic and its degrees of freedom."""
        return self.statistic, self.dof

    @property
    def p_value(self) -> np.ndarray:
        """Return the p-value over the hypotheses (Bonferroni)."""
        return np.minimum(p_value(self.result) * self.hypotheses, 1.0)


MIN_SIGNAL_TO_NOISE = 3.0
"""The least ratio of a number of rows to the deviation of its noise, for its shares to be compared."""

_SWEEPS = 60
_ZERO = 1e-9  # rows
_TOLERANCE = 1e-6  # of the rows: the difference of margins at which fitting stops


def pearson(counts: np.ndarray, noise: np.ndarray | None = None) -> ChiSquare:
    """Test whether both rows of (..., 2, columns) have one distribution: Pearson's X² without columns empty in both."""
    if noise is not None:
        return _noisy_shares(counts, noise)
    row, column = counts.sum(-1, keepdims=True), counts.sum(-2, keepdims=True)
    expected = np.divide(row * column, row.sum(-2, keepdims=True), out=np.zeros_like(counts), where=column > 0)
    squares = np.divide((counts - expected) ** 2, expected, out=np.zeros_like(counts), where=expected > 0)
    columns = (column[..., 0, :] > 0).sum(-1)
    testable = (columns > 1) & (row[..., 0] > 0).all(-1)
    return np.where(testable, squares.sum((-2, -1)), 0.0), np.where(testable, columns - 1, 0)


def compare_inputs(tables: np.ndarray, noise: np.ndarray | None = None) -> ChiSquare:
    """Test whether P(X) is equal."""
    return pearson(tables.sum(-1), None if noise is None else noise.sum(-1))


def compare_inputs_in_classes(tables: np.ndarray, noise: np.ndarray | None = None) -> ChiSquare:
    """Test whether P(X | Y) is equal: the sum over classes."""
    return _summed(tables, noise, -1)


def compare_classes_given_inputs(tables: np.ndarray, noise: np.ndarray | None = None) -> ChiSquare:
    """Test whether P(Y | X) is equal: the sum over bins."""
    return _summed(tables, noise, -2)


def focus_on_inputs_in_classes(tables: np.ndarray, numeric: np.ndarray) -> Focused:
    """Test P(X | Y) in one respect: the mean rank of a number, or the share of each category, summed over classes.

    A difference in one respect alone is found in far fewer rows than by a test of all cells.

    Args:
        tables: Counts without noise, (pairs, features, 2, cells, classes); the last cell is of missing values.
        numeric: Whether a feature is a number, (features,) bool; it is a category otherwise.
    """
    rank = _ranks(tables)[..., None]
    with_value = tables * (np.arange(tables.shape[-2]) < tables.shape[-2] - 1)[:, None]
    rows, both = with_value.sum(-2), with_value.sum(-3)
    mean = divide_or_zero((with_value * rank[..., None, :, :]).sum(-2), rows)
    of_both = divide_or_zero((both * rank).sum(-2), both.sum(-2))
    variance = divide_or_zero((both * (rank - of_both[..., None, :]) ** 2).sum(-2), both.sum(-2))
    variance = variance * divide_or_zero(1.0, rows).sum(-2)
    compared = (rows > 0).all(-2) & (variance > _ROUNDING)  # not where all rows of a class are in one cell
    trend = np.where(compared, divide_or_zero((mean[..., 0, :] - mean[..., 1, :]) ** 2, variance), 0.0).sum(-1)
    rows, both = tables.sum(-2), tables.sum(-3)
    share = divide_or_zero(tables, rows[..., None, :])
    pooled = divide_or_zero(both, both.sum(-2, keepdims=True))
    variance = pooled * (1 - pooled) * divide_or_zero(1.0, rows).sum(-2)[..., None, :]
    in_both = (rows > 0).all(-2)
    squares = divide_or_zero((share[..., 0, :, :] - share[..., 1, :, :]) ** 2, variance)
    enough = both.sum(-1) * 2 * _smaller_share(tables) >= _LEAST_OF_CELL
    cells = np.where(in_both[..., None, :], squares, 0.0).sum(-1) * enough
    dof = np.where(numeric, compared.sum(-1), in_both.sum(-1))
    return _focused(np.where(numeric, trend, cells.max(-1)), dof, numeric, both.sum(-1) > 0, 1)


def focus_on_odds_ratios(tables: np.ndarray, expected: np.ndarray, numeric: np.ndarray) -> Focused:
    """Test odds ratios in one respect, by score tests: their trend over a number's ranks, or one category against the rest.

    With more than two classes, each class is tested against the rest.

    Args:
        tables: As for `focus_on_inputs_in_classes`.
        expected: The counts at equal odds ratios, as `fit_margins` returns them.
        numeric: As for `focus_on_inputs_in_classes`.
    """
    rest = expected.sum(-1, keepdims=True) - expected
    possible = ((expected > _ZERO) & (rest > _ZERO)).all(-3)
    inverse = (divide_or_zero(1.0, expected) + divide_or_zero(1.0, rest)).sum(-3)
    variance = np.where(possible, divide_or_zero(1.0, inverse), 0.0)
    residual = np.where(possible, (tables - expected)[..., 0, :, :], 0.0)
    rank = _ranks(tables)[..., None]
    has_value = (np.arange(tables.shape[-2]) < tables.shape[-2] - 1)[:, None]
    weight = variance * has_value
    deviation = rank - divide_or_zero((weight * rank).sum(-2), weight.sum(-2))[..., None, :]
    score = (deviation * residual * has_value).sum(-2)
    trend = divide_or_zero(score**2, (weight * deviation**2).sum(-2))
    of_cell = divide_or_zero(variance, variance.sum(-2, keepdims=True))
    remaining = variance * (1 - of_cell)
    squares = divide_or_zero((residual - of_cell * residual.sum(-2, keepdims=True)) ** 2, remaining)
    least = np.maximum(MIN_EXPECTED * (1 - 2 * _smaller_share(tables)), _LEAST_VARIANCE)
    cells = np.where(remaining >= least[..., None], squares, 0.0)
    classes = (tables.sum((-3, -2)) > 0).sum(-1)
    statistic = np.where(numeric, trend.max(-1, initial=0.0), cells.max((-2, -1), initial=0.0))
    present: np.ndarray = np.any(variance > 0, axis=-1)
    return _focused(statistic, 1, numeric, present, np.where(classes > 2, classes, 1))


def _smaller_share(tables: np.ndarray) -> np.ndarray:
    """Return the smaller client's share of all rows: (..., 1), from (..., 2, cells, classes)."""
    rows = tables.sum((-2, -1))
    return divide_or_zero(rows.min(-1), rows.sum(-1))[..., None]


_ROUNDING = 1e-12  # of squared ranks, which are shares
# of a single category of clients of one size: the rows, and the variance of the rows in a class; with a smaller client more
_LEAST_OF_CELL, _LEAST_VARIANCE = 20, 0.5


def _focused(
    statistic: np.ndarray, dof: np.ndarray | int, numeric: np.ndarray, present: np.ndarray, times: np.ndarray | int
) -> Focused:
    """Leave out features of two cells, for which a single respect is the whole table; present: (..., cells) bool."""
    cells = present.sum(-1)
    tested = cells > 2
    hypotheses = np.where(numeric, 1, np.maximum(cells, 1)) * times
    return Focused(np.where(tested, statistic, 0.0), np.where(tested, dof, 0), hypotheses)


def _ranks(tables: np.ndarray) -> np.ndarray:
    """Return the mean rank of the rows of both clients in each cell, as a share; 0 of missing values: (..., cells)."""
    total = tables.sum((-3, -1))
    total[..., -1] = 0.0
    ranks = np.cumsum(total, -1) - total / 2
    ranks[..., -1] = 0.0
    return divide_or_zero(ranks, total.sum(-1, keepdims=True))


def compare_odds_ratios(
    tables: np.ndarray, noise: np.ndarray | None = None, expected: np.ndarray | None = None
) -> ChiSquare:
    """Test whether all odds ratios are equal: clients, X and Y have no three-way interaction.

    Expected counts have the three two-way margins, by iterative proportional fitting (Deming and Stephan 1940). `expected`
    may give them; otherwise they are fitted.
    """
    expected = fit_margins(tables) if expected is None else expected
    if noise is not None:
        return _noisy_odds(tables, noise, expected)
    margins = [tables.sum(axis, keepdims=True) for axis in (-1, -2, -3)]
    possible = expected > _ZERO
    squares = np.divide((tables - expected) ** 2, expected, out=np.zeros_like(tables), where=possible)
    clients, bins, classes = (
        np.count_nonzero(tables.sum(axes) > 0, axis=-1) for axes in ((-2, -1), (-3, -1), (-3, -2))
    )
    pairs = sum(
        np.count_nonzero(margin.squeeze(axis) > 0, axis=(-2, -1))
        for axis, margin in zip((-1, -2, -3), margins, strict=True)
    )
    dof = np.maximum(possible.sum((-3, -2, -1)) - pairs + clients + bins + classes - 1, 0)
    return np.where(dof > 0, squares.sum((-3, -2, -1)), 0.0), dof


def fit_margins(
    tables: np.ndarray, start: np.ndarray | None = None, margin_axes: tuple[int, ...] = (-1, -2, -3)
) -> np.ndarray:
    """Fit counts to margins of `tables`, (..., 2, bins, classes), by iterative proportional fitting.

    Margins below 0 count as 0. start: positive counts, by default even, which gives no three-way interaction;
    margin_axes: the axes summed in one margin each, by default the three two-way margins.
    """
    return sweep_margins(tables, start, margin_axes)[0]


def sweep_margins(
    tables: np.ndarray,
    start: np.ndarray | None = None,
    margin_axes: tuple[int, ...] = (-1, -2, -3),
    least_sweeps: int = 1,
) -> tuple[np.ndarray, int]:
    """Fit counts as `fit_margins` does, and return the number of sweeps, too: at least `least_sweeps` for all tables."""
    expected = np.where(tables.sum(-3, keepdims=True) > 0, 1.0, 0.0) * (
        np.ones_like(tables) if start is None else start
    )
    margins = [np.maximum(tables.sum(axis, keepdims=True), 0.0) for axis in margin_axes]
    # by the size of each table, so that a result does not depend on the other tables
    tolerance = _TOLERANCE * np.maximum(tables.sum((-3, -2, -1), keepdims=True), 1.0)
    for sweep in range(1, _SWEEPS + 1):
        changed = False
        for axis, margin in zip(margin_axes, margins, strict=True):
            current = expected.sum(axis, keepdims=True)
            changed |= bool((np.abs(current - margin) > tolerance).any())
            expected = expected * np.divide(margin, current, out=np.zeros_like(current), where=current > 0)
        if not changed and sweep >= least_sweeps:
            break
    return expected, sweep


def compare_inputs_at_prior(tables: np.ndarray, prior: np.ndarray, noise: np.ndarray | None = None) -> ChiSquare:
    """Test whether P(X) would be equal with class shares `prior`, (..., classes); 0 for a class that one client lacks."""
    rows = np.maximum(tables.sum(-2, keepdims=True), 0.0)
    within = divide_or_zero(tables, rows)
    counts = np.maximum(tables.sum(-3), 0.0)
    pooled = divide_or_zero(counts, counts.sum(-2, keepdims=True))
    share = (within * prior[..., None, None, :]).sum(-1)
    inverse_rows = divide_or_zero(1.0, rows[..., 0, :]).sum(-2)
    variance = (prior[..., None, :] ** 2 * pooled * (1 - pooled) * inverse_rows[..., None, :]).sum(-1)
    if noise is not None:
        weight = np.divide(prior[..., None, None, :], rows, out=np.zeros(rows.shape), where=rows > 0)
        variance = variance + (weight**2 * noise).sum((-3, -1))
    testable = variance > 0
    difference = share[..., 0, :] - share[..., 1, :]
    squares = np.divide(difference**2, variance, out=np.zeros_like(variance), where=testable)
    bins = testable.sum(-1)
    dof = np.maximum(bins - 1, 0)
    scale = np.divide(dof, bins, out=np.zeros(bins.shape), where=bins > 0)
    return squares.sum(-1) * scale, dof


def p_value(result: ChiSquare) -> np.ndarray:
    """Return the p-value, the probability of a statistic at least this large without a difference; 1 if not testable."""
    statistic, dof = result
    return np.where(dof > 0, chdtrc(np.maximum(dof, 1), statistic), 1.0)


MIN_EXPECTED = 4.0
"""Rows expected of a cell at a client much smaller than the other, below which the cell is pooled."""


def pool_rare(counts: np.ndarray) -> np.ndarray:
    """Add rare columns of (..., 2, columns) to one of them, or to the most frequent if all together are rare.

    A row of the smaller client in a rare column would count as much as many others. Rare are columns of which it is
    expected to have fewer than MIN_EXPECTED (1 - 2 s) rows, where s is its share of all rows: none of equal clients,
    whose single rows count little; and no column of average size, so that two columns are left. The shape is kept.
    """
    rows, column = counts.sum(-1, keepdims=True), counts.sum(-2, keepdims=True)
    smaller_share = divide_or_zero(rows.min(-2, keepdims=True), rows.sum(-2, keepdims=True))
    average = divide_or_zero(column.sum(-1, keepdims=True), (column > 0).sum(-1, keepdims=True)) * smaller_share
    min_expected = np.minimum(MIN_EXPECTED * (1 - 2 * smaller_share), average)
    rare = (column > 0) & (column * smaller_share < min_expected)
    pooled = np.where(rare, counts, 0.0).sum(-1, keepdims=True)
    enough = (pooled.sum(-2, keepdims=True) * smaller_share >= min_expected)[..., 0]
    target = np.where(enough, rare.argmax(-1), column.argmax(-1))[..., None]
    return np.where(rare, 0.0, counts) + pooled * (np.arange(counts.shape[-1]) == target)


def effect_size(result: ChiSquare, rows: np.ndarray) -> np.ndarray:
    """Return the effect size φ, which does not depend on the number of rows; `rows` is n_A n_B / (n_A + n_B)."""
    statistic, dof = result
    return np.sqrt(np.maximum(statistic - dof, 0) / np.maximum(rows, 1))


def _summed(tables: np.ndarray, noise: np.ndarray | None, axis: int) -> ChiSquare:
    """Apply `pearson` to each part along an axis, and sum."""
    moved_noise = None if noise is None else np.moveaxis(noise, axis, -3)
    statistic, dof = pearson(np.moveaxis(tables, axis, -3), moved_noise)
    return statistic.sum(-1), dof.sum(-1)


def _noisy_shares(counts: np.ndarray, noise: np.ndarray) -> ChiSquare:
    """Test the difference of shares without the factor due to noise in a client's rows; both (..., 2, columns)."""
    rows = counts.sum(-1, keepdims=True)
    testable = (rows > MIN_SIGNAL_TO_NOISE * np.sqrt(noise.sum(-1, keepdims=True))).all(-2)
    rows = np.where(testable[..., None], rows, 1.0)
    column = np.maximum(counts.sum(-2), 0.0)
    pooled = column / rows.sum(-2)
    variance = pooled * (1 / rows).sum(-2) + (noise / rows**2).sum(-2)
    used = variance > 0
    weight = np.divide(1.0, variance, out=np.zeros_like(variance), where=used)
    shares = counts / rows
    difference = shares[..., 0, :] - shares[..., 1, :]
    scale = (weight * pooled**2).sum(-1)
    factor = np.divide((weight * difference * pooled).sum(-1) ** 2, scale, out=np.zeros_like(scale), where=scale > 0)
    dof = np.where(testable[..., 0], np.maximum(used.sum(-1) - 1, 0), 0)
    return np.where(dof > 0, np.maximum((weight * difference**2).sum(-1) - factor, 0.0), 0.0), dof


def _noisy_odds(tables: np.ndarray, noise: np.ndarray, expected: np.ndarray) -> ChiSquare:
    """Test the log odds between clients that a term per bin and a term per class leave, by least squares."""
    first, second = expected[..., 0, :, :], expected[..., 1, :, :]
    both = np.where((first > _ZERO) & (second > _ZERO), first + second, np.inf)
    sampling_variance = first * second / both
    residual = tables - expected
    difference = (residual[..., 0, :, :] * second - residual[..., 1, :, :] * first) / both
    variance = sampling_variance + (noise[..., 0, :, :] * second**2 + noise[..., 1, :, :] * first**2) / both**2
    weight = np.divide(1.0, variance, out=np.zeros_like(variance), where=sampling_variance > 0)
    squares = sampling_variance**2 * weight
    bins, classes = (total[..., None] * np.eye(total.shape[-1]) for total in (squares.sum(-1), squares.sum(-2)))
    normal = np.block([[bins, squares], [np.swapaxes(squares, -1, -2), classes]])
    mixed = sampling_variance * difference * weight
    sums = np.concatenate([mixed.sum(-1), mixed.sum(-2)], -1)
    explained = np.einsum("...i,...ij,...j->...", sums, np.linalg.pinv(normal, hermitian=True), sums)
    used = sampling_variance > 0
    dof = np.maximum(used.sum((-2, -1)) - used.any(-1).sum(-1) - used.any(-2).sum(-1) + 1, 0)
    return np.where(dof > 0, np.maximum((weight * difference**2).sum((-2, -1)) - explained, 0.0), 0.0), dof
