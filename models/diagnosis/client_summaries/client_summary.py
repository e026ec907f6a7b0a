"""Summaries that a client reports of its rows, counts in agreed bins and moments by class, and bins merged for a pair."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np


def divide_or_zero(numerator: np.ndarray | float, denominator: np.ndarray) -> np.ndarray:
    """Divide, with 0 where the denominator is not positive; the shape is the numerator's unless that is a scalar."""
    out = np.zeros_like(denominator if np.isscalar(numerator) else numerator)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)


def inner_edges(low: float, high: float, bins: int) -> np.ndarray:
    """Return the inner edges of `bins` bins of equal width; the first and the last bin are open."""
    return np.linspace(low, high, bins + 1)[1:-1]


def merge_bins(tables: np.ndarray, max_bins: int = 10, counted: slice = slice(None)) -> np.ndarray:
    """Merge neighbouring bins from the left until each holds a share of 1 / `max_bins` of the pair's rows.

    tables: counts, (..., 2, bins, columns); the columns `counted` decide how many rows a bin has. Returns (..., 2,
    max_bins, columns); bins that are not needed are empty.
    """
    assignment = merged_bin_index(tables[..., counted].sum((-3, -1)), max_bins)[..., None] == np.arange(max_bins)
    return np.einsum("...cbm,...bk->...ckm", tables, assignment.astype(tables.dtype))


def merged_bin_index(rows: np.ndarray, max_bins: int = 10) -> np.ndarray:
    """Return the index of the merged bin of each fine bin, (..., bins), from the fine bins' rows.

    A last merged bin with less than half the required rows is merged with the one before it.
    """
    min_rows = np.maximum(rows.sum(-1) / max_bins, np.finfo(float).tiny)
    result = np.zeros(rows.shape, np.int64)
    current, rows_so_far = np.zeros(min_rows.shape, np.int64), np.zeros(min_rows.shape)
    for index in range(rows.shape[-1]):
        result[..., index] = current
        rows_so_far = rows_so_far + rows[..., index]
        full = rows_so_far >= min_rows
        current, rows_so_far = current + full, np.where(full, 0.0, rows_so_far)
    incomplete = (rows_so_far < min_rows / 2) & (current > 0)
    result = np.where(incomplete[..., None] & (result == current[..., None]), current[..., None] - 1, result)
    return np.minimum(result, max_bins - 1)


LEAST_ROWS = 10
"""Distinct rows of a class that each reported number stands for; smaller classes are pooled. A client may set more."""

ANY_ROWS = 1
"""The least rows of a cell if cells of single rows are counted."""

MOMENTS = ("rows", "mean", "deviation", "skewness", "kurtosis")


