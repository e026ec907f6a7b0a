"""Rank correlations that a client reports, and values far from all others."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from models.diagnosis.client_summaries.client_summary import Layout, assign_columns
from models.diagnosis.client_summaries.rank_correlations import (
    LEAST_PAIR_ROWS,
    clip_far_values,
    combine_correlations,
    concatenate_correlations,
    correlate_features,
    count_far_values,
)

FEATURES = np.arange(3)


def layout(features=3, classes=2):
    names = tuple(f"x{at}" for at in range(features))
    return Layout(names, (None,) * features, np.full(features, -4.0), np.full(features, 4.0), 32, classes)


def reported(x, y, row_ids=None):
    row_ids = np.arange(len(y)) if row_ids is None else row_ids
    return correlate_features(x, assign_columns(y, row_ids, layout()), row_ids, layout(), FEATURES)


def rows(count=200, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3))
    x[:, 1] += x[:, 0]
    return x, (np.arange(count) % 4 == 0).astype(np.int64)


def test_correlations_are_spearmans_by_class_and_of_all_rows_also_with_missing_values():
    x, y = rows()
    x[::7, 2] = np.nan
    found = reported(x, y)
    for column, used in enumerate((y == 0, y == 1, y >= 0)):
        for pair, (a, b) in enumerate(((0, 1), (0, 2), (1, 2))):
            both = used & ~np.isnan(x[:, [a, b]]).any(1)
            assert found.values[0, pair, column] == pytest.approx(spearmanr(x[both, a], x[both, b])[0])


@pytest.mark.slow
def test_variances_are_those_of_many_draws():
    draws = [reported(*rows(400, seed)) for seed in range(200)]
    spread = np.var([draw.values[0] for draw in draws], axis=0)
    expected = np.mean([draw.variances[0] for draw in draws], axis=0)
    np.testing.assert_allclose(expected / spread, 1, atol=0.35)


def test_units_and_single_values_change_no_correlation():
    x, y = rows()
    other = x.copy()
    other[:, 0] = np.exp(3 * x[:, 0])
    other[x[:, 1].argmax(), 1] = 1e9
    np.testing.assert_allclose(reported(other, y).values, reported(x, y).values)


@pytest.mark.parametrize("copies", [False, True])
def test_a_class_of_too_few_different_rows_has_no_correlation_and_is_in_no_total(copies):
    x, y = rows(2 * LEAST_PAIR_ROWS + LEAST_PAIR_ROWS - 1)
    y = (np.arange(len(y)) >= 2 * LEAST_PAIR_ROWS).astype(np.int64)
    row_ids = np.arange(len(y))
    if copies:
        x, y = np.concatenate([x, x[-5:]]), np.append(y, y[-5:])
        row_ids = np.append(row_ids, row_ids[-5:])
    found = reported(x, y, row_ids)
    assert np.isnan(found.values[..., 1]).all()
    np.testing.assert_array_equal(found.values[..., 2], found.values[..., 0])


def test_a_pair_with_too_few_rows_that_have_both_values_is_left_out():
    x, y = rows(80)
    y[:] = 0
    x[: 80 - LEAST_PAIR_ROWS + 1, 2] = np.nan
    found = reported(x, y)
    assert np.isnan(found.values[0, 1:, 0]).all()
    assert np.isfinite(found.values[0, 0, 0])


def test_a_client_may_require_more_rows():
    x, y = rows(200)
    x[:140, 2] = np.nan  # of 60 complete rows, 45 are of the first class
    columns, row_ids = assign_columns(y, np.arange(200), layout(), 50), np.arange(200)
    found = correlate_features(x, columns, row_ids, layout(), FEATURES, 50)
    np.testing.assert_array_equal(np.isfinite(found.values[0]), [[1, 0, 1], [0, 0, 1], [0, 0, 1]])


def test_a_feature_that_few_rows_have_has_no_correlation_since_it_would_show_their_ranks():
    x, y = rows(400)
    for few, others in ((1, 9), (9, 10)):
        x[:, 2] = 0
        x[np.flatnonzero(y == 0)[:few], 2] = 1
        x[np.flatnonzero(y == 1)[:others], 2] = 1
        found = reported(x, y).values[0]
        assert np.isnan(found[1:, 0]).all()
        assert np.isfinite(found[1:, 1]).all() == (others >= 10)
        assert np.isfinite(found[1:, 2]).all()
        assert np.isfinite(found[0]).all()


def test_a_feature_that_few_rows_have_among_those_with_another_value_has_no_correlation():
    x, y = rows(400)
    y[:] = 0
    x[:, 2] = np.arange(400) < 200
    x[9:200, 1] = np.nan
    found = reported(x, y).values[0, :, 0]
    assert np.isfinite(found[:2]).all()
    assert np.isnan(found[2])


def test_others_combined_are_the_mean_by_rows_without_the_client_itself():
    parts = concatenate_correlations([reported(*rows(seed=seed)) for seed in range(3)])
    by_column = np.array([[150, 50, 200], [300, 100, 400], [150, 50, 200]], float)
    rest = combine_correlations(parts, by_column)
    same = combine_correlations(parts, by_column, [[1, 2], [0, 2], [0, 1]])
    np.testing.assert_allclose(rest.values, same.values)
    np.testing.assert_allclose(rest.variances, same.variances)
    np.testing.assert_allclose(rest.values[0], (2 * parts.values[1] + parts.values[2]) / 3)


def column(*far, count=1000):
    return np.concatenate([np.random.default_rng(1).normal(100, 15, count - len(far)), far])[:, None]


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (column(), [0, 0]),
        (column(*[-999.0] * 100), [100, 0]),
        (column(1e9), [0, 1]),
        (column(*[-999.0] * 100, 1e9), [100, 1]),
        (column(170.0), [0, 0]),
        (np.repeat([0.0, 1.0], [900, 100])[:, None], [0, 0]),
        (np.random.default_rng(2).lognormal(1, 1, 1000)[:, None], [0, 0]),
        (np.full((40, 1), np.nan), [0, 0]),
    ],
    ids=["none", "a code", "typed once", "both", "an extreme value", "two values", "skewed", "missing"],
)
def test_far_values_are_counted_and_replaced_by_values_near_the_others(x, expected):
    assert count_far_values(x)[0].tolist() == expected
    clipped = clip_far_values(x)
    assert count_far_values(clipped)[0].tolist() == [0, 0]
    if any(expected):
        others = x[(x > 0) & (x < 1e6)]
        ends, step = np.array([clipped.min(), clipped.max()]), 2 ** np.ceil(np.log2(np.ptp(others))) / 8
        assert np.abs(ends - [others.min(), others.max()]).max() < step
        replaced = clipped[x != clipped]
        assert (replaced % step == 0).all(), "the largest and the smallest other value do not show"
    else:
        np.testing.assert_array_equal(clipped, x)
