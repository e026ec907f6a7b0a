"""Gaussian noise on reported counts, its cost in zero-concentrated differential privacy (zCDP), and use by the server.

Bun and Steinke 2016 (arXiv 1605.02065). Neighbouring data sets differ by one added row. ρ adds up over everything that
is reported of the same people, whatever the version of their rows.

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


def epsilon(rho: float, delta: float) -> float:
    """Return the ε for which ρ-zCDP is (ε, delta)-differentially private: ρ + 2 √(ρ ln(1/δ)) (proposition 1.3)."""
    _check(rho >= 0 and math.isfinite(rho), "rho", rho, "a number from 0 on")
    return rho + 2 * math.sqrt(rho * _log(delta))


def rho(epsilon: float, delta: float) -> float:
    """Return the largest ρ that gives at most `epsilon` at this delta: (√(ln(1/δ) + ε) − √ln(1/δ))²."""
    _check(epsilon >= 0 and math.isfinite(epsilon), "epsilon", epsilon, "a number from 0 on")
    log = _log(delta)
    # the difference of the roots, without the digits that subtracting them would cost
    return (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2


def sigma(sensitivity: float, rho: float) -> float:
    """Return the standard deviation of Gaussian noise that costs ρ: Δ / √(2ρ), for an L2 sensitivity Δ."""
    _check(sensitivity > 0 and math.isfinite(sensitivity), "sensitivity", sensitivity, "a number above 0")
    _check(rho > 0 and math.isfinite(rho), "rho", rho, "a number above 0")
    return sensitivity / math.sqrt(2 * rho)


def counts_sensitivity(features: int) -> float:
    """Return the L2 sensitivity of joint counts, (features, bins, classes): √d.

    One row adds one to one cell of each of the d features. A unit with rows of weights that add up to 1 adds at most as
    much: then neighbouring data sets differ by a unit.
    """
    return math.sqrt(features)


def add_noise(counts: np.ndarray, sigma: float, generator: np.random.Generator) -> np.ndarray:
    """Add noise and round: int64, which may be negative; ValueError unless sigma is positive."""
    _check(sigma > 0 and math.isfinite(sigma), "sigma", sigma, "a number above 0")
    return np.rint(counts + sigma * generator.standard_normal(counts.shape)).astype(np.int64)


def _log(delta: float) -> float:
    _check(0 < delta < 1, "delta", delta, "a number between 0 and 1")
    return -math.log(delta)


def _check(valid: bool, name: str, value: float, expected: str) -> None:
    if not valid:
        raise ValueError(f"{name}: got {value}, expected {expected}")


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
    moments = np.stack([rows, mean, np.sqrt(m2 * rows / np.maximum(rows - 1, 1)), skewness, kurtosis], -1)
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
