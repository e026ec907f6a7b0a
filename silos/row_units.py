"""Units: the patients, plants or machines that rows belong to, as hashes, with weights by which a unit counts once."""

import hashlib

import numpy as np

WHOLE = 2.0**20
"""The parts of a unit that its rows share: sums of weights are exact, in any order."""


def hash_units(values: np.ndarray) -> np.ndarray:
    """Hash the text of each row's unit to 64 bits: (n,) uint64, equal in all versions of the data and at all silos."""
    distinct, codes = np.unique(values.astype(str), return_inverse=True)
    texts = (text.encode("utf-8", "surrogatepass") for text in distinct.tolist())
    digests = b"".join(hashlib.blake2b(text, digest_size=8, person=b"unit").digest() for text in texts)
    return np.frombuffer(digests, "<u8").astype(np.uint64)[codes.ravel()]


def number_units(unit: np.ndarray) -> np.ndarray:
    """Return the number of each row's unit, from 0 in the order of their first rows: (n,) int64."""
    _, first, codes = np.unique(unit, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[codes.ravel()]


def unit_weights(unit: np.ndarray, total: int | None = None) -> np.ndarray:
    """Return the weight of each row, in proportion to 1 / (rows of its unit): (n,) float64.

    The weights add up to `total`, or else to the number of units. Then a unit adds a vector of non-negative numbers of
    sum 1 to the counts of a table. Its covariance is at most that of one row (w wᵀ ≤ diag(w)), so tests of as many rows
    as there are units hold.
    """
    numbers = number_units(unit)
    sizes = np.bincount(numbers)
    parts = int(WHOLE) * (len(sizes) if total is None else total)
    of_unit = parts // max(len(sizes), 1) + (np.arange(len(sizes)) < parts % max(len(sizes), 1))
    order = np.argsort(numbers, kind="stable")
    position = np.empty(len(unit), np.int64)
    position[order] = np.arange(len(unit)) - np.flatnonzero(np.diff(numbers[order], prepend=-1))[numbers[order]]
    of_row = of_unit // np.maximum(sizes, 1)
    return (of_row[numbers] + (position < (of_unit - of_row * sizes)[numbers])) / WHOLE


def order_by_unit(rows: np.ndarray, unit: np.ndarray, rng: np.random.RandomState | None = None) -> np.ndarray:
    """Order rows so that those of a unit are consecutive: units at random, or by their first rows without `rng`.

    rows: indices; unit: (n,) the unit of every row, not only of these.
    """
    numbers = number_units(unit[rows])
    if rng is not None and len(rows):
        numbers = rng.permutation(int(numbers.max()) + 1)[numbers]
    return rows[np.argsort(numbers, kind="stable")]


def whole_units(unit: np.ndarray, target: float) -> int:
    """Return how many of the first rows to take, as near to `target` as whole units allow; the more of two.

    unit: (n,) the unit of each row, those of a unit consecutive. For units of one row it is `target`, rounded.
    """
    ends = np.append(np.flatnonzero(unit[1:] != unit[:-1]) + 1, len(unit)) if len(unit) else np.zeros(0, np.int64)
    sizes = np.diff(ends, prepend=0)
    count = int((ends - sizes / 2 <= target).sum())
    return int(ends[count - 1]) if count else 0


_MIN_DIFFERENT = 30  # rows, with fewer of which nothing is concluded
_MIN_COPIES = 0.1  # share of the rows
_MIN_VALUES = 10  # of each of two columns, so that equal rows are no matter of few values


def count_copies(x: np.ndarray, y: np.ndarray) -> int:
    """Count rows that equal an earlier one in x and y, if they are a tenth of the rows and no matter of few values.

    Equal rows of a table are such a matter, with one exception: a column has half as many values as there are different
    rows, and another has more than a few. x: (n, *shape); y: (n,). Returns 0 otherwise.
    """
    flat = np.ascontiguousarray(x.reshape(len(x), -1))
    row_hashes = np.fromiter(
        (hash((row.tobytes(), label)) for row, label in zip(flat, y.tolist(), strict=True)), np.int64
    )
    _, first = np.unique(row_hashes, return_index=True)
    copies = len(x) - len(first)
    if len(first) < _MIN_DIFFERENT or copies < _MIN_COPIES * len(x):
        return 0
    if x.ndim > 2:
        return copies
    values = sorted(len(np.unique(column)) for column in flat[first].T)
    return copies if len(values) > 1 and values[-1] >= len(first) / 2 and values[-2] > _MIN_VALUES else 0
