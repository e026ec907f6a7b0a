"""Noise costs what it is said to cost: the formulas, what one row moves, and the noise itself."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from models.diagnosis.client_summaries.gaussian_mechanism import add_noise, counts_sensitivity, epsilon, rho, sigma

DELTAS = st.floats(1e-12, 0.5)
SIZES = st.floats(1e-6, 50.0)


@pytest.mark.parametrize(("told", "cost"), [(1, "0.0208"), (2, "0.0800"), (4, "0.298"), (8, "1.049")])
def test_rho_at_delta_one_in_100000_is_the_reference_tables(told, cost):
    digits = len(cost.partition(".")[2])
    assert f"{rho(told, 1e-5):.{digits}f}" == cost


@given(SIZES, DELTAS)
def test_epsilon_and_rho_undo_each_other(size, delta):
    assert rho(epsilon(size, delta), delta) == pytest.approx(size, rel=1e-9)


@given(SIZES, DELTAS)
def test_rho_is_the_root_that_a_search_finds(told, delta):
    found = optimize.brentq(lambda cost: cost + 2 * math.sqrt(cost * -math.log(delta)) - told, 0, told, xtol=1e-15)
    assert rho(told, delta) == pytest.approx(found, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("sensitivity", "cost"), [(1.0, 0.5), (math.sqrt(5), 0.0208), (3.0, 1.049)])
def test_gaussians_that_one_row_moves_apart_have_renyi_divergences_of_rho_times_order(sensitivity, cost):
    """The definition of zCDP, integrated: D_a(N(0, s²) || N(Δ, s²)) = a rho for every order."""
    spread = sigma(sensitivity, cost)
    at, moved = stats.norm(0, spread), stats.norm(sensitivity, spread)
    for order in (1.5, 2.0, 4.0):
        integral, _ = integrate.quad(
            lambda x, order=order: math.exp(order * at.logpdf(x) + (1 - order) * moved.logpdf(x)),
            -40 * spread,
            40 * spread,
            points=[0.0, sensitivity * (1 - order)],
            limit=500,
        )
        assert math.log(integral) / (order - 1) == pytest.approx(order * cost, rel=1e-6)


@pytest.mark.parametrize("told", [1.0, 4.0, 8.0])
def test_delta_bounds_the_one_that_two_gaussians_really_have(told):
    """The exact delta of the Gaussian mechanism (Balle and Wang 2018) with the noise of the conversion."""
    ratio = 1 / sigma(1.0, rho(told, 1e-5))
    exact = stats.norm.cdf(ratio / 2 - told / ratio) - math.exp(told) * stats.norm.cdf(-ratio / 2 - told / ratio)
    assert 0 < exact < 1e-5


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**32))
def test_no_row_moves_what_is_told_by_more_than_its_sensitivity(features, classes, seed):
    generator = np.random.default_rng(seed)
    x = generator.choice([0.0, 1.0, generator.random()], (12, features))
    y = generator.integers(0, classes, 12)
    without = int(generator.integers(12))
    kept = np.arange(12) != without
    moved = joint_counts(x, y) - joint_counts(x[kept], y[kept])
    assert np.linalg.norm(moved) == pytest.approx(counts_sensitivity(features))


@pytest.mark.parametrize("spread", [0.3, 2.9, 11.0])
def test_noise_is_a_normal_of_its_sigma_about_the_truth_rounded(spread):
    noise = (add_noise(np.full((5, 8, 500), 40), spread, np.random.default_rng(0)) - 40).ravel()
    assert noise.dtype == np.int64
    assert abs(noise.mean()) < 4.5 * noise.std() / math.sqrt(noise.size)
    for cell in (-1, 0, 1, 2):  # the share of each whole number is its interval's
        share = float(stats.norm(0, spread).cdf(cell + 0.5) - stats.norm(0, spread).cdf(cell - 0.5))
        assert abs((noise == cell).mean() - share) < 4.5 * math.sqrt(share * (1 - share) / noise.size)


def test_noise_of_one_cell_says_nothing_of_anothers():
    told = add_noise(np.zeros((4, 20_000)), 10.0, np.random.default_rng(0))
    assert np.abs(np.corrcoef(told) - np.eye(4)).max() < 4.5 / math.sqrt(20_000)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: rho(-1, 1e-5), "epsilon: got -1, expected a number from 0 on"),
        (lambda: rho(math.nan, 1e-5), "epsilon: got nan"),
        (lambda: rho(1, 0), "delta: got 0, expected a number between 0 and 1"),
        (lambda: sigma(1.0, 0.0), "rho: got 0.0, expected a number above 0"),
        (lambda: sigma(0.0, 1.0), "sensitivity: got 0.0"),
        (lambda: add_noise(np.zeros(2), 0.0, np.random.default_rng(0)), "sigma: got 0.0"),
    ],
)
def test_what_would_be_no_protection_is_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        wrong()


def joint_counts(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(features, 8 bins, 4 classes) of values in [0, 1], counted one by one."""
    counts = np.zeros((x.shape[1], 8, 4))
    for row, label in zip(x, y, strict=True):
        for feature, value in enumerate(row):
            counts[feature, min(int(value * 8), 7), label] += 1
    return counts
