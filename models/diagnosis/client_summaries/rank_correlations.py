"""Rank correlations of pairs of features by class, and far values, which a client reports besides its counts.

Ranks do not depend on units, bounds or single values. One number of a pair and class stands for all its rows, unless a
feature has one value in nearly all of them: its correlations would give the ranks of the few others, and are left out.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from models.diagnosis.client_summaries.client_summary import (
    ANY_ROWS,
    LEAST_ROWS,
    Columns,
    Layout,
    Summaries,
    overall_moments,
)
from models.diagnosis.client_summaries.common_cells import spread_counts
from models.diagnosis.client_summaries.least_cells import pairs_show_cells
from models.diagnosis.client_summaries.query import Query

MOST_FEATURES = 16
"""Features whose pairs are compared; the correlations then take less room than the counts."""

LEAST_PAIR_ROWS = 30
"""Distinct rows of a class, with a value of both features, that a reported correlation stands for. A client may set more."""


@dataclass(frozen=True, eq=False)
class PairQuery:
    """The query of correlations: by the columns of `query`, for pairs of `features`, ascending indices."""

    query: Query
    features: tuple[int, ...]

    @cached_property
    def id(self) -> str:
        """Identify the requested numbers."""
        return hashlib.sha256(f"{self.query.id} {self.features}".encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Correlations:
    """Correlations of pairs of features, by client; the last column is of all rows of the classes reported here.

    features: (selected,) indices of the features, whose pairs are in the order of `index_pairs`; values, variances:
    (clients, pairs, classes + 1) correlations and the squares of their standard errors, NaN if not reported.
    """

    features: np.ndarray
    values: np.ndarray
    variances: np.ndarray

    def take(self, clients: Sequence[int] | np.ndarray) -> "Correlations":
        """Select clients by index."""
        return Correlations(self.features, self.values[clients], self.variances[clients])


def concatenate_correlations(parts: Sequence[Correlations]) -> Correlations:
    """Concatenate along the client axis."""
    arrays = (np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Correlations)[1:])
    return Correlations(parts[0].features, *arrays)


def combine_correlations(
    correlations: Correlations, rows: np.ndarray, groups: Sequence[Sequence[int]] | None = None
) -> Correlations:
    """Combine the clients of each group, or for each client all others, by the mean weighted with their rows.

    rows: (clients, classes + 1), those of all classes last.
    """
    weight = np.where(np.isfinite(correlations.variances), rows[:, None], 0.0)
    terms = (weight, weight * np.nan_to_num(correlations.values), weight**2 * np.nan_to_num(correlations.variances))
    total, values, variances = (
        part.sum(0) - part if groups is None else np.stack([part[list(group)].sum(0) for group in groups])
        for part in terms
    )
    known = total > 0.5  # rows; less is what subtraction leaves
    total = np.where(known, total, 1.0)
    return Correlations(
        correlations.features,
        np.where(known, np.clip(values / total, -1.0, 1.0), np.nan),
        np.where(known, np.maximum(variances, 0.0) / total**2, np.nan),
    )


def index_pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the first and second feature of all count (count - 1) / 2 pairs."""
    return np.triu_indices(count, 1)


def select_features(summaries: Summaries, layout: Layout, differing: np.ndarray) -> np.ndarray:
    """Select the features whose pairs are compared, by their importance for labels or for differences: ascending indices.

    A constant feature has no correlation. differing: (features,) the largest φ of each feature over pairs of clients.
    """
    table = np.maximum(spread_counts(summaries, layout)[..., :-1].sum(0), 0.0)
    rows = table.sum((1, 2), keepdims=True)
    expected = table.sum(1, keepdims=True) * table.sum(2, keepdims=True) / np.maximum(rows, 1)
    squares = np.divide((table - expected) ** 2, expected, out=np.zeros_like(table), where=expected > 0)
    association = np.sqrt(squares.sum((1, 2)) / np.maximum(rows[:, 0, 0], 1))
    varies = np.nan_to_num(overall_moments(summaries)[:, 2]) > 0
    importance = np.where(varies, np.maximum(association, differing), -1.0)
    return np.sort(np.argsort(-importance, kind="stable")[: min(MOST_FEATURES, int(varies.sum()))])


def positions(x: np.ndarray, layout: Layout, features: np.ndarray) -> np.ndarray:
    """Return values, of categories their positions in the agreed order: (rows, selected), NaN if missing."""
    return layout.encode_categories(x)[:, features]


def correlate_features(
    x: np.ndarray,
    columns: Columns,
    row_ids: np.ndarray,
    layout: Layout,
    features: np.ndarray,
    least_rows: int = LEAST_ROWS,
    least_cell: int = ANY_ROWS,
) -> Correlations:
    """Return the correlations of one client, with a leading axis of 1; arguments as in `summarize`.

    least_cell: as in `pairs_show_cells`; pairs of features of few values that would show a cell have none.
    """
    values, (first, second) = positions(x, layout, features), index_pairs(len(features))
    shape = (1, len(first), layout.classes + 1)
    result = Correlations(features, np.full(shape, np.nan), np.full(shape, np.nan))
    used = np.zeros(len(x), bool)
    for label in range(layout.classes):
        rows = (columns.index == label) & columns.separate[label] & columns.reported
        if len(np.unique(row_ids[rows])) >= max(LEAST_PAIR_ROWS, least_rows):
            used |= rows
            _fill(result, label, values[rows], row_ids[rows], first, second, least_rows)
    if used.any():
        _fill(result, layout.classes, values[used], row_ids[used], first, second, least_rows)
    shown = pairs_show_cells(values[used], columns.index[used], row_ids[used], layout.classes + 1, least_cell)
    result.values[:, shown[first, second]] = result.variances[:, shown[first, second]] = np.nan
    return result


