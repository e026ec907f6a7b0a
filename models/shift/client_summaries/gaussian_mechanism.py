"""Gaussian noise on the counts that a client tells, and what it costs: zero-concentrated differential privacy (zCDP).

Bun and Steinke 2016 (arXiv 1605.02065). Two sets of rows are neighbours where one has one row more. ρ adds up over
everything that is told of the same people, whatever version of their rows it was.

Under noise a client tells joint counts of few bins (8: noise grows with the cells) and nothing else: never a mean or a
deviation, which one row can move by any amount. All classes are told, also those without rows: which are told, or are
pooled, must not depend on true counts. The number of rows is not told beside that; it follows from the noisy counts. A row
whose value is missing is counted in a bin of its own. What the server makes of noisy answers costs nothing more.

What float64 does not protect against: these claims are about real numbers. Of a noisy float the lowest bits can tell which
value the noise was added to (Mironov 2012, "On significance of the least significant bits"), and no draw is further out
than some nine sigma. Hence whole numbers are told; rounding comes after the noise and costs nothing. It takes that attack
its hold, and is no proof, as sampling the discrete Gaussian (Canonne, Kamath and Steinke 2020) would be. Nor is how long a
draw takes hidden.

What the server makes of counts that clients added noise to: the rest of what it needs follows from them, at no cost.
"""

import math
from dataclasses import replace

import numpy as np

from models.shift.client_summaries.client_summary import Layout, Summaries, edges


def epsilon(rho: float, delta: float) -> float:
    """The ε for which ρ-zCDP is (ε, delta)-differentially private: ρ + 2 √(ρ ln(1/δ)) (proposition 1.3)."""
    _check(rho >= 0 and math.isfinite(rho), "rho", rho, "a number from 0 on")
    return rho + 2 * math.sqrt(rho * _log(delta))


