"""The posterior of normal classes: against scikit-learn, a loop over densities, and where densities are no numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.naive_bayes import GaussianNB

from models.diagnosis.fomichev_distances import (
    Readings,
    federation_grid,
    posterior,
    posteriors,
    statistics_from_rows,
    usable_sd,
)


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.floats(-6, 6), st.floats(-3, 3))
def test_a_clients_posterior_is_that_of_scikit_learns_naive_bayes(seed, classes, exponent, offset):
    """Over the range of the data, with variances divided by n as scikit-learn has them."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), rng.integers(2, 40, classes))
    x = 10**exponent * (
        rng.normal(size=classes)[y] + rng.uniform(0.2, 3, classes)[y] * rng.normal(size=y.size) + offset
    )
    told = statistics_from_rows([(x[:, None], y)], classes)
    grid = federation_grid(told, 50)
    ours = posteriors(told, grid, Readings(divisor="n"))[0, 0]
    theirs = GaussianNB(var_smoothing=0).fit(x[:, None], y).predict_proba(grid.T)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_many_posteriors_at_once_are_bayes_rule_one_by_one():
    rng = np.random.default_rng(0)
    at, mean, sd = rng.normal(size=(3, 7)), rng.normal(size=(3, 4)), rng.uniform(0.5, 2, (3, 4))
    prior = rng.dirichlet(np.ones(4), 3)
    for row, points in enumerate(at):
        for point, x in enumerate(points):
            joint = np.array([norm.pdf(x, mean[row, m], sd[row, m]) * prior[row, m] for m in range(4)])
            ours = posterior(at, mean, sd, prior)[row, point]
            np.testing.assert_allclose(ours, joint / joint.sum(), atol=1e-12)


def test_far_from_all_data_where_no_density_is_above_0_the_class_with_the_larger_sd_has_it():
    far = posterior(np.array([1e6]), np.array([0.0, 0.0]), np.array([1.0, 2.0]), np.array([0.5, 0.5]))
    np.testing.assert_array_equal(far, [[0.0, 1.0]])


def test_where_not_even_a_logarithm_is_finite_it_is_the_prior_of_the_classes_that_are_there():
    mean, sd = np.array([0.0, 0.0, np.nan]), np.array([1e-3, 1e-3, 1e-3])
    found = posterior(np.array([1e200]), mean, sd, np.array([0.2, 0.6, 0.2]))
    np.testing.assert_allclose(found, [[0.25, 0.75, 0.0]])


@pytest.mark.parametrize("mean", [0.0, np.nan])
def test_a_class_with_prior_0_or_without_a_mean_has_probability_0(mean):
    prior = np.array([0.5, 0.5, 0.0 if mean == 0 else 0.3])
    found = posterior(np.linspace(-3, 3, 9), np.array([-1.0, 1.0, mean]), np.ones(3), prior / prior.sum())
    without = posterior(np.linspace(-3, 3, 9), np.array([-1.0, 1.0]), np.ones(2), np.array([0.5, 0.5]))
    np.testing.assert_allclose(found, np.column_stack([without, np.zeros(9)]), atol=1e-15)


@pytest.mark.parametrize("told", [np.nan, 0.0])
def test_a_class_of_one_row_has_the_pooled_deviation_of_the_others_whatever_is_told_of_it(told):
    rng = np.random.default_rng(1)
    groups = [rng.normal(0, 1, 30), rng.normal(5, 3, 10)]
    sds = np.array([group.std(ddof=1) for group in groups])
    pooled = np.sqrt(sum(((group - group.mean()) ** 2).sum() for group in groups) / (40 - 2))
    found = usable_sd(np.array([*sds, told]), np.array([30, 10, 1]), np.asarray(3.0))
    np.testing.assert_allclose(found, [*sds, pooled])


def test_a_deviation_of_0_is_a_thousandth_of_the_features_and_1_where_that_is_0():
    found = usable_sd(np.array([[0.0, 2.0], [0.0, 0.0]]), np.array([[5, 5], [5, 5]]), np.array([4.0, 0.0]))
    np.testing.assert_array_equal(found, [[0.004, 2.0], [1.0, 1.0]])