@dataclass(frozen=True, eq=False)
class Layout:
    """The features, bins and classes that all clients count by.

    The cells of a feature are its bins or categories, then one for other values, and last one for missing values.
    categories: the values of each feature in the agreed order, None for a numeric feature; low, high: (features,)
    bounds, between which lie `bins` bins of equal width, the first and last of them open; targets: inner edges of the
    groups that serve as classes in a regression; missing: for each feature whether a value may be missing; joined:
    whether bins were merged for all clients together, and are compared without further merging.
    """

    names: tuple[str, ...]
    categories: tuple[tuple[float, ...] | None, ...]
    low: np.ndarray
    high: np.ndarray
    bins: int
    classes: int
    targets: tuple[float, ...] = ()
    missing: tuple[bool, ...] = ()
    joined: bool = False

    @property
    def possible(self) -> np.ndarray:
        """Cells that a value can be in: (features, cells) bool."""
        used = [self.bins if values is None else len(values) + 1 for values in self.categories]
        possible = np.arange(self.cells) < np.array(used)[:, None]
        possible[:, -1] = self.missing or False
        return possible

    @property
    def cells(self) -> int:
        """Cells of the widest feature; other features have empty cells before the last."""
        return max([self.bins, *(len(values) + 1 for values in self.categories if values is not None)]) + 1

    @property
    def numeric(self) -> np.ndarray:
        """Which features are numeric: (features,) bool."""
        return np.array([values is None for values in self.categories])

    def classes_of(self, y: np.ndarray) -> np.ndarray:
        """Return the class of each row, or the group of its target: (rows,) int64."""
        if self.classes == 1:  # also a regression before groups of targets are agreed on
            return np.zeros(len(y), np.int64)
        if not self.targets:
            return y.astype(np.int64)
        return np.searchsorted(np.asarray(self.targets), y, side="right")

    def cells_of(self, x: np.ndarray) -> np.ndarray:
        """Return the cell of each value, (rows, features) int64; x: (rows, features) float64, NaN if missing."""
        cells = np.empty(x.shape, np.int64)
        for i, values in enumerate(self.categories):
            column = x[:, i]
            if values is None:
                cells[:, i] = np.searchsorted(inner_edges(self.low[i], self.high[i], self.bins), column, side="right")
            else:
                same = column[:, None] == np.asarray(values)
                cells[:, i] = np.where(same.any(1), same.argmax(1), len(values))
        return np.where(np.isnan(x), self.cells - 1, cells)

    def encode_categories(self, x: np.ndarray) -> np.ndarray:
        """Replace categories by their position in the agreed order, from 1 on; numeric values are unchanged.

        Values outside the agreed categories get the next code.
        """
        if self.numeric.all():
            return x
        codes = self.cells_of(x) + 1.0
        return np.where(self.numeric | np.isnan(x), x, codes)

    def counts(
        self, x: np.ndarray, column: np.ndarray, extra_columns: int = 0, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Count rows by cell and column: (features, cells, classes + extra_columns) float64.

        `column` holds the column of each row, (rows,) int64; `weights`, (rows,), count rows of one unit as one row.
        """
        features, width = x.shape[1], self.classes + extra_columns
        flat_index = (np.arange(features) * self.cells + self.cells_of(x)) * width + column[:, None]
        of_values = None if weights is None else np.repeat(weights, features)
        counts = np.bincount(flat_index.ravel(), of_values, minlength=features * self.cells * width)
        return counts.reshape(features, self.cells, width).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Summaries:
    """Reports of clients; each array has a leading client axis. The column after the classes pools small classes.

    rows: (clients,) numbers of training rows, or the `effective_rows` of units, whose weights all that follows then adds
    up; labels: (clients, classes) rows of each class, NaN if not reported
    separately; counts: (clients, features, cells, classes + 1); moments: (clients, features, classes + 1, 5), in the
    order of MOMENTS, NaN if not reported, the deviation with divisor n - 1; noise: the variance of the noise added to
    each count, shaped like `counts`, which may then be negative; None without noise; counted_in: (clients, features,
    cells), the cell in which a client counts the rows of each; None if all count each by itself.
    """

    rows: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    moments: np.ndarray
    noise: np.ndarray | None = None
    counted_in: np.ndarray | None = None

    def take(self, clients: Sequence[int] | np.ndarray) -> "Summaries":
        """Select clients by index."""
        present = (field.name for field in fields(self) if getattr(self, field.name) is not None)
        return Summaries(**{name: getattr(self, name)[clients] for name in present})


def concatenate_summaries(parts: Sequence[Summaries]) -> Summaries:
    """Concatenate summaries along the client axis."""
    if any(part.counted_in is not None for part in parts):
        parts = [replace(part, counted_in=own_cells(part)) for part in parts]
    if len(parts) == 1:
        return parts[0]
    present = (field.name for field in fields(Summaries) if getattr(parts[0], field.name) is not None)
    return Summaries(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in present})


def own_cells(summaries: Summaries) -> np.ndarray:
    """Return the cell in which a client counts each, also where none is merged: (clients, features, cells)."""
    shape = summaries.counts.shape[:3]
    own = np.broadcast_to(np.arange(shape[-1]), shape) if summaries.counted_in is None else summaries.counted_in
    return own.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Columns:
    """The column of counts of each row of a client: its class, or the pooled column after the classes.

    index: (rows,) int64; separate: (classes,) bool, with a column of their own; reported: (rows,) bool, rows reported
    at all.
    """

    index: np.ndarray
    separate: np.ndarray
    reported: np.ndarray


def assign_columns(y: np.ndarray, row_ids: np.ndarray, layout: Layout, least_rows: int = LEAST_ROWS) -> Columns:
    """Assign the rows of a client to columns so that every column stands for `least_rows` distinct rows.

    Smaller classes are pooled, and are not reported at all if the pool is too small. In a regression the smallest
    groups of targets are then added to the pool, so that all rows are reported or none. y: (rows,) class codes or
    targets; row_ids: (rows,) the index of each row among the client's distinct rows, or (rows, 2) with the index of its
    unit after it: then a column needs as many distinct units, too.
    """
    classes = layout.classes
    class_index = layout.classes_of(y)
    separate = _enough(class_index, row_ids, classes, least_rows)
    column = np.where(separate[class_index], class_index, classes)
    reported = _enough(column, row_ids, classes + 1, least_rows)
    while layout.targets and not reported[classes] and (column == classes).any() and separate.any():
        smallest = np.where(separate, np.bincount(class_index, minlength=classes), len(y) + 1).argmin()
        separate[smallest] = False
        column = np.where(separate[class_index], class_index, classes)
        reported = _enough(column, row_ids, classes + 1, least_rows)
    return Columns(column, separate, reported[column])


def summarize(
    x: np.ndarray,
    y: np.ndarray,
    row_ids: np.ndarray,
    layout: Layout,
    weights: np.ndarray | None = None,
    least_rows: int = LEAST_ROWS,
) -> Summaries:
    """Summarize the rows of one client, with a leading axis of 1.

    x: (rows, features) float64, NaN if missing; `y` and `row_ids` as for `assign_columns`. A column of a feature is
    left out if too few of its rows have a value. weights: (rows,), by which the rows of a unit count as one row.
    """
    classes, column = layout.classes, assign_columns(y, row_ids, layout, least_rows)
    labels = np.where(column.separate, np.bincount(column.index, weights, minlength=classes + 1)[:classes], np.nan)
    x, index, row_ids = x[column.reported], column.index[column.reported], row_ids[column.reported]
    total = np.array([len(y) if weights is None else round(weights.sum())])
    weights = None if weights is None else weights[column.reported]
    counts = layout.counts(x, index, 1, weights)
    moments = _moments(layout.encode_categories(x), index, classes + 1, weights)
    for feature, withheld in withheld_columns(x, index, row_ids, layout, least_rows):
        counts[feature][:, withheld] = 0
        moments[feature, withheld] = np.nan
    return Summaries(total, labels[None], counts[None], moments[None])


def withheld_columns(
    x: np.ndarray, column: np.ndarray, row_ids: np.ndarray, layout: Layout, least_rows: int = LEAST_ROWS
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield features with missing values, and their columns with values of too few distinct rows: (classes + 1,) bool.

    A column without any value is not withheld, since its missing values are all its rows. In a regression one such
    column withholds all: the difference from the total would reveal those few rows.
    """
    present = ~np.isnan(x)
    for feature in np.flatnonzero(~present.all(0)).tolist():
        with_value = column[present[:, feature]]
        withheld = ~_enough(with_value, row_ids[present[:, feature]], layout.classes + 1, least_rows)
        withheld &= np.isin(np.arange(len(withheld)), with_value)
        yield feature, withheld | (bool(layout.targets) and bool(withheld.any()))


_BATCH_BYTES = 2**18  # of moments that are combined at once, with about ten times as much in cache


def mixture(moments: np.ndarray) -> np.ndarray:
    """Combine moments of classes or clients over the axis before the last: (..., 5); NaN are left out."""
    step = max(1, _BATCH_BYTES // max(moments[0].nbytes, 1)) if moments.ndim > 2 and len(moments) else len(moments)
    if step < len(moments):
        return np.concatenate([mixture(moments[start : start + step]) for start in range(0, len(moments), step)])
    centre = _centre(moments)
    return from_power_sums(to_power_sums(moments, centre[..., None]).sum(-2), centre)


def overall_moments(summaries: Summaries) -> np.ndarray:
    """Return the moments of each feature over all reported rows of all clients: (features, 5)."""
    return mixture(mixture(summaries.moments).swapaxes(0, 1))


def to_power_sums(moments: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Return additive sums, (..., 5): rows, and powers 1 to 4 of the distance from `centre`; zeros for NaN."""
    present = ~np.isnan(moments).any(-1, keepdims=True)
    rows, mean, deviation, skewness, kurtosis = np.moveaxis(np.where(present, moments, 0.0), -1, 0)
    distance = np.where(present[..., 0], mean - centre, 0.0)
    second = np.divide(deviation**2 * (rows - 1), rows, out=np.zeros_like(rows), where=rows > 0)
    third, fourth = skewness * second**1.5, kurtosis * second**2
    return np.stack(
        [
            rows,
            rows * distance,
            rows * (second + distance**2),
            rows * (third + 3 * distance * second + distance**3),
            rows * (fourth + 4 * distance * third + 6 * distance**2 * second + distance**4),
        ],
        -1,
    )


def from_power_sums(sums: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Return the moments from the sums of `to_power_sums`, (..., 5).

    NaN with fewer than two rows; skewness 0 and kurtosis 3 without variation.
    """
    rows = sums[..., 0]
    first, second, third, fourth = np.moveaxis(sums[..., 1:] / np.maximum(rows, 1)[..., None], -1, 0)
    m2 = np.maximum(second - first**2, 0)
    m3 = third - 3 * first * second + 2 * first**3
    m4 = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
    varies = m2 > 1e-12 * np.maximum(second, np.finfo(float).tiny)
    return _as_moments(rows, centre + first, m2, m3, m4, varies)


def leave_one_out(moments: np.ndarray) -> np.ndarray:
    """Return for each client the moments of all other clients together: (clients, ..., 5)."""
    centre = _centre(np.moveaxis(moments, 0, -2))
    sums = to_power_sums(moments, centre)
    return from_power_sums(sums.sum(0) - sums, centre)


def _centre(moments: np.ndarray) -> np.ndarray:
    """Return the mean of all rows over the axis before the last; sums about it lose no digits."""
    rows, mean = np.nan_to_num(moments[..., 0]), np.nan_to_num(moments[..., 1])
    return (rows * mean).sum(-1) / np.maximum(rows.sum(-1), 1)


def _as_moments(
    rows: np.ndarray, mean: np.ndarray, m2: np.ndarray, m3: np.ndarray, m4: np.ndarray, varies: np.ndarray
) -> np.ndarray:
    skew = np.divide(m3, m2**1.5, out=np.zeros_like(m3), where=varies)
    kurt = np.divide(m4, m2**2, out=np.full_like(m4, 3.0), where=varies)
    spread = np.where(varies, np.sqrt(m2 * rows / np.maximum(rows - 1, 1)), 0.0)
    return np.where((rows > 1)[..., None], np.stack([rows, mean, spread, skew, kurt], -1), np.nan)


def count_different(row_ids: np.ndarray) -> int:
    """Return the number of distinct rows, or of distinct units if they are fewer; row_ids: see `assign_columns`."""
    return min(len(np.unique(ids)) for ids in np.atleast_2d(row_ids.T))


def _enough(column: np.ndarray, row_ids: np.ndarray, num_columns: int, least_rows: int) -> np.ndarray:
    """Return whether each column has `least_rows` distinct rows, and as many units: (columns,) bool."""
    enough = np.ones(num_columns, bool)
    for ids in np.atleast_2d(row_ids.T):
        distinct = np.unique(np.stack([column, ids], 1), axis=0)
        enough &= np.bincount(distinct[:, 0], minlength=num_columns) >= least_rows
    return enough


def _moments(x: np.ndarray, column: np.ndarray, num_columns: int, weights: np.ndarray | None) -> np.ndarray:
    """Return moments by feature and column: (features, columns, 5)."""
    if weights is not None:
        return _weighted_moments(x, column, num_columns, weights)
    moments = np.full((x.shape[1], num_columns, len(MOMENTS)), np.nan)
    for index in range(num_columns):
        values = x[column == index]
        if not len(values):
            continue
        present = ~np.isnan(values)
        rows = present.sum(0)
        divisor = np.maximum(rows, 1)
        mean = np.where(present, values, 0).sum(0) / divisor
        distance = np.where(present, values - mean, 0)
        m2, m3, m4 = ((distance**power).sum(0) / divisor for power in (2, 3, 4))
        varies = m2 > 1e-24 * np.maximum(mean**2, np.finfo(float).tiny)
        moments[:, index] = _as_moments(rows, mean, m2, m3, m4, varies)
    return moments


def _weighted_moments(x: np.ndarray, column: np.ndarray, num_columns: int, weights: np.ndarray) -> np.ndarray:
    """Return moments of rows that count by their weights, as `_moments` does."""
    moments = np.full((x.shape[1], num_columns, len(MOMENTS)), np.nan)
    for index in np.unique(column).tolist():
        values = x[column == index]
        present = ~np.isnan(values)
        used = np.where(present, weights[column == index, None], 0.0)
        rows = used.sum(0)
        divisor = np.where(rows > 0, rows, 1.0)
        mean = (used * np.where(present, values, 0)).sum(0) / divisor
        distance = np.where(present, values - mean, 0)
        m2, m3, m4 = ((used * distance**power).sum(0) / divisor for power in (2, 3, 4))
        varies = m2 > 1e-24 * np.maximum(mean**2, np.finfo(float).tiny)
        moments[:, index] = _as_moments(rows, mean, m2, m3, m4, varies)
    return moments


_MIN_UNITS = 20  # with fewer, the design effect is not estimated
_MAX_BINS = 10  # that a pair's tests have


def effective_rows(x: np.ndarray, y: np.ndarray, unit: np.ndarray, layout: Layout, counts: bool = True) -> int:
    """Return how many independent rows the rows of units are worth: from the number of units to that of rows.

    A table of shares has the design effects λ against as many independent rows as units, the eigenvalues of P⁻V. V is
    the covariance of a unit's shares, and P = diag(p) − ppᵀ (Rao and Scott 1981). The statistic of a test is then that
    of independent rows times Σ λ² / Σ λ, with fewer degrees of freedom (Satterthwaite), which are left as they are. The
    largest such factor decides, over labels, inputs, and both together, of all features.

    Args:
        x: (rows, features) float64, NaN if missing.
        y: (rows,) class codes or targets.
        unit: (rows,) the number of each row's unit, from 0.
        layout: The bins; those of a client are merged as for a pair.
        counts: Whether counts are compared; else moments are, and the design effects of means and deviations decide.
    """
    units = int(unit.max(initial=-1)) + 1
    if units < _MIN_UNITS or units == len(y):
        return units
    share = 1 / np.bincount(unit)[unit]
    classes, cells = layout.classes_of(y), layout.cells_of(x)
    factor = _design_factor(unit, classes, share)
    for feature, values in enumerate(layout.categories):
        of_rows = cells[:, feature]
        if values is None:
            fine = merged_bin_index(np.bincount(of_rows, share, layout.cells)[: layout.bins], _MAX_BINS)
            of_rows = np.append(fine, [_MAX_BINS] * (layout.cells - layout.bins))[of_rows]
        factor = max(factor, _design_factor(unit, of_rows, share))
        factor = max(factor, _design_factor(unit, of_rows * layout.classes + classes, share))
        if not counts:
            factor = max(factor, _moments_factor(unit, x[:, feature], classes, share))
    return min(max(int(units / max(factor, 1e-9)), units), len(y))


def _design_factor(unit: np.ndarray, cell: np.ndarray, share: np.ndarray) -> float:
    """Return Σ λ² / Σ λ of the design effects λ of shares in cells; 0 if all rows are in one cell."""
    _, column = np.unique(cell, return_inverse=True)
    units, width = int(unit.max()) + 1, int(column.max()) + 1
    shares = np.bincount(unit * width + column.ravel(), share, units * width).reshape(units, width)
    mean = shares.mean(0)
    scaled = (shares - mean) / np.sqrt(mean)
    effects = scaled.T @ scaled / (units - 1)
    total = float(np.trace(effects))
    return float((effects**2).sum()) / total if total > 0 else 0.0


def _moments_factor(unit: np.ndarray, values: np.ndarray, classes: np.ndarray, share: np.ndarray) -> float:
    """Return the largest design effect of a feature's mean and variance, of all rows and of those of a class."""
    present, factor = ~np.isnan(values), 0.0
    for rows in (present, *(present & (classes == c) for c in np.unique(classes))):
        weight = np.where(rows, share, 0.0)
        if not rows.any():
            continue
        distance = np.where(rows, values - np.average(values[rows], weights=share[rows]), 0.0)
        square = np.where(rows, distance**2 - (weight * distance**2).sum() / weight.sum(), 0.0)
        for residual in (distance, square):
            total = (share * residual**2).sum()
            if total > 0:
                factor = max(factor, float((np.bincount(unit, share * residual) ** 2).sum() / total))
    return factor
