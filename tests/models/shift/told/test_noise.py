"""Noise costs what it is said to cost: the formulas, what one row moves, and the noise itself."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from models.shift.told.noise import counts_sensitivity, epsilon, noisy, rho, sigma, split, sums_sensitivity

DELTAS = st.floats(1e-12, 0.5)
SIZES = st.floats(1e-6, 50.0)


def draw(name: str) -> np.random.Generator:
    return np.random.default_rng(list(hashlib.sha256(name.encode()).digest()))


@pytest.mark.parametrize(("told", "cost"), [(1, "0.0208"), (2, "0.0800"), (4, "0.298"), (8, "1.049")])
def test_rho_at_delta_one_in_100000_is_the_reference_tables(told, cost):
    digits = len(cost.partition(".")[2])
    assert f"{rho(told, 1e-5):.{digits}f}" == cost


@given(SIZES, DELTAS)
def test_epsilon_and_rho_undo_each_other(size, delta):
    assert rho(epsilon(size, delta), delta) == pytest.approx(size, rel=1e-9)
    assert epsilon(rho(size, delta), delta) == pytest.approx(size, rel=1e-9)


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


@pytest.mark.parametrize("cost", [0.0208, 0.298, 1.0])
def test_epsilon_bounds_the_delta_that_two_gaussians_really_have(cost):
    """The exact delta of the Gaussian mechanism (Balle and Wang 2018) at the epsilon of the conversion."""
    told, ratio = epsilon(cost, 1e-5), 1 / sigma(1.0, cost)
    exact = stats.norm.cdf(ratio / 2 - told / ratio) - math.exp(told) * stats.norm.cdf(-ratio / 2 - told / ratio)
    assert 0 < exact < 1e-5


@given(SIZES, st.dictionaries(st.text(min_size=1), st.floats(1e-3, 1e3), min_size=1, max_size=6))
def test_the_parts_of_an_answer_cost_the_whole_in_proportion_to_their_shares(cost, shares):
    parts = split(cost, shares)
    assert math.fsum(parts.values()) == pytest.approx(cost, rel=1e-12)
    first = next(iter(shares))
    for part, share in shares.items():
        assert parts[part] / parts[first] == pytest.approx(share / shares[first])


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**32))
def test_no_row_moves_what_is_told_by_more_than_its_sensitivity(features, classes, seed):
    generator = np.random.default_rng(seed)
    x = generator.choice([0.0, 1.0, generator.random()], (12, features))
    y = generator.integers(0, classes, 12)
    without = int(generator.integers(12))
    kept = np.arange(12) != without
    counts, sums = (np.subtract(told(x, y), told(x[kept], y[kept])) for told in (joint_counts, class_sums))
    assert np.linalg.norm(counts) == pytest.approx(counts_sensitivity(features))
    assert np.linalg.norm(sums) <= sums_sensitivity(features) * (1 + 1e-12)


def test_a_row_at_the_upper_bounds_moves_the_sums_by_their_sensitivity():
    x, y = np.ones((1, 7)), np.array([2])
    assert np.linalg.norm(class_sums(x, y)) == pytest.approx(sums_sensitivity(7))


@pytest.mark.parametrize("spread", [0.3, 2.9, 11.0])
def test_noise_has_its_sigma_about_the_truth_and_is_normal(spread):
    truth = {"counts": np.full((5, 8, 500), 40), "sums": np.full((4, 5000), 7.25)}
    told = noisy(truth, dict.fromkeys(truth, spread), draw)
    for name in truth:
        noise = (told[name] - truth[name]).ravel()
        assert abs(noise.mean()) < 4.5 * noise.std() / math.sqrt(noise.size)
    sums = (told["sums"] - truth["sums"]).ravel()
    assert sums.std() == pytest.approx(spread, rel=0.02)
    assert stats.kstest(sums / spread, "norm").pvalue > 1e-3
    whole = (told["counts"] - truth["counts"]).ravel()
    for cell in (-1, 0, 1, 2):  # a normal, rounded: the share of each whole number is its interval's
        share = float(stats.norm(0, spread).cdf(cell + 0.5) - stats.norm(0, spread).cdf(cell - 0.5))
        assert abs((whole == cell).mean() - share) < 4.5 * math.sqrt(share * (1 - share) / whole.size)


def test_noise_of_one_cell_says_nothing_of_anothers_nor_of_another_parts():
    told = noisy({name: np.zeros((2, 20_000)) for name in "ab"}, {"a": 1.0, "b": 1.0}, draw)
    correlations = np.corrcoef(np.concatenate([told["a"], told["b"]]))
    assert np.abs(correlations - np.eye(4)).max() < 4.5 / math.sqrt(20_000)


def test_a_parts_noise_is_the_same_whatever_is_told_beside_it_and_in_whatever_order():
    alone = noisy({"counts": np.zeros(9, np.int64)}, {"counts": 5.0}, draw)
    beside = noisy({"sums": np.ones(3), "counts": np.zeros(9, np.int64)}, {"counts": 5.0, "sums": 1.0}, draw)
    np.testing.assert_array_equal(alone["counts"], beside["counts"])


@given(st.floats(1e-3, 1e3), st.floats(-1e4, 1e4))
def test_lowest_bits_of_what_is_told_are_the_grids_and_not_the_values(spread, value):
    counts, sums = (
        noisy({"told": np.full(50, number)}, {"told": spread}, draw)["told"] for number in (int(value), value)
    )
    assert counts.dtype == np.int64
    assert sums.dtype == np.float64
    step = 2.0 ** math.floor(math.log2(spread / 32))
    assert spread / 64 < step <= spread / 32
    np.testing.assert_array_equal(sums / step, np.rint(sums / step))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: epsilon(-1, 1e-5), "rho is -1, and must be a number from 0 on"),
        (lambda: rho(math.nan, 1e-5), "epsilon is nan"),
        (lambda: rho(1, 0), "delta is 0, and must be between 0 and 1"),
        (lambda: sigma(1.0, 0.0), "rho is 0.0, and must be a number above 0"),
        (lambda: sigma(0.0, 1.0), "sensitivity is 0.0"),
        (lambda: split(1.0, {"counts": 0.0}), "the share of counts is 0.0"),
        (lambda: noisy({"a": np.zeros(2)}, {}, draw), r"there is noise for \[\], and there are \['a'\]"),
        (lambda: noisy({"a": np.zeros(2)}, {"a": 0.0}, draw), "the sigma of a is 0.0"),
        (lambda: noisy({"a": np.array([1.0, math.nan])}, {"a": 1.0}, draw), "a has numbers that are not finite"),
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


def class_sums(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(1 + 2 features, 4 classes): rows, Σz and Σz², added one by one."""
    sums = np.zeros((1 + 2 * x.shape[1], 4))
    for row, label in zip(x, y, strict=True):
        sums[:, label] += np.concatenate([[1.0], row, row**2])
    return sums
