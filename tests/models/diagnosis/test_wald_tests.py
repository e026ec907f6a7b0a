"""Wald tests on moments are what their definitions say, and hold their level where nothing differs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from models.diagnosis import chi_square, wald_tests
from models.diagnosis import wald_tests as class_moments

pytestmark = pytest.mark.slow


def moments_of(values: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """(classes, 5) of one feature of one client; NaN for classes under ten rows, as a client withholds them."""
    told = np.full((classes, 5), np.nan)
    for label in range(classes):
        of_class = values[labels == label]
        if of_class.size >= 10:
            with np.errstate(invalid="ignore"):
                centred = of_class - of_class.mean()
                spread = np.sqrt(np.mean(centred**2))
                shape = np.mean((centred / spread) ** 3), np.mean((centred / spread) ** 4)
            told[label] = of_class.size, of_class.mean(), of_class.std(ddof=1), *shape
    return told


def random_moments(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Such as rows can have: the kurtosis is more than 1 + skewness²."""
    skewness = generator.normal(0, 1, shape)
    kurtosis = 1.3 + skewness**2 + generator.exponential(2, shape)
    rows = generator.integers(10, 400, shape).astype(float)
    return np.stack([rows, generator.normal(3, 2, shape), generator.uniform(0.3, 3, shape), skewness, kurtosis], -1)


def covariance_of(one: np.ndarray) -> np.ndarray:
    rows, _, sd, skewness, kurtosis = one
    both = skewness * sd / (2 * rows)
    return np.array([[sd**2 / rows, both], [both, (kurtosis - 1) / (4 * (rows - 1))]])


def slopes_of(function, at: np.ndarray) -> np.ndarray:
    """Central differences, (outputs, inputs)."""
    steps = 1e-6 * np.eye(at.size)
    return np.stack([(function(at + step) - function(at - step)) / 2e-6 for step in steps], -1)


def one_by_one_of_classes_at_values(pair: np.ndarray, first: int) -> tuple[float, int]:
    """Contrasts to the first class of coefficients `first` and later, as one long vector with one large covariance."""

    def logit(at: np.ndarray) -> np.ndarray:
        mean, log_sd, log_rows = at
        variance = np.exp(2 * log_sd)
        return np.array([log_rows - log_sd - mean**2 / (2 * variance), mean / variance, -1 / (2 * variance)])

    classes, size = pair.shape[1], 3 - first
    apart, covariance = np.zeros((classes, size)), np.zeros((classes, size, classes, size))
    for client, sign in enumerate((1, -1)):
        for label in range(classes):
            one = pair[client, label]
            at = np.array([one[1], np.log(one[2]), np.log(one[0])])
            within = np.zeros((3, 3))
            within[:2, :2], within[2, 2] = covariance_of(one), 1 / one[0]
            slopes = slopes_of(logit, at)
            apart[label] += sign * logit(at)[first:]
            covariance[label, :, label, :] += (slopes @ within @ slopes.T)[first:, first:]
    contrasts = np.kron(np.hstack([-np.ones((classes - 1, 1)), np.eye(classes - 1)]), np.eye(size))
    difference = contrasts @ apart.ravel()
    spread = contrasts @ covariance.reshape(classes * size, -1) @ contrasts.T
    return difference @ np.linalg.pinv(spread, rcond=1e-13) @ difference, size * (classes - 1)


