"""What clients tell of their rows so that shift between them can be named: counts on agreed bins, and moments, by class.

Fine bins that the schema agrees on, and those that a pair of clients is compared on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

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


LEAST_ROWS = 10
"""Different rows of a class that a number of it stands for; a class with fewer is told with the others like it."""

MOMENTS = ("rows", "mean", "deviation", "skewness", "kurtosis")


@dataclass(frozen=True, eq=False)
class Layout:
    """What all clients count on. Cells of a feature: its bins or categories, one for other values, and last the missing.

    categories: of each feature the values that it takes, in the agreed order; None is a number, in `bins` of equal width
    between low and high, (features,), of which the first and the last are open. targets: the inner edges of the groups that
    stand for classes where the task is a regression. missing: of each feature whether a value may be.
    joined: bins hold about as many rows of all clients together, and are compared as they are.
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
        """Which cells a value can be in: (features, cells) bool."""
        used = [self.bins if values is None else len(values) + 1 for values in self.categories]
        possible = np.arange(self.cells) < np.array(used)[:, None]
        possible[:, -1] = self.missing or False
        return possible

    @property
    def cells(self) -> int:
        """Of the widest feature; others have empty ones before the last."""
        return max([self.bins, *(len(values) + 1 for values in self.categories if values is not None)]) + 1

    @property
    def numeric(self) -> np.ndarray:
        """Which features are numbers: (features,) bool."""
        return np.array([values is None for values in self.categories])

    def classes_of(self, y: np.ndarray) -> np.ndarray:
        """The class of each row, or the group that its target is in: (rows,) int64."""
        if self.classes == 1:  # targets before their groups are agreed on are none either
            return np.zeros(len(y), np.int64)
        if not self.targets:
            return y.astype(np.int64)
        return np.searchsorted(np.asarray(self.targets), y, side="right")

    def cells_of(self, x: np.ndarray) -> np.ndarray:
        """x: (rows, features) float64, NaN where missing; the cell of each: (rows, features) int64."""
        cells = np.empty(x.shape, np.int64)
        for at, values in enumerate(self.categories):
            column = x[:, at]
            if values is None:
                cells[:, at] = np.searchsorted(edges(self.low[at], self.high[at], self.bins), column, side="right")
            else:
                same = column[:, None] == np.asarray(values)
                cells[:, at] = np.where(same.any(1), same.argmax(1), len(values))
        return np.where(np.isnan(x), self.cells - 1, cells)

    def coded(self, x: np.ndarray) -> np.ndarray:
        """x with categories by their place in the agreed order, from 1 on, other values behind them; numbers as they are."""
        codes = self.cells_of(x) + 1.0
        return np.where(self.numeric | np.isnan(x), x, codes)

    def counts(self, x: np.ndarray, columns: np.ndarray, more: int = 0) -> np.ndarray:
        """Rows in each cell and column: (features, cells, classes + more) float64; columns: (rows,) int64."""
        features, width = x.shape[1], self.classes + more
        place = (np.arange(features) * self.cells + self.cells_of(x)) * width + columns[:, None]
        counted = np.bincount(place.ravel(), minlength=features * self.cells * width)
        return counted.reshape(features, self.cells, width).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Summaries:
    """What clients told, each array with a leading axis of them. The column behind the classes is of those told together.

    rows: (clients,) all training rows; labels: (clients, classes) rows of a class, NaN where it is not told alone;
    counts: (clients, features, cells, classes + 1); moments: (clients, features, classes + 1, 5), as MOMENTS, the deviation
    with n - 1, NaN where nothing is told. noise: as counts, the variance of what was added to each; None where nothing was,
    and with it counts are what they came as, which may be negative.
    """

    rows: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    moments: np.ndarray
    noise: np.ndarray | None = None

    def take(self, clients: Sequence[int] | np.ndarray) -> "Summaries":
        """Of these places only."""
        there = (field.name for field in fields(self) if getattr(self, field.name) is not None)
        return Summaries(**{name: getattr(self, name)[clients] for name in there})


def joined(parts: Sequence[Summaries]) -> Summaries:
    """One after another along the clients."""
    there = (field.name for field in fields(Summaries) if getattr(parts[0], field.name) is not None)
    return Summaries(**{name: np.concatenate([getattr(one, name) for one in parts]) for name in there})


@dataclass(frozen=True, eq=False)
class Columns:
    """Which column each row of a client is told in: its class, or behind the classes that of several together.

    of: (rows,) int64; alone: (classes,) bool, the classes that have their own; kept: (rows,) bool, rows that are told of.
    """

    of: np.ndarray
    alone: np.ndarray
    kept: np.ndarray


def columns(y: np.ndarray, same: np.ndarray, layout: Layout) -> Columns:
    """y: (rows,) codes or targets; same: (rows,) which of the client's different rows each is.

    Classes of fewer than LEAST_ROWS different rows are told together, and not at all where even so they are too few; groups
    of targets then take another group with them, so that all rows of a regression are told of or none.
    """
    classes = layout.classes
    of = layout.classes_of(y)
    alone = _enough(of, same, classes)
    together = np.where(alone[of], of, classes)
    told = _enough(together, same, classes + 1)
    while layout.targets and not told[classes] and (together == classes).any() and alone.any():
        fewest = np.where(alone, np.bincount(of, minlength=classes), len(y) + 1).argmin()
        alone[fewest] = False
        together = np.where(alone[of], of, classes)
        told = _enough(together, same, classes + 1)
    return Columns(together, alone, told[together])