def _fill(
    result: Correlations,
    column: int,
    x: np.ndarray,
    row_ids: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    least_rows: int,
) -> None:
    missing = np.isnan(x)
    varied = _varied(x, row_ids, least_rows) | missing.any(0)
    complete = ~(missing.any(0)[first] | missing.any(0)[second])
    several = varied[first] & varied[second]
    complete, incomplete = complete & several, ~complete & several
    if complete.any():
        values, variances = rank_correlations(np.where(missing.any(0), 0.0, x))
        result.values[0, complete, column] = values[first, second][complete]
        result.variances[0, complete, column] = variances[first, second][complete]
    for pair in np.flatnonzero(incomplete).tolist():
        both = ~(missing[:, first[pair]] | missing[:, second[pair]])
        of_both = x[both][:, [first[pair], second[pair]]]
        enough = len(np.unique(row_ids[both])) >= max(LEAST_PAIR_ROWS, least_rows)
        if enough and _varied(of_both, row_ids[both], least_rows).all():
            values, variances = rank_correlations(of_both)
            result.values[0, pair, column], result.variances[0, pair, column] = values[0, 1], variances[0, 1]


def _varied(x: np.ndarray, row_ids: np.ndarray, least_rows: int) -> np.ndarray:
    """Return which columns have `least_rows` different rows or more without the most frequent value: (columns,) bool."""
    varied = np.zeros(x.shape[1], bool)
    for column, values in enumerate(x.T):
        distinct, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
        others = codes.ravel() != counts.argmax() if len(distinct) else np.zeros(0, bool)
        varied[column] = len(np.unique(row_ids[others])) >= least_rows
    return varied


def rank_correlations(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Spearman's correlations and their variances, (features, features) each; NaN for constants.

    The variances are those of Pearson's correlation of ranks, by influence functions.
    """
    from scipy.stats import rankdata

    ranks = np.asarray(rankdata(x, axis=0), np.float64)
    rows, centred = len(x), ranks - ranks.mean(0)
    deviation = np.sqrt((centred**2).mean(0))
    z = centred / np.where(deviation > 0, deviation, np.nan)
    squares, fourth = z**2, (z**4).mean(0)
    r, q22, q31 = z.T @ z / rows, squares.T @ squares / rows, (z * squares).T @ z / rows
    variance = q22 - r * (q31 + q31.T) + r**2 / 4 * (fourth[:, None] + fourth + 2 * q22)
    return r, np.maximum(variance, 0.0) / rows


_MAIN_SHARE = 0.7  # of values, which far values are far from
_MAIN_VALUES = 10  # different values that have a spread
_GAP, _LARGE_GAP = 1.0, 20.0  # in ranges of the main values
_FAR_SHARE = 0.01  # of values, below which the gap has to be large


def count_far_values(x: np.ndarray) -> np.ndarray:
    """Count each feature's values that lie far below and far above the others: (features, 2) int64.

    Far values are separated from the main values by a gap as wide as the range of those, such as a code of -999. Fewer
    than a hundredth of the values must be twenty times as far, such as a number typed with three zeros too many.
    """
    low, high = far_bounds(x)
    return np.stack([(x < low).sum(0), (x > high).sum(0)], -1)


def clip_far_values(x: np.ndarray) -> np.ndarray:
    """Replace far values by values near the others: (rows, features), so that means and deviations describe the others.

    They are rounded outwards, to eighths of a power of two: the sum of replaced values would otherwise be a multiple of
    the largest other value, which belongs to one row.
    """
    low, high = far_bounds(x)
    far = np.isfinite(low) | np.isfinite(high)
    values = x[:, far]
    others = np.where((values < low[far]) | (values > high[far]), np.nan, values)
    step = 2.0 ** np.ceil(np.log2(np.nanmax(others, 0) - np.nanmin(others, 0))) / 8
    low[far], high[far] = np.floor(low[far] / step) * step, np.ceil(high[far] / step) * step
    return np.clip(x, low, high)


def far_bounds(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest value of each feature that is not far, (features,) each; infinite if none is far."""
    low, high = np.full(x.shape[1], -np.inf), np.full(x.shape[1], np.inf)
    for feature in range(x.shape[1]):
        values = np.sort(x[~np.isnan(x[:, feature]), feature])
        above = _count_above(values)
        below = _count_above(-values[::-1][above:])
        above = _count_above(values[below:])  # once more, without those far below
        if above:
            high[feature] = values[-above - 1]
        if below:
            low[feature] = values[below]
    return low, high


def _count_above(values: np.ndarray) -> int:
    """Count the far values at the upper end of sorted values, (values,)."""
    start = int(_MAIN_SHARE * len(values))
    if start < _MAIN_VALUES:
        return 0
    gaps = np.diff(values[start:])
    ranges = values[start:-1] - values[0]
    counts = np.arange(len(gaps), 0, -1)
    needed = np.where(counts >= _FAR_SHARE * len(values), _GAP, _LARGE_GAP)
    far = np.flatnonzero((gaps >= needed * ranges) & (ranges > 0))
    if not len(far) or len(np.unique(values[: start + far[0] + 1])) < _MAIN_VALUES:
        return 0
    return int(counts[far[0]])
