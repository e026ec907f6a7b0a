"""Random pairs have the shift, the effect and the kinds that they say: on many rows, by tests of their own."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency, norm

from publications.synthetic_pairs.marginals import Codes, Number, tilted
from publications.synthetic_pairs.random_distributions import KINDS, random_law
from publications.synthetic_pairs.random_pairs import (
    BINS,
    OutOfReachError,
    of_dependence,
    of_shares,
    of_values,
    random_pair,
    shifted_law,
)

pytestmark = pytest.mark.slow

ROWS, EFFECT = 40000, 0.3
CLOSE = 0.05  # of φ: rows, and the rows that stand for a law


def drawn_laws(truth: str, seed: int, effect: float = EFFECT):
    rng = np.random.default_rng([5, seed])
    while True:
        law = random_law(rng, KINDS[seed % 3])
        try:
            second, shifted = shifted_law(rng, law, frozenset(truth.split("+")), effect)
        except OutOfReachError:
            continue
        return law, (law(rng, ROWS), second(rng, ROWS)), shifted


def phi(table: np.ndarray) -> float:
    """Of counts (2, columns) with as many rows of both."""
    table = table[:, table.sum(0) > 0]
    return np.sqrt(max(0, chi2_contingency(table, correction=False)[0] - table.shape[1] + 1) / (table[0].sum() / 2))


def phi_of_feature(clients, at: int, categories: int) -> float:
    x, other = (x[:, at] for x, _ in clients)
    edges = np.arange(1, categories) + 0.5 if categories else np.quantile(np.append(x, other), np.arange(1, 10) / 10)
    cells = [np.bincount(np.searchsorted(edges, of), minlength=len(edges) + 1) for of in (x, other)]
    return phi(np.array(cells))


def phi_of_classes(clients) -> float:
    count = max(y.max() for _, y in clients) + 1
    return phi(np.array([np.bincount(y, minlength=count) for _, y in clients]))


@pytest.mark.parametrize("seed", range(3))
def test_feature_shift_moves_the_features_that_it_names_by_the_effect_and_leaves_the_law_of_the_class(seed):
    law, clients, shifted = drawn_laws("feature", seed)
    for at, margin in enumerate(law.margins):
        assert phi_of_feature(clients, at, margin.categories) == pytest.approx(EFFECT * (at in shifted), abs=CLOSE)
    for x, y in clients:
        held = law.chances(x)
        for name in range(held.shape[1]):
            error = np.sqrt((held[:, name] * (1 - held[:, name])).sum()) / len(y)
            assert (y == name).mean() == pytest.approx(held[:, name].mean(), abs=4 * error)


@pytest.mark.parametrize("seed", range(3))
def test_concept_shift_changes_the_law_of_the_class_and_neither_p_x_nor_p_y(seed):
    law, clients, shifted = drawn_laws("concept", seed)
    assert phi_of_classes(clients) < CLOSE
    for at, margin in enumerate(law.margins):
        assert phi_of_feature(clients, at, margin.categories) < CLOSE
    x, y = clients[1]
    far = np.abs([(y == m).mean() - law.chances(x)[:, m].mean() for m in range(len(law.intercepts))])
    assert far.max() < 0.02
    surprise = [-np.log(law.chances(x)[np.arange(len(y)), y]).mean() for x, y in clients]
    assert surprise[1] > surprise[0] + 0.005  # the first law explains its own classes better
    assert {*shifted} <= law.effects.keys()


@pytest.mark.parametrize("seed", range(3))
def test_label_shift_moves_p_y_by_the_effect_and_leaves_p_x_within_every_class(seed):
    law, clients, shifted = drawn_laws("label", seed)
    assert phi_of_classes(clients) == pytest.approx(EFFECT, abs=CLOSE)
    assert shifted == ()
    for at, margin in enumerate(law.margins):
        for name in range(len(law.intercepts)):
            within = [(x[y == name][:, [at]], y[y == name]) for x, y in clients]
            rows = min(len(y) for _, y in within)
            if rows > 1000:
                same = [(x[:rows], y[:rows]) for x, y in within]
                assert phi_of_feature(same, 0, margin.categories) < 6 / np.sqrt(rows)


def test_where_features_shift_as_well_label_shift_moves_p_y_from_both():
    _, clients, shifted = drawn_laws("feature+label", 1)
    assert phi_of_classes(clients) > EFFECT - CLOSE
    assert shifted


@pytest.mark.parametrize("effect", [0.15, 0.6])
def test_the_effect_can_be_set(effect):
    _, clients, _ = drawn_laws("label", 4, effect)
    assert phi_of_classes(clients) == pytest.approx(effect, abs=CLOSE)


def test_a_pair_has_rows_features_and_classes_within_its_bounds_and_the_same_seed_gives_it_again():
    kinds = set()
    for seed in range(12):
        pair = random_pair(np.random.default_rng(seed), frozenset(), 0.0, (50, 90))
        again = random_pair(np.random.default_rng(seed), frozenset(), 0.0, (50, 90))
        assert 2 <= len(pair.categories) <= 20
        assert 2 <= pair.classes <= 10
        for (x, y), (other, labels) in zip(pair.clients, again.clients, strict=True):
            np.testing.assert_array_equal(x, other)
            np.testing.assert_array_equal(y, labels)
            assert 50 <= len(y) <= 90
            for at, categories in enumerate(pair.categories):
                assert not categories or set(x[:, at]) <= set(range(1, categories + 1))
        kinds.add(pair.about[0])
    assert kinds == {*KINDS}


def test_pairs_are_counted_by_the_rows_of_the_smaller_client():
    for seed in range(6):
        pair = random_pair(np.random.default_rng(seed), frozenset(), 0.0, (50, 5000))
        low, high = map(int, pair.about[3].removesuffix(" rows of the smaller").split(" to "))
        assert low <= min(len(y) for _, y in pair.clients) <= high


def test_phi_of_a_mean_that_moves_is_that_of_the_normal_integral():
    """In ten bins with as many rows of both, of N(0, 1) and N(0.3, 1)."""
    z = norm.ppf((np.arange(40000) + 0.5) / 40000)
    both = np.append(z, z + 0.3)
    inner = np.concatenate([[-np.inf], np.quantile(both, np.arange(1, BINS) / BINS), [np.inf]])
    p, q = np.diff(norm.cdf(inner)), np.diff(norm.cdf(inner - 0.3))
    assert of_values(z, z + 0.3, 0) == pytest.approx(np.sqrt(2 * ((p - q) ** 2 / (p + q)).sum()), abs=1e-3)
    assert of_shares(np.array([0.5, 0.5]), np.array([0.65, 0.35])) == pytest.approx(0.3, abs=0.01)


def test_the_same_chances_have_no_effect_and_other_intercepts_alone_have_none_either():
    bins, rng = np.arange(1000) % 10, np.random.default_rng(0)
    odds = np.repeat(rng.lognormal(size=(10, 1, 3)), 100, 0).reshape(10, 100, 3).swapaxes(0, 1).reshape(1000, 3)
    chances = odds / odds.sum(1, keepdims=True)
    other = odds * [1, 3, 0.5]
    assert of_dependence(bins, chances, other / other.sum(1, keepdims=True)) < 1e-3
    assert of_dependence(bins, chances, np.roll(chances, 1, 1)) > 0.3


def test_margins_start_where_they_are_and_move_further_with_strength():
    rng, z = np.random.default_rng(0), np.random.default_rng(1).normal(size=5000)
    for margin in (Number("skewed"), Number("heavy tails"), Codes((0.2, 0.5, 0.3))):
        for _ in range(4):
            family = margin.direction(rng)
            apart = [of_values(margin.values(z), family(s).values(z), margin.categories) for s in (0, 0.3, 1)]
            assert apart[0] < 1e-6 < apart[1] < apart[2]
    assert tilted((0.2, 0.8), np.zeros(2)) == pytest.approx((0.2, 0.8))