def summary(x: np.ndarray, y: np.ndarray, same: np.ndarray, layout: Layout) -> Summaries:
    """Of one client, with a leading axis of 1; x: (rows, features) float64, NaN where missing, the others as for `columns`.

    Of a feature of which too few rows of a class are there, nothing is told of the class.
    """
    classes, column = layout.classes, columns(y, same, layout)
    labels = np.where(column.alone, np.bincount(column.of, minlength=classes + 1)[:classes], np.nan)
    x, of, same = x[column.kept], column.of[column.kept], same[column.kept]
    counts, moments = layout.counts(x, of, 1), _moments(layout.coded(x), of, classes + 1)
    for feature, few in too_few(x, of, same, layout):
        counts[feature][:, few] = 0
        moments[feature, few] = np.nan
    return Summaries(np.array([len(y)]), labels[None], counts[None], moments[None])


def too_few(x: np.ndarray, of: np.ndarray, same: np.ndarray, layout: Layout) -> Iterator[tuple[int, np.ndarray]]:
    """The features with missing values, and of which columns too few different rows are there: (classes + 1,) bool.

    Not of columns without any value: there the missing ones are all rows. Of all columns in a regression, if of one: what
    was told of all rows together, less the others, would be those few.
    """
    there = ~np.isnan(x)
    for feature in np.flatnonzero(~there.all(0)).tolist():
        mine = of[there[:, feature]]
        few = ~_enough(mine, same[there[:, feature]], layout.classes + 1)
        few &= np.isin(np.arange(len(few)), mine)
        yield feature, few | (bool(layout.targets) and bool(few.any()))


def mixture(moments: np.ndarray) -> np.ndarray:
    """Moments of several classes or clients together, over the axis before the last: (..., 5); NaN are left out."""
    centre = _centre(moments)
    return from_sums(to_sums(moments, centre[..., None]).sum(-2), centre)


def of_all(told: Summaries) -> np.ndarray:
    """Moments of all clients' rows that are told of, of each feature: (features, 5)."""
    return mixture(mixture(told.moments).swapaxes(0, 1))


def to_sums(moments: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Rows, and sums of the first four powers of the distance from `centre`, (..., 5): they add up. NaN are zeros."""
    there = ~np.isnan(moments).any(-1, keepdims=True)
    rows, mean, deviation, skewness, kurtosis = np.moveaxis(np.where(there, moments, 0.0), -1, 0)
    apart = np.where(there[..., 0], mean - centre, 0.0)
    second = np.divide(deviation**2 * (rows - 1), rows, out=np.zeros_like(rows), where=rows > 0)
    third, fourth = skewness * second**1.5, kurtosis * second**2
    return np.stack(
        [
            rows,
            rows * apart,
            rows * (second + apart**2),
            rows * (third + 3 * apart * second + apart**3),
            rows * (fourth + 4 * apart * third + 6 * apart**2 * second + apart**4),
        ],
        -1,
    )


def from_sums(sums: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """The moments again, (..., 5); NaN of fewer than two rows, skewness 0 and kurtosis 3 of what does not vary."""
    rows = sums[..., 0]
    first, second, third, fourth = np.moveaxis(sums[..., 1:] / np.maximum(rows, 1)[..., None], -1, 0)
    m2 = np.maximum(second - first**2, 0)
    m3 = third - 3 * first * second + 2 * first**3
    m4 = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
    varies = m2 > 1e-12 * np.maximum(second, np.finfo(float).tiny)
    return _as_moments(rows, centre + first, m2, m3, m4, varies)


def without_each(moments: np.ndarray) -> np.ndarray:
    """For each client the moments of all others together: (clients, ..., 5)."""
    centre = _centre(np.moveaxis(moments, 0, -2))
    sums = to_sums(moments, centre)
    return from_sums(sums.sum(0) - sums, centre)


def _centre(moments: np.ndarray) -> np.ndarray:
    """The mean of all rows, over the axis before the last: sums about it lose no digits."""
    rows, mean = np.nan_to_num(moments[..., 0]), np.nan_to_num(moments[..., 1])
    return (rows * mean).sum(-1) / np.maximum(rows.sum(-1), 1)


def _as_moments(
    rows: np.ndarray, mean: np.ndarray, m2: np.ndarray, m3: np.ndarray, m4: np.ndarray, varies: np.ndarray
) -> np.ndarray:
    skew = np.divide(m3, m2**1.5, out=np.zeros_like(m3), where=varies)
    kurt = np.divide(m4, m2**2, out=np.full_like(m4, 3.0), where=varies)
    spread = np.where(varies, np.sqrt(m2 * rows / np.maximum(rows - 1, 1)), 0.0)
    return np.where((rows > 1)[..., None], np.stack([rows, mean, spread, skew, kurt], -1), np.nan)


def _enough(column: np.ndarray, same: np.ndarray, columns: int) -> np.ndarray:
    """Whether each column has LEAST_ROWS different rows: (columns,) bool."""
    pairs = np.unique(np.stack([column, same], 1), axis=0)
    return np.bincount(pairs[:, 0], minlength=columns) >= LEAST_ROWS


def _moments(x: np.ndarray, column: np.ndarray, columns: int) -> np.ndarray:
    """(features, columns, 5)."""
    moments = np.full((x.shape[1], columns, len(MOMENTS)), np.nan)
    for at in range(columns):
        mine = x[column == at]
        if not len(mine):
            continue
        there = ~np.isnan(mine)
        rows = there.sum(0)
        safe = np.maximum(rows, 1)
        mean = np.where(there, mine, 0).sum(0) / safe
        apart = np.where(there, mine - mean, 0)
        m2, m3, m4 = ((apart**power).sum(0) / safe for power in (2, 3, 4))
        varies = m2 > 1e-24 * np.maximum(mean**2, np.finfo(float).tiny)
        moments[:, at] = _as_moments(rows, mean, m2, m3, m4, varies)
    return moments