def rho(epsilon: float, delta: float) -> float:
    """The largest ρ whose `epsilon` at this delta is no more than that: (√(ln(1/δ) + ε) − √ln(1/δ))²."""
    _check(epsilon >= 0 and math.isfinite(epsilon), "epsilon", epsilon, "a number from 0 on")
    log = _log(delta)
    # the difference of the roots, without the digits that subtracting them would cost
    return (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2


def sigma(sensitivity: float, rho: float) -> float:
    """The standard deviation of Gaussian noise that makes what one row moves by `sensitivity` in L2 cost ρ: Δ / √(2ρ)."""
    _check(sensitivity > 0 and math.isfinite(sensitivity), "sensitivity", sensitivity, "a number above 0")
    _check(rho > 0 and math.isfinite(rho), "rho", rho, "a number above 0")
    return sensitivity / math.sqrt(2 * rho)


def counts_sensitivity(features: int) -> float:
    """Of joint counts (features, bins, classes): one row is one more in one cell of each feature, √d."""
    return math.sqrt(features)


def noisy(counts: np.ndarray, sigma: float, generator: np.random.Generator) -> np.ndarray:
    """Whole numbers with noise, rounded: int64, which may be negative; ValueError unless sigma is above 0."""
    _check(sigma > 0 and math.isfinite(sigma), "sigma", sigma, "a number above 0")
    return np.rint(counts + sigma * generator.standard_normal(counts.shape)).astype(np.int64)


def _log(delta: float) -> float:
    _check(0 < delta < 1, "delta", delta, "between 0 and 1")
    return -math.log(delta)


def _check(right: bool, name: str, value: float, must: str) -> None:
    if not right:
        raise ValueError(f"{name} is {value}, and must be {must}")


FEWEST = 30
"""Noisy rows of a class below which it has no moments."""


def from_noisy(counts: np.ndarray, layout: Layout, sigma: float) -> Summaries:
    """Rows, labels and moments as far as counts tell them; counts: (clients, features, cells, classes), noisy.

    Cells that no value can be in are none. Others are what they came as, and so are labels, which are the mean over
    features, as each has its own noise. To call none what noise made less than none would add rows, more of a client's share
    where it has few, so that clients of two sizes would seem to differ; to leave out rare classes would leave out more that
    noise made rare than others. Moments are those of the bins' middles.
    """
    there = np.where(layout.possible[:, :, None], counts, 0.0)
    labels = there.sum(2).mean(1)
    other = np.zeros((*there.shape[:-1], 1))
    told = np.concatenate([there, other], -1)
    noise = np.concatenate([np.broadcast_to(sigma**2 * layout.possible[:, :, None], there.shape), other], -1)
    return Summaries(np.maximum(labels.sum(-1), 0.0), labels, told, _of_middles(told, layout), noise)


def drawable(told: Summaries) -> Summaries:
    """With no fewer rows in a cell or class than none: for what is shown, and not tested."""
    if told.noise is None:
        return told
    return replace(told, labels=np.maximum(told.labels, 0.0), counts=np.maximum(told.counts, 0.0))


def as_precise(told: Summaries, layout: Layout) -> Summaries:
    """With so many rows in moments as would give means and deviations of that variance without noise."""
    assert told.noise is not None
    rows, mean, spread, _, kurtosis = np.moveaxis(told.moments, -1, 0)
    variance = told.noise * _valued(layout)[:, :, None]
    apart = (_middles(layout)[:, :, None] - mean[:, :, None]) ** 2
    square = np.where(spread > 0, spread, np.nan) ** 2
    of_mean = (variance * apart).sum(2) / (rows * square)
    of_spread = (variance * (apart - square[:, :, None]) ** 2).sum(2) / (
        rows * square**2 * np.maximum(kurtosis - 1, 0.2)
    )
    share = np.nan_to_num(np.maximum(of_mean, of_spread))
    precise = np.maximum(rows / (1 + share), 2.0)  # a deviation is of two rows or more
    return replace(told, moments=np.concatenate([precise[..., None], told.moments[..., 1:]], -1))


def _of_middles(counts: np.ndarray, layout: Layout) -> np.ndarray:
    """(clients, features, classes + 1, 5), NaN of few rows, and where noise is more than what varies.

    No kurtosis is less than that of two values.
    """
    middles = _middles(layout)
    weights = counts * _valued(layout)[:, :, None]
    rows = weights.sum(2)
    mean = (weights * middles[:, :, None]).sum(2) / np.maximum(rows, 1)
    apart = middles[:, :, None] - mean[:, :, None]
    m2, m3, m4 = ((weights * apart**power).sum(2) / np.maximum(rows, 1) for power in (2, 3, 4))
    m2 = np.maximum(m2, 0.0)
    safe = np.where(m2 > 0, m2, 1.0)
    skewness = m3 / safe**1.5
    kurtosis = np.maximum(m4 / safe**2, 1 + skewness**2)
    told = np.stack([rows, mean, np.sqrt(m2 * rows / np.maximum(rows - 1, 1)), skewness, kurtosis], -1)
    return np.where(((rows >= FEWEST) & ((m2 > 0) | (counts >= 0).all(2)))[..., None], told, np.nan)


def _middles(layout: Layout) -> np.ndarray:
    """What stands for a value in each cell: (features, cells)."""
    middles = np.zeros((len(layout.names), layout.cells))
    for at, values in enumerate(layout.categories):
        if values is None:
            inner = edges(layout.low[at], layout.high[at], layout.bins)
            middles[at, : layout.bins] = np.convolve([layout.low[at], *inner, layout.high[at]], [0.5, 0.5], "valid")
        else:
            middles[at, : len(values) + 1] = 1.0 + np.arange(len(values) + 1)
    return middles


def _valued(layout: Layout) -> np.ndarray:
    """The cells of values that are there: (features, cells) bool."""
    return layout.possible & (np.arange(layout.cells) < layout.cells - 1)
