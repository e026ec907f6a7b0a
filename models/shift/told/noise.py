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
"""

import math

import numpy as np


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
