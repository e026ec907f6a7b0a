"""Find a number that stands for a missing value, such as -999, 9999, or -1 beside counts."""

import numpy as np

_LEAST_OTHERS, _LEAST_ROWS, _MOST_ROWS = 10, 3, 0.5
"""Other values that a column of numbers has; and the rows of a code: at least so many, and at most this share."""

_GAP = 0.5  # in ranges of the others, by which a code is apart from them unless it alone is negative


_NEIGHBOURS = (
    3  # values next to a code of one digit: rounded measurements have about as many rows and as wide steps there
)


def find_missing_code(values: np.ndarray, rows: np.ndarray, sure: bool = False) -> int | None:
    """Return the position of a number that often means a missing value, or None.

    Such a number repeats one digit 9, 8 or 7, or is -1, and is the least or the largest by far. If it is the only negative
    one, it has to have two digits, or to be apart from the next values, or to have more rows than its neighbour.

    Args:
        values: Distinct numbers in ascending order, (values,).
        rows: The rows of each, (values,).
        sure: A code of one digit that is not apart has to have more than twice the rows of each of its next neighbours.
            Then -1 of rounded temperatures is hardly ever one, and -1 beside frequent zeros is missed.
    """
    if len(values) <= _LEAST_OTHERS:
        return None
    usual = (rows >= _LEAST_ROWS) & (rows <= _MOST_ROWS * rows.sum())
    if usual[0] and values[0] < 0 and _is_code(-values[0]):
        needed = 2 * rows[1 : 1 + _NEIGHBOURS].max() if sure else rows[1]
        far_below = values[1] - values[0] >= _GAP * (values[-1] - values[1])
        alone = values[1] - values[0] >= _NEIGHBOURS * (values[1 + _NEIGHBOURS] - values[1])
        only_negative = values[1] >= 0 and (values[0] <= -10 or rows[0] > needed or far_below or alone)
        if only_negative or (values[0] <= -10 and far_below):
            return 0
    far_above = values[-1] - values[-2] >= _GAP * (values[-2] - values[0])
    return len(values) - 1 if usual[-1] and values[-1] >= 10 and _is_code(values[-1]) and far_above else None


def _is_code(value: float) -> bool:
    if value != np.floor(value) or value >= 1e15:
        return False
    digits = str(int(value))
    return digits == "1" or (len({*digits}) == 1 and digits[0] in "789")
