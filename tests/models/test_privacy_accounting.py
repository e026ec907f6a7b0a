"""Costs of noise are what Gaussians really have: by integrals, 60 digits, convolutions and draws, and never below."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from models.diagnosis.client_summaries.gaussian_mechanism import add_noise
from models.privacy_accounting import epsilon, rho, sigma

RHOS = st.floats(-10, 6).map(lambda exponent: 10**exponent)
DELTAS = st.floats(-15, math.log10(0.5)).map(lambda exponent: 10**exponent)
EPSILONS = st.floats(-4, 6).map(lambda exponent: 10**exponent)


def integrated_delta(epsilon: float, mu: float) -> float:
    """Integrate p - e^ε q where it is positive, for p = N(mu, 1) and q = N(0, 1)."""
    first = epsilon / mu + mu / 2
    found, _ = integrate.quad(
        lambda x: -stats.norm.pdf(x - mu) * math.expm1(epsilon + mu * (mu / 2 - x)),
        first,
        max(first, mu) + 12,
        epsabs=0,
        epsrel=1e-12,
        limit=200,
    )
    return found


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01, 0.3])
@pytest.mark.parametrize("cost", [1e-4, 0.0359, 0.4, 1.4, 20.0])
def test_delta_of_an_epsilon_is_the_integral_of_the_privacy_loss(cost, delta):
    mu, cover = math.sqrt(2 * cost), epsilon(cost, delta)
    if cover == 0:
        assert integrated_delta(0.0, mu) <= delta
    else:
        assert integrated_delta(cover, mu) == pytest.approx(delta, rel=1e-8)
        assert integrated_delta(cover, math.sqrt(2 * rho(cover, delta))) == pytest.approx(delta, rel=1e-8)


def holds(epsilon: float, rho: float, delta: float) -> bool:
    """Whether ρ is (ε, δ)-differentially private: Balle and Wang, theorem 8, in 60 digits."""
    with mpmath.workdps(60):
        mu, limit = mpmath.sqrt(2 * mpmath.mpf(rho)), mpmath.mpf(epsilon)
        first, second = (mpmath.ncdf(side * mu / 2 - limit / mu) for side in (1, -1))
        return first - mpmath.exp(limit) * second <= mpmath.mpf(delta)


@settings(deadline=None)
@given(RHOS, DELTAS)
@example(1e-10, 1e-15)
@example(1e6, 1e-15)
@example(1e6, 0.5)
@example(0.909, 0.5)  # delta covers nearly all of it
def test_epsilon_is_not_below_the_truth_and_within_a_billionth_of_it(cost, delta):
    cover = epsilon(cost, delta)
    assert holds(cover, cost, delta)
    error = max(1e-9 * cover, 1e-11 * math.sqrt(2 * cost))  # the latter where delta covers nearly all
    assert cover == 0 or cover <= error or not holds(cover - error, cost, delta), "an epsilon too low is caught"


@settings(deadline=None)
@given(EPSILONS, DELTAS)
@example(1e-4, 1e-15)
@example(1e6, 1e-15)
@example(1e6, 0.5)
def test_rho_is_not_above_the_truth_and_within_a_billionth_of_it(target, delta):
    most = rho(target, delta)
    assert holds(target, most, delta)
    assert not holds(target, most * (1 + 1e-9), delta), "a rho too high is caught"


@given(EPSILONS, DELTAS)
def test_a_budget_of_epsilon_converted_to_rho_and_back_is_never_exceeded(budget, delta):
    assert budget * (1 - 1e-9) - 1e-10 <= epsilon(rho(budget, delta), delta) <= budget


@given(RHOS, DELTAS)
def test_rho_converted_to_epsilon_and_back_is_the_same(cost, delta):
    cover = epsilon(cost, delta)
    if cover > 0.01 * math.sqrt(cost):
        assert rho(cover, delta) == pytest.approx(cost, rel=1e-9)


@given(RHOS, DELTAS, st.floats(1 + 1e-6, 10))
def test_more_rho_needs_more_epsilon_and_more_delta_less(cost, delta, times):
    cover = epsilon(cost, delta)
    assert epsilon(cost * times, delta) >= cover >= epsilon(cost, min(delta * times, 0.9))
    if cover > 0:
        assert epsilon(cost * times, delta) > cover
        assert rho(cover * times, delta) > rho(cover, delta)
        assert rho(cover, min(delta * times, 0.9)) >= rho(cover, delta)


@pytest.mark.parametrize("target", [1.0, 2.0, 4.0, 8.0])
def test_mu_at_delta_one_in_100000_is_the_root_that_scipy_finds(target):
    def excess(mu: float) -> float:
        shift = target / mu
        return float(stats.norm.cdf(mu / 2 - shift) - math.exp(target) * stats.norm.cdf(-mu / 2 - shift)) - 1e-5

    mu = optimize.brentq(excess, 0.1, 5, xtol=1e-14)
    assert math.sqrt(2 * rho(target, 1e-5)) == pytest.approx(mu, rel=1e-8)
    assert 1 / sigma(1.0, rho(target, 1e-5)) == pytest.approx(mu, rel=1e-8)


@pytest.mark.parametrize("seed", range(50))
def test_costs_that_are_added_give_the_epsilon_of_the_convolved_privacy_losses_within_a_hundredth(seed):
    generator = np.random.default_rng(seed)
    costs = 10 ** generator.uniform(-4, -1, int(generator.integers(2, 30)))
    delta = float(10 ** generator.uniform(-6, -2))
    cover = epsilon(math.fsum(costs), delta)
    assert cover == pytest.approx(convolved_epsilon(costs, delta), rel=0.01)


def convolved_epsilon(costs: np.ndarray, delta: float) -> float:
    """Convolve the losses ln p(x)/q(x) of single reports, each N(ρ, 2ρ) under p, on a grid, and search the epsilon."""
    spread = math.sqrt(2 * costs.sum())
    step, half = spread / 200, 2048
    grid = np.arange(-half, half) * step
    total = np.ones(half + 1, complex)
    for cost in costs:
        edges = stats.norm.cdf(np.append(grid, half * step) - step / 2, 0, math.sqrt(2 * cost))
        total *= np.fft.rfft(np.fft.ifftshift(np.diff(edges)))
    share = np.fft.fftshift(np.fft.irfft(total, 2 * half))
    loss = grid + costs.sum()

    def excess(epsilon: float) -> float:
        above = loss > epsilon
        return float(share[above] @ -np.expm1(epsilon - loss[above])) - delta

    return optimize.brentq(excess, 0, loss[-1])


@pytest.mark.parametrize(("target", "delta"), [(0.5, 0.05), (1.0, 0.01)])
def test_a_count_with_drawn_noise_and_one_with_a_row_more_differ_by_the_delta(target, delta):
    draws, spread = 2_000_000, sigma(1.0, rho(target, delta))
    one, more = (add_noise(np.full(draws, rows), spread, np.random.default_rng(rows)) for rows in (40, 41))
    threshold = 40 + spread * (target * spread + 1 / (2 * spread))  # beyond, a row more is e^ε times as likely
    chances = [float((counts > threshold).mean()) for counts in (more, one)]
    error = math.sqrt(chances[0] / draws + math.exp(2 * target) * chances[1] / draws)
    # whole numbers beyond the threshold say a little less than the number itself
    assert 0.9 * delta - 4.5 * error < chances[0] - math.exp(target) * chances[1] < delta + 4.5 * error


@pytest.mark.parametrize(("sensitivity", "cost"), [(1.0, 0.5), (math.sqrt(5), 0.0208), (3.0, 1.049)])
def test_noise_of_sigma_moves_by_mu_deviations(sensitivity, cost):
    assert (sensitivity / sigma(sensitivity, cost)) ** 2 / 2 == pytest.approx(cost)


def test_nothing_spent_has_epsilon_0_and_a_budget_of_0_allows_nothing():
    assert epsilon(0.0, 1e-5) == 0
    assert rho(0.0, 0.5) == 0


def test_what_delta_alone_covers_has_epsilon_0_and_what_it_does_not_has_more():
    delta = 2 * stats.norm.cdf(0.05) - 1
    assert epsilon(0.1**2 / 2 * 0.999, delta) == 0 < epsilon(0.1**2 / 2 * 1.001, delta)


@pytest.mark.parametrize("delta", [5e-324, 1e-300, 1 - 1e-16])
@pytest.mark.parametrize("amount", [5e-324, 1e-300, 1.0, 1e9, 1e300])
def test_amounts_and_deltas_at_the_ends_of_float64_are_converted(amount, delta):
    assert 0 <= epsilon(amount, delta) < math.inf
    assert 0 <= epsilon(rho(amount, delta), delta) <= amount


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: rho(-1, 1e-5), "epsilon: got -1, expected a number from 0 on"),
        (lambda: rho(math.nan, 1e-5), "epsilon: got nan"),
        (lambda: rho(1, 0), "delta: got 0, expected a number between 0 and 1"),
        (lambda: epsilon(math.inf, 1e-5), "rho: got inf, expected a number from 0 on"),
        (lambda: epsilon(1, 1.0), "delta: got 1.0"),
        (lambda: sigma(1.0, 0.0), "rho: got 0.0, expected a number above 0"),
        (lambda: sigma(0.0, 1.0), "sensitivity: got 0.0"),
    ],
)
def test_amounts_that_protect_nothing_are_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        wrong()
