"""Find a number that stands for a missing value, such as -999, 9999, or -1 beside counts."""

import numpy as np

_LEAST_OTHERS, _LEAST_ROWS, _MOST_ROWS = 10, 3, 0.5
"""Other values that a column of numbers has; and the rows of a code: at least so many, and at most this share."""

_GAP = 0.5  # in ranges of the others, by which a code is apart from them unless it alone is negative


def find_missing_code(values: np.ndarray, rows: np.ndarray) -> int | None:
    """Return the position of a number that often means a missing value, or None.

    Such a number repeats one digit 9, 8 or 7, or is -1, and is the least or the largest by far. If it is the only negative
    one, it has to have two digits, or more rows than its neighbour.

    Args:
        values: Distinct numbers in ascending order, (values,).
        rows: The rows of each, (values,).
    """
    if len(values) <= _LEAST_OTHERS:
        return None
    usual = (rows >= _LEAST_ROWS) & (rows <= _MOST_ROWS * rows.sum())
    if usual[0] and values[0] < 0 and _is_code(-values[0]):
        only_negative = values[1] >= 0 and (values[0] <= -10 or rows[0] > rows[1])
        if only_negative or (values[0] <= -10 and values[1] - values[0] >= _GAP * (values[-1] - values[1])):
            return 0
    far_above = values[-1] - values[-2] >= _GAP * (values[-2] - values[0])
    return len(values) - 1 if usual[-1] and values[-1] >= 10 and _is_code(values[-1]) and far_above else None


def _is_code(value: float) -> bool:
    if value != np.floor(value) or value >= 1e15:
        return False
    digits = str(int(value))
    return digits == "1" or (len({*digits}) == 1 and digits[0] in "789")
