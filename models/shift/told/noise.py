"""Gaussian noise on what a client tells of its rows, and what it costs: zero-concentrated differential privacy (zCDP).

Bun and Steinke 2016 (arXiv 1605.02065). Two sets of rows are neighbours where one has one row more. `rho` adds up over
everything that is told of the same people, whatever version of their rows it was; `epsilon` is what a total means.

Under noise a client tells joint counts of few bins (8: noise grows with the cells), and of each class (count, Σz, Σz²) for
z = (x − low) / (high − low) of the schema's bounds, clipped to [0, 1]: never a mean or a deviation, which one row can move
by any amount. All classes are told, also those without rows: which are told, or are pooled, must not depend on true counts.
The number of rows is not told beside that; it follows from the noisy counts. Where a value is missing its bin is the one for
missing values, and z and z² are 0. What the server makes of noisy answers costs nothing more.

What float64 does not protect against: these claims are about real numbers. Of a noisy float the lowest bits can tell which
value the noise was added to (Mironov 2012, "On significance of the least significant bits"), sums are rounded as they are
formed, and no draw is further out than some nine sigma. Hence `noisy` answers on a grid that is coarse beside the lowest
bits, and whole numbers for counts; rounding comes after the noise and costs nothing. It takes that attack its hold, and is
no proof, as sampling the discrete Gaussian (Canonne, Kamath and Steinke 2020) would be. Nor is how long a draw takes hidden.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

_GRID = 32  # steps of a noisy sum's grid to a sigma: rounding adds less than 1 / 12,000 of the variance


def epsilon(rho: float, delta: float) -> float:
    """The ε for which rho-zCDP is (ε, delta)-differentially private: ρ + 2 √(ρ ln(1/δ)) (proposition 1.3)."""
    _check(rho >= 0 and math.isfinite(rho), "rho", rho, "a number from 0 on")
    return rho + 2 * math.sqrt(rho * _log(delta))


def rho(epsilon: float, delta: float) -> float:
    """The largest ρ whose `epsilon` at this delta is no more than that: (√(ln(1/δ) + ε) − √ln(1/δ))²."""
    _check(epsilon >= 0 and math.isfinite(epsilon), "epsilon", epsilon, "a number from 0 on")
    log = _log(delta)
    # the difference of the roots, without the digits that subtracting them would cost
    return (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2


def split(rho: float, shares: Mapping[str, float]) -> dict[str, float]:
    """The ρ of each part of one answer, in proportion to its share: what is told together costs the sum.

    Equal shares give every part the same noise beside what one row can move in it. A part that no verdict reads should not
    be told rather than be given little: it costs the others.
    """
    _check(rho > 0 and math.isfinite(rho), "rho", rho, "a number above 0")
    for part, share in shares.items():
        _check(share > 0 and math.isfinite(share), f"the share of {part}", share, "a number above 0")
    whole = math.fsum(shares.values())
    return {part: rho * share / whole for part, share in shares.items()}


def sigma(sensitivity: float, rho: float) -> float:
    """The standard deviation of Gaussian noise that makes what one row moves by `sensitivity` in L2 cost rho: Δ / √(2ρ)."""
    _check(sensitivity > 0 and math.isfinite(sensitivity), "sensitivity", sensitivity, "a number above 0")
    _check(rho > 0 and math.isfinite(rho), "rho", rho, "a number above 0")
    return sensitivity / math.sqrt(2 * rho)


def counts_sensitivity(features: int) -> float:
    """Of joint counts (features, bins, classes): one row is one more in one cell of each feature, √d."""
    return math.sqrt(features)


def sums_sensitivity(features: int) -> float:
    """Of a count (classes,), Σz and Σz² (features, classes) told together: at most √(1 + 2d), where z = 1 everywhere."""
    return math.sqrt(1 + 2 * features)


def noisy(
    arrays: Mapping[str, np.ndarray],
    sigmas: Mapping[str, float],
    draw: Callable[[str], np.random.Generator],
) -> dict[str, np.ndarray]:
    """Each array with noise of its own sigma from the generator of its name, so that no part's noise depends on the others.

    Whole numbers come back as whole numbers, int64, which may be negative: whoever reads them clips. Others come back as
    float64 on a grid of a power of two, a 32nd of sigma or less. ValueError unless every array has a sigma above 0 and is
    finite.
    """
    if arrays.keys() != sigmas.keys():
        raise ValueError(f"there is noise for {sorted(sigmas)}, and there are {sorted(arrays)}")
    return {name: _noisy(name, array, sigmas[name], draw(name)) for name, array in arrays.items()}


def _noisy(name: str, array: np.ndarray, sigma: float, generator: np.random.Generator) -> np.ndarray:
    _check(sigma > 0 and math.isfinite(sigma), f"the sigma of {name}", sigma, "a number above 0")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has numbers that are not finite, and noise would hide none of them")
    moved = array + sigma * generator.standard_normal(array.shape)
    if np.issubdtype(array.dtype, np.integer):
        return np.rint(moved).astype(np.int64)
    step = 2.0 ** math.floor(math.log2(sigma / _GRID))
    return np.rint(moved / step) * step


def _log(delta: float) -> float:
    _check(0 < delta < 1, "delta", delta, "between 0 and 1")
    return -math.log(delta)


def _check(right: bool, name: str, value: float, must: str) -> None:
    if not right:
        raise ValueError(f"{name} is {value}, and must be {must}")
