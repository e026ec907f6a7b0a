"""Bounds of an audit against laws that are known, and against the chance of guesses computed another way."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from models.privacy_accounting import epsilon
from models.privacy_audit import Guesses, MeasuredMu

DELTA = 1e-5


def drawn(mu, canaries=300, audits=400, seed=0):
    """Return scores and coins of audits of Gaussian noise with this mu."""
    random = np.random.default_rng(seed)
    inside = random.random((audits, canaries)) < 0.5
    return zip(mu * inside + random.standard_normal(inside.shape), inside, strict=True)


def chance_by_terms(guesses, value, delta):
    """Return the chance of Steinke et al. (2023), theorem 5.2, term by term."""

    def at_least(count):
        right = 1 / (1 + math.exp(-value))
        return sum(binom.pmf(k, guesses.made, right) for k in range(max(count, 0), guesses.made + 1))

    first = at_least(guesses.right)
    more = max((at_least(guesses.right - i) - first) / i for i in range(1, guesses.right + 1))
    return min(1.0, first + 2 * guesses.canaries * delta * more)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, 2.5, 6.0])
@pytest.mark.parametrize("right", [1, 20, 37, 40])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_the_chance_of_guesses_is_that_of_the_theorem(value, right, delta):
    guesses = Guesses(200, 40, right)
    assert guesses.chance(value, delta) == pytest.approx(chance_by_terms(guesses, value, delta), rel=1e-9)


def test_no_right_guess_shows_nothing_and_all_of_them_show_the_most_that_so_many_can():
    assert Guesses(200, 40, 0).least_epsilon(DELTA) == 0
    assert Guesses(200, 40, 20).least_epsilon(DELTA) == 0
    most = Guesses(300, 60, 7).ceiling.least_epsilon(0.0)
    assert 1 / (1 + math.exp(-most)) == pytest.approx(0.05 ** (1 / 60), abs=1e-6), "all are right in 5 % of audits"
    bounds = [Guesses(300, 60, right).least_epsilon(DELTA) for right in range(30, 61)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(2.96, abs=0.005), (
        "what 300 canaries can show at most, a tenth guessed at either end"
    )


def test_the_surest_tenth_at_either_end_is_guessed():
    scores = np.arange(100.0)
    assert Guesses.of(scores, scores >= 50) == Guesses(100, 20, 20)
    assert Guesses.of(scores, scores < 50) == Guesses(100, 20, 0)
    assert Guesses.of(scores[:20], np.arange(20) % 2 == 0).made == 10


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.92, 2.9])
def test_bounds_hold_in_95_of_100_audits_of_gaussian_noise(mu):
    true = epsilon(mu**2 / 2, DELTA)
    found = [(MeasuredMu.of(*audit), Guesses.of(*audit)) for audit in drawn(mu)]
    assert np.mean([one.value for one, _ in found]) == pytest.approx(mu, abs=0.02)
    assert np.std([one.value for one, _ in found]) == pytest.approx(np.mean([one.error for one, _ in found]), rel=0.1)
    above = np.mean([one.least > mu for one, _ in found])
    assert 0.02 < above < 0.08 or not mu
    assert np.mean([guesses.least_epsilon(DELTA) > true for _, guesses in found]) <= 0.05
    assert sum(one.exceeds(mu) for one, _ in found) <= 2


def test_half_of_the_noise_is_found_by_scores_where_guesses_do_not_find_it():
    claimed = 0.92
    found = [(MeasuredMu.of(*audit), Guesses.of(*audit)) for audit in drawn(2 * claimed, audits=100)]
    assert all(one.exceeds(claimed) for one, _ in found)
    assert not any(guesses.least_epsilon(DELTA) > epsilon(claimed**2 / 2, DELTA) for _, guesses in found)


def test_canaries_on_one_side_only_measure_nothing():
    with pytest.raises(ValueError, match="got 5 inside and 0 outside, expected two of each"):
        MeasuredMu.of(np.zeros(5), np.ones(5, bool))
