"""Correct p-values for the number of tests."""

import math
from collections.abc import Sequence


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order of p.

    Rejecting where one is at most 0.05 keeps the chance of any false rejection at 5 %, however the tests depend on each
    other (Holm 1979). The j-th smallest of m values becomes the largest of (m - i + 1) p_i over i <= j, at most 1. NaN
    stays NaN and counts as no test.
    """
    order = sorted((value, index) for index, value in enumerate(p) if not math.isnan(value))
    adjusted, largest = [math.nan] * len(p), 0.0
    for smaller, (value, index) in enumerate(order):
        largest = max(largest, min((len(order) - smaller) * value, 1.0))
        adjusted[index] = largest
    return adjusted
