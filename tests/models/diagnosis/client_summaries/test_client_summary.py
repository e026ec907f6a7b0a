"""Counts and moments of one client are NumPy's and SciPy's; moments of several together are those of all their rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from models.diagnosis.client_summaries.client_summary import (
    LEAST_ROWS,
    Layout,
    assign_columns,
    concatenate_summaries,
    count_different,
    effective_rows,
    from_power_sums,
    leave_one_out,
    mixture,
    summarize,
    to_power_sums,
    withheld_columns,
)

few = settings(max_examples=40)


def layout(features=2, classes=3, bins=8, **more):
    names = tuple(f"x{at}" for at in range(features))
    low, high = -3 * np.ones(features), 3 * np.ones(features)
    usual = {"categories": (None,) * features, "missing": (False,) * features}
    return Layout(names, low=low, high=high, bins=bins, classes=classes, **{**usual, **more})


def drawn(seed, sizes, scale=1.0, offset=0.0):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return rng.gamma(2.0, size=(len(y), 2)) * scale + offset + y[:, None], y


def moments_of(x):
    """(features, 5) by NumPy and SciPy."""
    shape = (stats.skew(x, axis=0), stats.kurtosis(x, axis=0, fisher=False))
    return np.stack([np.full(x.shape[1], len(x)), x.mean(0), x.std(0, ddof=1), *shape], -1)


@few
@given(st.integers(0, 99), st.lists(st.integers(10, 60), min_size=3, max_size=3), st.floats(1e-3, 1e3))
def test_moments_of_a_class_are_numpys_and_scipys(seed, sizes, scale):
    x, y = drawn(seed, sizes, scale)
    told = summarize(x, y, np.arange(len(y)), layout())
    for c in range(3):
        np.testing.assert_allclose(told.moments[0, :, c], moments_of(x[y == c]), rtol=1e-9)


def test_a_large_offset_costs_few_digits():
    x, y = drawn(1, (50, 50, 50))
    here, there = (summarize(x + off, y, np.arange(150), layout()).moments[0, :, :3] for off in (0, 1e6))
    np.testing.assert_allclose(there[..., 2:], here[..., 2:], rtol=1e-6)


@few
@given(st.integers(0, 99), st.lists(st.integers(0, 40), min_size=3, max_size=3))
def test_counts_are_numpys_histogram_of_each_class(seed, sizes):
    x, y = drawn(seed, sizes)
    told = summarize(x - 2, y, np.arange(len(y)), layout())
    ends = [-np.inf, *np.linspace(-3, 3, 9)[1:-1], np.inf]
    few_rows = [c for c in range(3) if sizes[c] < LEAST_ROWS]
    rest = np.isin(y, few_rows)
    groups = [y == c for c in range(3)] + [rest]
    kept = [c not in few_rows for c in range(3)] + [bool(rest.sum() >= LEAST_ROWS)]
    for feature in range(2):
        for column, (mine, there) in enumerate(zip(groups, kept, strict=True)):
            expected = np.histogram(x[mine, feature] - 2, ends)[0] if there else np.zeros(8)
            np.testing.assert_array_equal(told.counts[0, feature, :8, column], expected)
    assert not told.counts[0, :, 8].any(), "nothing is missing"


def test_a_category_that_nobody_knows_is_in_a_cell_of_its_own_and_a_missing_value_in_another():
    kinds = layout(1, 1, categories=((5.0, 2.0, 7.0),), missing=(True,))
    x = np.array([5, 2, 2, 7, 6, np.nan, np.nan, np.nan, -1, 5], float)[:, None]
    told = summarize(x, np.zeros(10, int), np.arange(10), kinds)
    assert not told.counts.any(), "seven rows have a value"
    codes = np.array([1, 2, 2, 3, 4, 4, 1.0])[:, None]
    assert kinds.encode_categories(x)[~np.isnan(x)].tolist() == [1, 2, 2, 3, 4, 4, 1]
    assert np.isnan(told.moments[0, 0, 0]).all()
    more = summarize(np.repeat(x, 2, 0), np.zeros(20, int), np.arange(20), kinds)
    assert more.counts[0, 0, :, 0].tolist() == [4, 4, 2, 4, 0, 0, 0, 0, 6]
    np.testing.assert_allclose(more.moments[0, 0, 0], moments_of(np.repeat(codes, 2, 0))[0])


@few
@given(st.integers(0, 99), st.lists(st.integers(2, 50), min_size=2, max_size=4), st.floats(-1e3, 1e3))
def test_a_mixture_of_groups_has_the_moments_of_all_rows_together(seed, sizes, offset):
    x, y = drawn(seed, sizes, offset=offset)
    parts = np.stack([moments_of(x[y == c]) for c in range(len(sizes))], 1)
    np.testing.assert_allclose(mixture(parts), moments_of(x), rtol=1e-6, atol=1e-8)
    absent = np.concatenate([parts, np.full((2, 1, 5), np.nan)], 1)
    np.testing.assert_array_equal(mixture(absent), mixture(parts))
    centre = parts[:, 0, 1] + 1
    np.testing.assert_allclose(
        from_power_sums(to_power_sums(parts, centre[:, None]).sum(1), centre), moments_of(x), rtol=1e-5, atol=1e-8
    )


@few
@given(st.integers(0, 99), st.lists(st.integers(12, 40), min_size=2, max_size=5))
def test_without_each_client_the_moments_are_those_of_the_others_rows(seed, sizes):
    x, client = drawn(seed, sizes)
    told = np.stack([moments_of(x[client == c]) for c in range(len(sizes))])
    others = leave_one_out(told)
    for c in range(len(sizes)):
        np.testing.assert_allclose(others[c], moments_of(x[client != c]), rtol=1e-6)


def test_a_constant_has_no_spread_and_a_normals_shape():
    x = np.full((30, 2), [0.1, 1e8])
    told = summarize(x, np.zeros(30, int), np.arange(30), layout(classes=1))
    np.testing.assert_allclose(told.moments[0, :, 0], [[30, 0.1, 0, 0, 3], [30, 1e8, 0, 0, 3]], rtol=1e-12)


@few
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 14)), min_size=1, max_size=60),
    st.booleans(),
)
def test_columns_hold_ten_different_rows_or_nothing(rows, regression):
    """By counting; a regression tells all rows or none."""
    y, same = (np.array(part) for part in zip(*rows, strict=True))
    asked = layout(targets=(0.5, 1.5)) if regression else layout()
    found = assign_columns(y, same, asked)
    for column in range(4):
        mine = found.reported & (found.index == column)
        assert not mine.any() or len(set(same[mine].tolist())) >= LEAST_ROWS
    assert (
        found.index[found.separate[asked.classes_of(y)]] == asked.classes_of(y)[found.separate[asked.classes_of(y)]]
    ).all()
    assert (found.index[~found.separate[asked.classes_of(y)]] == 3).all()
    if regression and len(set(same.tolist())) >= LEAST_ROWS:
        assert found.reported.all() == (found.separate.any() or (found.index == 3).all())
        assert found.reported.all() or not found.reported.any()
    if not regression:
        expected = [len({s for c, s in rows if c == place}) >= LEAST_ROWS for place in range(3)]
        assert found.separate.tolist() == expected


@few
@given(st.integers(0, 99), st.permutations(range(80)))
def test_the_order_of_rows_does_not_matter(seed, order):
    x, y = drawn(seed, (30, 30, 20))
    here, there = (
        summarize(x, y, np.arange(80), layout()),
        summarize(x[list(order)], y[list(order)], np.arange(80), layout()),
    )
    np.testing.assert_array_equal(here.counts, there.counts)
    np.testing.assert_array_equal(here.labels, there.labels)
    np.testing.assert_allclose(here.moments, there.moments, rtol=1e-9)


def test_clients_one_after_another_are_taken_back_one_by_one():
    parts = [summarize(*drawn(seed, (30, 9, 2)), np.arange(41), layout()) for seed in range(3)]
    whole = concatenate_summaries(parts)
    for at, part in enumerate(parts):
        for name in ("rows", "labels", "counts", "moments"):
            np.testing.assert_array_equal(getattr(whole.take([at]), name), getattr(part, name))


def test_of_a_feature_without_a_value_the_missing_rows_are_told_and_of_few_values_nothing():
    one = layout(1, 1, missing=(True,))
    x, y, same = np.full((30, 1), np.nan), np.zeros(30, np.int64), np.arange(30)
    assert summarize(x, y, same, one).counts[0, 0, -1, 0] == 30
    for there, told in ((1, 0), (9, 0), (10, 30)):
        x[:there] = 0.5
        assert summarize(x, y, same, one).counts.sum() == told


@pytest.mark.parametrize("classes", [1, 3])
def test_targets_are_in_the_group_between_their_edges(classes):
    y = np.array([-1.5, 0.2, 0.5, 7.0], np.float32)
    grouped = layout(classes=classes, targets=(0.0, 0.5) if classes > 1 else ())
    assert grouped.classes_of(y).tolist() == ([0, 1, 2, 2] if classes > 1 else [0, 0, 0, 0])


@pytest.mark.parametrize("targets", [(), (0.5, 1.5)])
def test_few_values_of_a_class_are_left_out_and_in_a_regression_all_of_the_feature(targets):
    """Twelve rows of the first class have a value, nine of the second, and none of the third."""
    column = np.repeat([0, 1, 2], 20)
    x = np.zeros((60, 2))
    x[np.r_[12:20, 29:40, 40:60], 0] = np.nan
    ((feature, withheld),) = withheld_columns(x, column, np.arange(60), layout(targets=targets))
    assert feature == 0
    assert withheld.tolist() == ([True] * 4 if targets else [False, True, False, False])


def test_different_rows_are_counted_and_units_if_they_are_fewer():
    rows = np.array([0, 0, 1, 2, 3])
    assert count_different(rows) == 4
    assert count_different(np.stack([rows, [0, 0, 0, 1, 1]], 1)) == 2
    assert count_different(np.stack([rows, np.arange(5)], 1)) == 4


def test_rows_of_few_units_are_worth_the_units_and_rows_of_their_own_the_rows():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 2)), rng.integers(0, 3, 400)
    assert effective_rows(x, y, np.arange(400) % 19, layout()) == 19
    assert effective_rows(x, y, np.arange(400), layout()) == 400
    repeated = np.repeat(np.arange(100), 4)  # four equal rows of each unit
    assert effective_rows(x[::4][repeated], y[::4][repeated], repeated, layout()) == 100
    assert effective_rows(x, y, repeated, layout()) > 250  # of unlike rows
