"""Find whether rows without a declared unit look like several rows of each of fewer persons, plants or machines.

Rows of one person agree exactly in what does not change, such as age, sex and ward together. Rows of several persons who
are about as old agree as often in sex and ward, and no more often if they have the same age. So the number of pairs of
rows that agree in all is compared with that after values are exchanged between rows with nearly equal values. What one
value determines alone, as a week its holidays, is no second agreement. Neither is a ward in which ages are rounded: pairs
must also be more than after exchanges within each ward alone.
"""

import numpy as np

_FEW_VALUES = 20  # that a column has at most whose values are no person's own
_MOST_PLACES = 8  # values of a column within each of which rows are exchanged
_BLOCK = 5  # neighbouring values among which rows are exchanged
_SHUFFLES, _COLUMNS = 4, 8
_LEAST_ROWS = 60
_LEAST_RATIO = 1.15  # of the pairs of rows that agree, to those after the exchange
_LEAST_PARTNERS = 0.5  # by how many more rows a row agrees with, on average, than after the exchange
_LEAST_WITHIN = 0.15  # the same against exchanges within each value of another column


def has_repeated_persons(x: np.ndarray) -> bool:
    """Return whether many more rows agree exactly than nearly equal ones would; x: (rows, features), NaN if missing."""
    if len(x) < _LEAST_ROWS or x.ndim != 2:
        return False
    codes = [np.unique(column, return_inverse=True)[1].ravel() for column in x.T]
    sizes = [int(code.max()) + 1 for code in codes]
    few = [code for code, size in zip(codes, sizes, strict=True) if size <= _FEW_VALUES]
    own = [index for index, size in enumerate(sizes) if _FEW_VALUES < size <= len(x) / 2]
    fewest = sorted(own, key=lambda index: sizes[index])[:_COLUMNS]
    return any(_agree_more(codes[index], few) for index in fewest)


def _agree_more(code: np.ndarray, few: list[np.ndarray]) -> bool:
    """Return whether rows with equal codes agree in columns of few values more often than rows with nearly equal codes."""
    common, free = np.zeros(len(code), np.int64), [column for column in few if not _determines(code, column)]
    for column in free:
        common = np.unique(common * (int(column.max()) + 1) + column, return_inverse=True)[1].ravel()
    seen, rng = _agreeing_pairs(code, common), np.random.default_rng(0)
    within = [column for column in free if int(column.max()) < _MOST_PLACES] if len(free) > 1 else []

    def partners(place: np.ndarray, ratio: float) -> float:
        most = max(_agreeing_pairs(_exchanged(code, place, shuffle, rng), common) for shuffle in range(_SHUFFLES))
        return 2 * (seen - most) / len(code) if seen > ratio * most else 0.0

    several = partners(np.zeros_like(code), _LEAST_RATIO) > _LEAST_PARTNERS
    return several and all(partners(place, 1.0) > _LEAST_WITHIN for place in within)


def _exchanged(code: np.ndarray, place: np.ndarray, shuffle: int, rng: np.random.Generator) -> np.ndarray:
    """Exchange codes between rows with nearly equal codes and an equal place: (rows,)."""
    block = (code + shuffle) // _BLOCK
    order, mixed = np.lexsort((block, place)), np.lexsort((rng.random(len(code)), block, place))
    exchanged = np.empty_like(code)
    exchanged[order] = code[mixed]
    return exchanged


def _determines(code: np.ndarray, column: np.ndarray) -> bool:
    """Return whether a column has one value for each code."""
    pairs = np.unique(code * (int(column.max()) + 1) + column)
    return len(pairs) == int(code.max()) + 1


def _agreeing_pairs(code: np.ndarray, common: np.ndarray) -> int:
    counts = np.unique(code * (int(common.max()) + 1) + common, return_counts=True)[1]
    return int((counts * (counts - 1)).sum()) // 2
