"""Gaussian noise on reported counts, and use by the server.

Neighbouring data sets differ by one added row. What the noise costs is in models/privacy_accounting.py.

With noise a client reports joint counts of few bins (8: noise grows with the cells) and nothing else. A mean or a
deviation is never sent, since one row can change it by any amount. All classes are reported, also those without rows:
which classes are reported or pooled must not depend on true counts. The number of rows is not reported separately; it
follows from the noisy counts. A missing value is counted in a bin of its own. Post-processing on the server costs
nothing more.

The claims hold for real numbers, and float64 does not give that protection. The lowest bits of a noisy float can
reveal the value that the noise was added to (Mironov 2012, "On significance of the least significant bits"). No draw
lies further out than some nine sigma. Counts are therefore rounded to whole numbers after the noise, which costs
nothing. Rounding prevents that attack but is no proof, unlike sampling the discrete Gaussian (Canonne, Kamath and
Steinke 2020). The time that a draw takes is not hidden either.
"""

import math
from dataclasses import replace

import numpy as np

from models.diagnosis.client_summaries.client_summary import Layout, Summaries, inner_edges


def counts_sensitivity(features: int) -> float:
    """Return the L2 sensitivity of joint counts, (features, bins, classes): √d.

    One row adds one to one cell of each of the d features. A unit with rows of weights that add up to 1 adds at most as
    much: then neighbouring data sets differ by a unit.
    """
    return math.sqrt(features)


def add_noise(counts: np.ndarray, sigma: float, generator: np.random.Generator) -> np.ndarray:
    """Add noise and round: int64, which may be negative; ValueError unless sigma is positive."""
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma: got {sigma}, expected a number above 0")
    return np.rint(counts + sigma * generator.standard_normal(counts.shape)).astype(np.int64)


MIN_NOISY_ROWS = 30
"""Noisy rows that a class needs to have moments."""


def summaries_from_counts(counts: np.ndarray, layout: Layout, sigma: float) -> Summaries:
    """Derive rows, labels and moments from noisy counts, (clients, features, cells, classes).

    Cells that no value can be in are set to 0. All others keep their noise, and so do labels, the mean over features
    of their counts. Clipping at 0 would add rows, relatively more for small clients, so that clients of two sizes
    would seem to differ. Leaving out rare classes would leave out more of the classes that noise made rare. Moments
    are computed from the middles of the bins.
    """
    possible = np.where(layout.possible[:, :, None], counts, 0.0)
    labels = possible.sum(2).mean(1)
    pooled = np.zeros((*possible.shape[:-1], 1))
    padded = np.concatenate([possible, pooled], -1)
    noise = np.concatenate([np.broadcast_to(sigma**2 * layout.possible[:, :, None], possible.shape), pooled], -1)
    return Summaries(np.maximum(labels.sum(-1), 0.0), labels, padded, _of_middles(padded, layout), noise)


def clip_negative(summaries: Summaries) -> Summaries:
    """Clip negative counts and labels at 0: for display, not for tests."""
    if summaries.noise is None:
        return summaries
    return replace(summaries, labels=np.maximum(summaries.labels, 0.0), counts=np.maximum(summaries.counts, 0.0))


def with_effective_rows(summaries: Summaries, layout: Layout) -> Summaries:
    """Reduce the rows in moments to the number that gives the same variance of means and deviations without noise."""
    assert summaries.noise is not None
    rows, mean, spread, _, kurtosis = np.moveaxis(summaries.moments, -1, 0)
    variance = summaries.noise * _valued(layout)[:, :, None]
    squared = (_middles(layout)[:, :, None] - mean[:, :, None]) ** 2
    square = np.where(spread > 0, spread, np.nan) ** 2
    of_mean = (variance * squared).sum(2) / (rows * square)
    of_spread = (variance * (squared - square[:, :, None]) ** 2).sum(2) / (
        rows * square**2 * np.maximum(kurtosis - 1, 0.2)
    )
    noise_share = np.nan_to_num(np.maximum(of_mean, of_spread))
    effective_rows = np.maximum(rows / (1 + noise_share), 2.0)  # a deviation is of two rows or more
    return replace(summaries, moments=np.concatenate([effective_rows[..., None], summaries.moments[..., 1:]], -1))


def _of_middles(counts: np.ndarray, layout: Layout) -> np.ndarray:
    """Return moments, (clients, features, classes + 1, 5), from the middles of the bins.

    NaN with few rows, and where noise exceeds the variation. Kurtosis is at least that of two values.
    """
    middles = _middles(layout)
    weights = counts * _valued(layout)[:, :, None]
    rows = weights.sum(2)
    mean = (weights * middles[:, :, None]).sum(2) / np.maximum(rows, 1)
    distance = middles[:, :, None] - mean[:, :, None]
    m2, m3, m4 = ((weights * distance**power).sum(2) / np.maximum(rows, 1) for power in (2, 3, 4))
    m2 = np.maximum(m2, 0.0)
    divisor = np.where(m2 > 0, m2, 1.0)
    skewness = m3 / divisor**1.5
    kurtosis = np.maximum(m4 / divisor**2, 1 + skewness**2)
    deviation = np.sqrt(m2 * np.maximum(rows, 0.0) / np.maximum(rows - 1, 1))  # noise makes rows negative
    moments = np.stack([rows, mean, deviation, skewness, kurtosis], -1)
    return np.where(((rows >= MIN_NOISY_ROWS) & ((m2 > 0) | (counts >= 0).all(2)))[..., None], moments, np.nan)


def _middles(layout: Layout) -> np.ndarray:
    """Return the value that represents each cell: (features, cells)."""
    middles = np.zeros((len(layout.names), layout.cells))
    for i, values in enumerate(layout.categories):
        if values is None:
            inner = inner_edges(layout.low[i], layout.high[i], layout.bins)
            middles[i, : layout.bins] = np.convolve([layout.low[i], *inner, layout.high[i]], [0.5, 0.5], "valid")
        else:
            middles[i, : len(values) + 1] = 1.0 + np.arange(len(values) + 1)
    return middles


def _valued(layout: Layout) -> np.ndarray:
    """Return the cells of values that are not missing: (features, cells) bool."""
    return layout.possible & (np.arange(layout.cells) < layout.cells - 1)
