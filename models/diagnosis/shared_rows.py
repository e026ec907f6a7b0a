"""Find pairs of clients that are more alike than samples of one population, as clients that hold the same rows are.

Only reported counts are used. If two clients share rows, their shares of cells differ less than by chance, so Pearson's X²
within classes is far below its mean. Clients that differ otherwise hide it.
"""

import numpy as np
from scipy.special import chdtr, chdtri

from models.diagnosis.client_summaries.client_summary import Summaries, divide_or_zero
from models.diagnosis.client_summaries.common_cells import counts_of_pairs
from models.diagnosis.guarded_tests import ALPHA
from models.diagnosis.screen_clients import homogeneity_moments

_CORRELATION = 0.1
"""The correlation that two features' statistics are taken to have; with many cells it is far below the features' own."""


def find_shared_rows(summaries: Summaries, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return which pairs are too alike, at level ALPHA over all pairs: (pairs,) bool; no noise, and rows are independent."""
    p_values = [_too_alike(_counts(summaries, a, b)) for a, b in zip(first, second, strict=True)]
    return np.array(p_values, float) * max(len(first), 1) < ALPHA


def chance_to_find_half(summaries: Summaries, first: int, second: int, pairs: int) -> float:
    """Return the chance to find that two alike clients share half of their rows; pairs: that are compared.

    X² is then about _OF_HALF of that without shared rows. Features of few values leave it few degrees of freedom.
    """
    _, mean, scale = _statistic(_counts(summaries, first, second))
    return float(chdtr(mean / scale, chdtri(mean / scale, 1 - ALPHA / pairs) / _OF_HALF)) if scale > 0 else 0.0


def _counts(summaries: Summaries, first: int, second: int) -> np.ndarray:
    """Return the counts of two clients in the cells that both have: (2, features, cells, classes)."""
    return counts_of_pairs(summaries, np.array([[first, second]]))[0, ..., :-1]


_OF_HALF = 0.6  # X² of clients of which one holds half of the other's rows as well, against that of others


def _too_alike(counts: np.ndarray) -> float:
    """Return the chance of a sum of X² as small as this; counts: (2, features, cells, classes)."""
    statistic, mean, scale = _statistic(counts)
    return float(chdtr(mean / scale, statistic / scale)) if scale > 0 else 1.0


def _statistic(counts: np.ndarray) -> tuple[float, float, float]:
    """Return the sum of X², its mean, and the factor by which it is that of a chi-square; 0 without any cell."""
    statistic, mean, variance, _ = homogeneity_moments(counts)
    total = (1 - _CORRELATION) * variance.sum() + _CORRELATION * np.sqrt(variance).sum() ** 2
    scale = float(divide_or_zero(total, np.array(2 * mean.sum())))
    return float(statistic.sum()), float(mean.sum()), scale
