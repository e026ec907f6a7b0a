"""How large a shift between two laws is, whatever the rows that are drawn: φ of what the tests compare, by integration.

φ² is X² over n_A n_B / (n_A + n_B) for as many rows of either law, when they grow without bound: 2 Σ (p − q)² / (p + q) of
two distributions. It is twice the w of Cohen (1988), so that 0.3 is between his small effect and his medium one. Numbers are
in ten bins, each with as many rows of both laws together. Rows stand for a law: they are the same latent ones for both laws,
and classes are not drawn but counted by their chances, so that little is left to chance.
"""

import numpy as np

from models.shift.tables import homogeneous

BINS = 10


def of_shares(shares: np.ndarray, others: np.ndarray) -> float:
    """φ of two distributions, each with sum 1."""
    both = shares + others
    return float(np.sqrt(2 * np.divide((shares - others) ** 2, both, out=np.zeros_like(both), where=both > 0).sum()))


def of_values(x: np.ndarray, other: np.ndarray, categories: int) -> float:
    """φ of P(X) of one feature; x: (rows,) of either law; categories: K of codes from 1 on, and 0 of numbers."""
    bins = binned(np.concatenate([x, other]), categories)
    counts = [np.bincount(part, minlength=categories or BINS) / len(part) for part in (bins[: len(x)], bins[len(x) :])]
    return of_shares(*counts)


def of_dependence(bins: np.ndarray, chances: np.ndarray, others: np.ndarray) -> float:
    """φ of the odds ratios of a feature and the class, of laws with the same P(X).

    bins: (rows,) from 0 on; chances: (rows, classes) P(Y | X) of either law.
    """
    inside = (bins == np.arange(bins.max() + 1)[:, None]) / len(bins)
    statistic, _ = homogeneous(np.stack([inside @ chances, inside @ others]))
    return float(np.sqrt(2 * statistic))


def binned(x: np.ndarray, categories: int) -> np.ndarray:
    """The bin of each row, or its category: (rows,) from 0 on."""
    if categories:
        return x.astype(np.int64) - 1
    return np.searchsorted(np.quantile(x, np.arange(1, BINS) / BINS), x, side="right")