def one_by_one_at_prior(pair: np.ndarray, prior: np.ndarray) -> float:
    def mixture(at: np.ndarray) -> np.ndarray:
        means, log_sds = at.reshape(2, -1)
        mean = prior @ means
        return np.array([mean, np.log(prior @ (np.exp(2 * log_sds) + means**2) - mean**2)])

    apart, covariance = np.zeros(2), np.zeros((2, 2))
    for client, sign in enumerate((1, -1)):
        at = np.concatenate([pair[client, :, 1], np.log(pair[client, :, 2])])
        within = np.zeros((at.size, at.size))
        for label in range(prior.size):
            places = np.ix_([label, label + prior.size], [label, label + prior.size])
            within[places] = covariance_of(pair[client, label])
        slopes = slopes_of(mixture, at)
        apart += sign * mixture(at)
        covariance += slopes @ within @ slopes.T
    return apart @ np.linalg.solve(covariance, apart)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_overall_moments_are_numpys_of_all_rows(seed, classes):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), generator.integers(10, 60, classes))
    values = generator.gamma(2, 3, labels.size) + 5 * generator.normal(size=classes)[labels]
    found = class_moments.combine_classes(
        moments_of(values, labels, classes + 1)
    )  # a class that is absent changes nothing
    expected = [
        values.size,
        values.mean(),
        values.std(ddof=1),
        stats.skew(values),
        stats.kurtosis(values, fisher=False),
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_mean_and_spread_is_the_wald_statistic_of_both():
    moments = random_moments(np.random.default_rng(0), 50, 2)
    expected = []
    for a, b in moments:
        apart = np.array([a[1] - b[1], np.log(a[2] / b[2])])
        expected.append(apart @ np.linalg.inv(covariance_of(a) + covariance_of(b)) @ apart)
    np.testing.assert_allclose(wald_tests.mean_and_spread(moments), expected)


def test_mean_and_spread_floors_the_kurtosis_and_the_determinant():
    two_values = np.array([[1e4, 0.3, 0.46, 0.87, 1 + 0.87**2], [1e4, 0.4, 0.46, 0.87, 1 + 0.87**2]])
    first, least = 2 * 0.46**2 / 1e4, 1e-3  # without the floor, the determinant is 1e-4 of the product
    np.testing.assert_allclose(wald_tests.mean_and_spread(two_values), 0.1**2 / (least * first))
    even = np.array([[100.0, 0.0, 1.0, 0.0, 1.0], [100.0, 0.0, 2.0, 0.0, 1.0]])
    np.testing.assert_allclose(wald_tests.mean_and_spread(even), np.log(2) ** 2 / (2 * 0.2 / (4 * 99)))


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_batched_tests_equal_a_loop_over_pairs_with_written_out_covariances(classes):
    generator = np.random.default_rng(classes)
    moments = random_moments(generator, 8, 3, 2, classes)
    told = class_moments.standardize(moments)
    prior = generator.dirichlet(np.ones(classes), (8, 3))
    batched = {
        "in_classes": wald_tests.compare_inputs_in_classes(told),
        "at_values": wald_tests.compare_classes_given_inputs(told),
        "homogeneous": wald_tests.compare_odds_ratios(told),
        "at_prior": wald_tests.compare_inputs_at_prior(told, prior),
    }
    for place in np.ndindex(8, 3):
        pair = moments[place]  # in its own units: the tests do not depend on them
        expected = {
            "in_classes": (wald_tests.mean_and_spread(np.swapaxes(pair, 0, 1)).sum(), 2 * classes),
            "at_values": one_by_one_of_classes_at_values(told[place], 0),
            "homogeneous": one_by_one_of_classes_at_values(told[place], 1),
            "at_prior": (one_by_one_at_prior(pair, prior[place]), 2),
        }
        for name, (statistic, free) in expected.items():
            np.testing.assert_allclose(batched[name][0][place], statistic, rtol=1e-5, err_msg=name)
            assert batched[name][1][place] == free, name


def test_of_values_is_the_test_of_the_overall_moments():
    told = class_moments.standardize(random_moments(np.random.default_rng(1), 20, 2, 4))
    statistic, free = wald_tests.compare_inputs(told)
    np.testing.assert_allclose(statistic, wald_tests.mean_and_spread(class_moments.combine_classes(told)))
    assert (free == 2).all()


@pytest.mark.parametrize(
    "name", ["compare_inputs", "compare_inputs_in_classes", "compare_classes_given_inputs", "compare_odds_ratios"]
)
def test_no_test_depends_on_units_or_on_the_order_of_clients_and_classes(name):
    moments = random_moments(np.random.default_rng(2), 30, 2, 4)
    one = getattr(wald_tests, name)
    statistic, free = one(class_moments.standardize(moments))
    other_units = moments * [1, 40, 40, 1, 1] + [0, 1e4, 0, 0, 0]
    for changed in (other_units, moments[:, ::-1], moments[:, :, [2, 0, 3, 1]]):
        np.testing.assert_allclose(one(class_moments.standardize(changed))[0], statistic, rtol=1e-5)
        np.testing.assert_array_equal(one(class_moments.standardize(changed))[1], free)


def test_a_client_does_not_differ_from_itself():
    moments = np.repeat(random_moments(np.random.default_rng(3), 10, 1, 3), 2, axis=1)
    told = class_moments.standardize(moments)
    for tested in (
        wald_tests.compare_inputs(told),
        wald_tests.compare_classes_given_inputs(told),
        wald_tests.compare_odds_ratios(told),
    ):
        np.testing.assert_allclose(tested[0], 0, atol=1e-9)


def test_a_class_that_one_client_lacks_counts_for_the_overall_moments_only():
    moments = random_moments(np.random.default_rng(4), 10, 2, 3)
    moments[:, 1, 2] = np.nan
    told = class_moments.standardize(moments)
    for one in (
        wald_tests.compare_inputs_in_classes,
        wald_tests.compare_classes_given_inputs,
        wald_tests.compare_odds_ratios,
    ):
        lacking, shared = one(told), one(told[:, :, :2])
        np.testing.assert_allclose(lacking[0], shared[0])
        np.testing.assert_array_equal(lacking[1], shared[1])
    np.testing.assert_array_equal(class_moments.combine_classes(told)[:, 0, 0], moments[:, 0, :, 0].sum(-1))


def test_what_cannot_be_tested_has_no_degrees_of_freedom():
    nothing = class_moments.standardize(np.full((2, 2, 3, 5), np.nan))
    everything = [
        wald_tests.compare_inputs(nothing),
        wald_tests.compare_inputs_in_classes(nothing),
        wald_tests.compare_classes_given_inputs(nothing),
        wald_tests.compare_odds_ratios(nothing),
        wald_tests.compare_inputs_at_prior(nothing, np.zeros((2, 3))),
    ]
    for statistic, free in everything:
        assert not statistic.any()
        assert not free.any()


def test_constant_values_differ_exactly_where_they_are_not_the_same():
    same = np.full((2, 2, 5), np.nan)
    same[..., :3] = [100.0, 0.1, 0.0]
    same[0, 1, 1] = np.nextafter(0.1, 1)  # its mean may be rounded
    other = same.copy()
    other[1, :, 1] = 0.2
    told = class_moments.standardize(np.stack([same, other]))
    for one in (wald_tests.compare_inputs, wald_tests.compare_inputs_in_classes):
        np.testing.assert_array_equal(chi_square.p_value(one(told)) < 1e-9, [False, True])


def test_one_odd_row_among_values_that_are_else_one_is_no_difference():
    labels = np.repeat([0, 1], 150)
    odd = np.where(np.arange(300) == 7, 1.0, 0.0)
    told = class_moments.standardize(np.stack([moments_of(x, labels, 2) for x in (np.zeros(300), odd)]))
    for one in (wald_tests.compare_inputs, wald_tests.compare_inputs_in_classes, wald_tests.compare_odds_ratios):
        assert chi_square.p_value(one(told)) > 0.1


def test_in_its_own_units_at_a_prior_a_client_has_mean_0_and_standard_deviation_1():
    generator = np.random.default_rng(5)
    told = class_moments.standardize(random_moments(generator, 20, 2, 4))
    prior = generator.dirichlet(np.ones(4), 20)
    scaled = class_moments.scaled_at_prior(told, prior)
    weight = prior[:, None]
    np.testing.assert_allclose((weight * scaled[..., 1]).sum(-1), 0, atol=1e-12)
    np.testing.assert_allclose((weight * (scaled[..., 1] ** 2 + scaled[..., 2] ** 2)).sum(-1), 1)


def test_a_gain_and_an_offset_of_one_client_are_gone_in_its_own_units():
    generator = np.random.default_rng(6)
    one = random_moments(generator, 20, 1, 3)
    turned = one * [1, 2.5, 2.5, 1, 1] + [0, -7, 0, 0, 0]
    pair = class_moments.scaled_at_prior(
        class_moments.standardize(np.concatenate([one, turned], 1)), generator.dirichlet(np.ones(3), 20)
    )
    np.testing.assert_allclose(pair[:, 0], pair[:, 1], rtol=1e-9, atol=1e-9)


def drawn(generator: np.random.Generator, repetitions: int, rows: np.ndarray, mean, sd) -> np.ndarray:
    """(repetitions, classes, 5) of one client with normal classes."""
    told = np.zeros((repetitions, len(rows[0]), 5))
    for place in np.ndindex(told.shape[:2]):
        values = generator.normal(mean[place[1]], sd[place[1]], rows[place])
        centred = values - values.mean()
        square = np.mean(centred**2)
        shape = np.mean(centred**3) / square**1.5, np.mean(centred**4) / square**2
        told[place] = values.size, values.mean(), values.std(ddof=1), *shape
    return told


@pytest.mark.parametrize("seed", [0, 1])
def test_where_a_hypothesis_holds_its_probabilities_are_uniform(seed):
    """Client B is client A tilted by exp(t x): P(Y | X) is equal, and classes stay normal; its prior may move besides."""
    generator = np.random.default_rng(seed)
    mean, sd, share = np.array([-1.0, 0.0, 1.5]), np.array([1.0, 0.7, 1.2]), np.array([0.3, 0.3, 0.4])
    tilt = 0.6
    tilted = share * np.exp(tilt * mean + tilt**2 * sd**2 / 2)
    tilted /= tilted.sum()
    size, repetitions = 2000, 400

    def client(prior, moved):
        rows = generator.multinomial(size, prior, repetitions)
        return drawn(generator, repetitions, rows, mean + moved * sd**2, sd)

    a, same, fed, other = client(share, 0), client(share, 0), client(tilted, tilt), client([0.2, 0.5, 0.3], 0)
    moved = client([0.2, 0.5, 0.3], tilt)
    prior = np.broadcast_to(share, (repetitions, 3))

    def pair(b):
        return class_moments.standardize(np.stack([a, b], 1))

    true = {
        "X": wald_tests.compare_inputs(pair(same)),
        "X | Y": wald_tests.compare_inputs_in_classes(pair(other)),
        "Y | X": wald_tests.compare_classes_given_inputs(pair(fed)),
        "no interaction": wald_tests.compare_odds_ratios(pair(moved)),
        "X at a prior": wald_tests.compare_inputs_at_prior(pair(other), prior),
    }
    for name, tested in true.items():
        chance = chi_square.p_value(tested)
        assert stats.kstest(chance, "uniform").pvalue > 0.001, name
        assert stats.binomtest(int((chance < 0.05).sum()), repetitions, 0.05).pvalue > 0.001, name
    false = {
        "X": wald_tests.compare_inputs(pair(fed)),
        "X | Y": wald_tests.compare_inputs_in_classes(pair(fed)),
        "Y | X": wald_tests.compare_classes_given_inputs(pair(other)),
        "X at a prior": wald_tests.compare_inputs_at_prior(pair(moved), prior),
        "no interaction": wald_tests.compare_odds_ratios(class_moments.standardize(np.stack([a, a[:, [1, 0, 2]]], 1))),
    }
    for name, tested in false.items():
        assert (chi_square.p_value(tested) < 0.01).mean() > 0.95, name
