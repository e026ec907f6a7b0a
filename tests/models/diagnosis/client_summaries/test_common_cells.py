"""Clients that merged cells are compared in the cells that all have: those of a search for what hangs together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.diagnosis.client_summaries.client_summary import Layout, assign_columns, concatenate_summaries, summarize
from models.diagnosis.client_summaries.common_cells import (
    count_in,
    counts_of_pairs,
    in_common_cells,
    join_cells,
    spread_counts,
)
from models.diagnosis.client_summaries.least_cells import merge_cells_of_client

LAYOUT = Layout(("a", "ward"), (None, (1.0, 2.0, 3.0)), np.array([-3.0, 0.0]), np.array([3.0, 0.0]), 32, 2)


def rows(seed, count, shift=0.0):
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < 0.3).astype(int)
    ward = rng.choice([1.0, 2.0, 3.0], count, p=[0.6, 0.3, 0.1])
    x = np.column_stack([rng.normal(size=count) + y / 2 + shift, ward])
    x[rng.random(count) < 0.02, 0] = np.nan
    return x, y


def report(x, y, least=10):
    ids = np.arange(len(y))
    found, column = summarize(x, y, ids, LAYOUT), assign_columns(y, ids, LAYOUT)
    counted_in = merge_cells_of_client(x, column, ids, LAYOUT, 10, least)[None]
    return type(found)(
        found.rows, found.labels, count_in(found.counts, counted_in), found.moments, None, counted_in
    ), found


def reports(*clients):
    return (concatenate_summaries(parts) for parts in zip(*(report(x, y) for x, y in clients), strict=True))


def hanging_together(counted_in):
    """By hand: two cells are one if a client counts them in one, directly or over others."""
    cells = [{at} for at in range(counted_in.shape[-1])]
    for client in counted_in:
        for at, other in enumerate(client.tolist()):
            both = [group for group in cells if at in group or other in group]
            cells = [group for group in cells if group not in both] + [set().union(*both)]
    return sorted(map(sorted, cells))


few = settings(max_examples=40, deadline=None)


@few
@given(st.lists(st.integers(40, 400), min_size=2, max_size=4), st.integers(0, 99))
def test_common_cells_are_those_that_hang_together(sizes, seed):
    merged, _ = reports(*(rows(seed + at, size) for at, size in enumerate(sizes)))
    joined = join_cells(merged.counted_in)
    for feature in range(2):
        groups = [np.flatnonzero(joined[feature] == cell).tolist() for cell in np.unique(joined[feature])]
        assert sorted(groups) == hanging_together(merged.counted_in[:, feature])


@few
@given(st.integers(40, 400), st.integers(40, 3000), st.integers(0, 99))
def test_a_pair_has_the_counts_of_its_rows_in_common_cells(first, second, seed):
    merged, whole = reports(rows(seed, first), rows(seed + 1, second, 0.5))
    both = counts_of_pairs(merged, np.array([[0, 1], [1, 0]]))
    common = np.repeat(join_cells(merged.counted_in)[None], 2, 0)
    rest = whole.rows - np.nan_to_num(whole.labels).sum(1)
    reported = np.column_stack([np.nan_to_num(whole.labels), rest]) >= 10
    withheld = (reported[:, None] & ~whole.counts.any(2)).any(0)  # by a feature, at one of them
    np.testing.assert_array_equal(both[0], count_in(whole.counts * ~withheld[:, None], common))
    np.testing.assert_array_equal(both[1], both[0][::-1])
    assert not (both > 0)[(both < 10)].any()


def test_one_small_client_does_not_take_the_cells_of_many():
    merged, whole = reports(rows(0, 30), *(rows(at, 600) for at in range(1, 6)))
    together = in_common_cells(merged)
    large, small = together.counts[1:].sum(0), together.counts[0]
    assert small[0].sum() == 0
    assert np.count_nonzero(large[0].sum(-1)) > 5
    np.testing.assert_array_equal(large.sum(1), whole.counts[1:].sum((0, 2)))
    alike = in_common_cells(concatenate_summaries([report(*rows(at, 300))[0] for at in range(3)]))
    assert alike.counts.sum((2, 3)).min() == 300


def test_merged_bins_are_spread_as_the_moments_say_and_without_merged_bins_nothing_changes():
    merged, whole = reports(rows(2, 300), rows(3, 3000))
    spread = spread_counts(merged, LAYOUT)
    np.testing.assert_allclose(count_in(spread, merged.counted_in), merged.counts)
    near = np.abs(spread[1, 0].sum(-1) - whole.counts[1, 0].sum(-1)).sum() / 3000
    assert near < 0.05
    assert spread_counts(whole, LAYOUT) is whole.counts
    assert in_common_cells(whole) is whole


@pytest.mark.parametrize("count", [100, 300, 1000, 5000])
def test_clients_of_one_size_and_distribution_keep_most_cells_in_common(count):
    alone, shared = [], []
    for seed in range(20):
        merged, _ = reports(rows(2 * seed, count), rows(2 * seed + 1, count))
        alone.append(np.count_nonzero(merged.counts[0, 0].sum(-1)))
        shared.append(np.count_nonzero(counts_of_pairs(merged, np.array([[0, 1]]))[0, 0, 0].sum(-1)))
    assert np.mean(shared) > 0.55 * np.mean(alone)
