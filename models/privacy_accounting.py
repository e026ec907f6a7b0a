"""The cost of Gaussian noise: what it adds up to, and the epsilon and delta of differential privacy that it has.

Noise of deviation σ on sums of L2 sensitivity Δ is μ-Gaussian differentially private with μ = Δ / σ (Dong, Roth and Su
2019, arXiv 1905.02383). The squares of μ add up exactly (corollary 3.3), also if later noise is chosen by earlier
answers within a fixed total (Smith and Thakurta 2022, arXiv 2210.17520). Ledgers record ρ = μ² / 2. It adds up over
all that is reported of the same people, whatever the version of their rows.

Balle and Wang 2018 (arXiv 1805.06530, theorem 8): μ is (ε, δ)-differentially private if and only if
δ ≥ Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ). Both conversions solve this. They are accurate to 1e-9, except where δ alone covers
nearly the whole cost, and rounded to the safe side.
"""

import math
from collections.abc import Callable
from decimal import ROUND_FLOOR, Context

import numpy as np

_DELTA_ERROR = 1e-12  # a bound of the relative error of `_log_delta`
_DIGITS = Context(prec=11, rounding=ROUND_FLOOR)
_SMALL_MU = 0.1  # below, five nodes integrate to float64's precision
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(5)


def epsilon(rho: float, delta: float) -> float:
    """Return the least ε for which noise that costs ρ is (ε, delta)-differentially private, or slightly more."""
    _check(rho >= 0 and math.isfinite(rho), "rho", rho, "a number from 0 on")
    limit, mu = _limit(delta), math.sqrt(2 * rho)

    def is_within(ratio: float) -> bool:
        return _log_delta(ratio, mu) <= limit

    if mu == 0 or is_within(0.0):
        return 0.0
    # delta is below the tail beyond ratio - mu/2, which Chernoff's bound limits
    _, least = _bisect(is_within, 0.0, mu / 2 + math.sqrt(-2 * limit))
    return least * mu * (1 + 1e-15)


def rho(epsilon: float, delta: float) -> float:
    """Return the largest ρ that gives at most `epsilon` at this delta, or slightly less; 0 for an epsilon of 0.

    ρ has 11 digits. Queries are compared by it, and further digits depend on the machine's mathematical library.
    """
    _check(epsilon >= 0 and math.isfinite(epsilon), "epsilon", epsilon, "a number from 0 on")
    limit = _limit(delta)
    if epsilon == 0:  # delta alone would allow some, but a budget of 0 means nothing
        return 0.0

    def is_beyond(mu: float) -> bool:
        return _log_delta(epsilon / mu, mu) > limit

    high = 1.0
    while not is_beyond(high):
        high *= 2
    most, _ = _bisect(is_beyond, 0.0, high)
    # 1e-11 exceeds what `epsilon` adds, so that the epsilon of this ρ is never above the one that was set
    return float(_DIGITS.create_decimal(most**2 / 2 * (1 - 1e-11)))


def sigma(sensitivity: float, rho: float) -> float:
    """Return the standard deviation of Gaussian noise that costs ρ: Δ / √(2ρ), for an L2 sensitivity Δ."""
    _check(sensitivity > 0 and math.isfinite(sensitivity), "sensitivity", sensitivity, "a number above 0")
    _check(rho > 0 and math.isfinite(rho), "rho", rho, "a number above 0")
    return sensitivity / math.sqrt(2 * rho)


def _log_delta(ratio: float, mu: float) -> float:
    """Return the logarithm of the δ of μ at ε = ratio μ; −∞ where it is below all of float64.

    With y = ε/μ − μ/2, density φ and Mills' ratio M = (1 − Φ)/φ, theorem 8 is δ = φ(y) (M(y) − M(y + μ)), since
    e^ε φ(y + μ) = φ(y). For small μ the difference is the integral of −M' = 1 − t M, which cancels no digits.
    """
    y = ratio - mu / 2
    if y > 40:
        return -math.inf
    log_density = -(y**2) / 2 - math.log(2 * math.pi) / 2
    if mu < _SMALL_MU:
        t = ratio + mu / 2 * _NODES
        return log_density + math.log(mu / 2 * float(_WEIGHTS @ (1 - t * _mills(t))))
    beyond = float(_mills(np.asarray(y + mu)))
    if y < 0:  # where M overflows
        return math.log(math.erfc(y / math.sqrt(2)) / 2 - math.exp(log_density) * beyond)
    return log_density + math.log(float(_mills(np.asarray(y))) - beyond)


def _mills(t: np.ndarray) -> np.ndarray:
    from scipy.special import erfcx  # imported here, because it is slow and a run without noise needs none

    return math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2))


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return two neighbours in float64 between which `holds` becomes true."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def _limit(delta: float) -> float:
    _check(0 < delta < 1, "delta", delta, "a number between 0 and 1")
    return math.log(delta) - _DELTA_ERROR


def _check(valid: bool, name: str, value: float, expected: str) -> None:
    if not valid:
        raise ValueError(f"{name}: got {value}, expected {expected}")
