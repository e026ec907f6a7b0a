"""Rows that are nobody's, weighed as a client's own: what it is right on says how right it is on rows of its law."""

import math

import numpy as np


def prior_shift_accuracy(right: np.ndarray, labels: np.ndarray, own: np.ndarray, classes: int) -> float:
    """Accuracy where each class counts as it does among the client's own labels; NaN where no class is in both.

    right: (rows,) bool and labels: (rows,) of common rows, own: (more rows,) labels of the client's. A class that no common
    row has counts for nothing.
    """
    rows, held = (np.bincount(y, minlength=classes) for y in (labels, own))
    there = rows > 0
    if not held[there].sum():
        return math.nan
    of_class = np.bincount(labels[right], minlength=classes)[there] / rows[there]
    return float(of_class @ held[there] / held[there].sum())
