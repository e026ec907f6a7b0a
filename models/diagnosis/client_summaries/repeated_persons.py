"""Find whether rows without a declared unit look like several rows of each of fewer persons, plants or machines.

Rows of one person agree exactly in what does not change, such as age, sex and ward together. Rows of several persons who
are about as old agree as often in sex and ward, and no more often if they have the same age. So the number of pairs of
rows that agree in all is compared with that after values are exchanged between rows with nearly equal values. What one
value determines alone, as a week its holidays, is no second agreement.
"""

import numpy as np

_FEW_VALUES = 20  # that a column has at most whose values are no person's own
_BLOCK = 5  # neighbouring values among which rows are exchanged
_SHUFFLES, _COLUMNS = 4, 8
_LEAST_ROWS = 60
_LEAST_RATIO, _LEAST_PARTNERS = 1.15, 0.5
"""Of the pairs that agree, against those after the exchange; and how many more rows agree with a row on average."""


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
    common = np.zeros(len(code), np.int64)
    for column in few:
        if not _determines(code, column):
            common = np.unique(common * (int(column.max()) + 1) + column, return_inverse=True)[1].ravel()
    seen, rng = _agreeing_pairs(code, common), np.random.default_rng(0)
    shuffled = []
    for shuffle in range(_SHUFFLES):
        block = (code + shuffle) // _BLOCK
        order, mixed = np.argsort(block, kind="stable"), np.lexsort((rng.random(len(code)), block))
        exchanged = np.empty_like(code)
        exchanged[order] = code[mixed]
        shuffled.append(_agreeing_pairs(exchanged, common))
    most = max(shuffled)
    return seen > _LEAST_RATIO * most and 2 * (seen - most) > _LEAST_PARTNERS * len(code)


def _determines(code: np.ndarray, column: np.ndarray) -> bool:
    """Return whether a column has one value for each code."""
    pairs = np.unique(code * (int(column.max()) + 1) + column)
    return len(pairs) == int(code.max()) + 1


def _agreeing_pairs(code: np.ndarray, common: np.ndarray) -> int:
    counts = np.unique(code * (int(common.max()) + 1) + common, return_counts=True)[1]
    return int((counts * (counts - 1)).sum()) // 2
