"""Merged cells of one client have no row or enough, and no finer ones are left out for nothing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.diagnosis.client_summaries.client_summary import Layout, assign_columns, concatenate_summaries, summarize
from models.diagnosis.client_summaries.common_cells import count_in, counts_of_pairs, in_common_cells
from models.diagnosis.client_summaries.least_cells import (
    columns_in_cells,
    fill_few_missing,
    merge_cells_of_client,
    moments_show_cells,
)


def layout(bins=32, categories=(1.0, 2.0, 3.0), classes=2):
    return Layout(("a", "ward"), (None, categories), np.array([-3.0, 0.0]), np.array([3.0, 0.0]), bins, classes)


def merged_cells(x, y, bins=32, least=10, ids=None, classes=2):
    ids = np.arange(len(y)) if ids is None else ids
    of = layout(bins, classes=classes)
    column = assign_columns(y, ids, of, max(least, 10))
    return of, column, merge_cells_of_client(x, column, ids, of, max(least, 10), least)


few = settings(max_examples=60, deadline=None)


@few
@given(st.integers(20, 400), st.sampled_from([8, 32, 100]), st.sampled_from([2, 10, 25]), st.integers(0, 999))
def test_no_cell_of_a_column_has_few_rows_or_units(count, bins, least, seed):
    rng = np.random.default_rng(seed)
    y = rng.choice(3, count, p=[0.6, 0.35, 0.05])
    x = np.column_stack([rng.normal(size=count) + y, rng.choice([1.0, 2.0, 3.0, 9.0], count, p=[0.5, 0.3, 0.15, 0.05])])
    x[rng.random((count, 2)) < rng.choice([0, 0.02, 0.3])] = np.nan
    units = rng.integers(0, max(count // 3, 1), count)
    ids = np.stack([np.arange(count), units], 1) if seed % 2 else np.arange(count)
    of, column, merged = merged_cells(x, y, bins, least, ids, classes=3)
    cells = np.take_along_axis(merged.T, of.cells_of(x), 0)
    for feature in range(2):
        for index in np.unique(column.index[column.reported]):
            inside = column.reported & (column.index == index)
            if len(np.unique(np.atleast_2d(ids.T)[-1][inside & ~np.isnan(x[:, feature])])) < max(least, 10):
                continue  # the feature withholds the column
            for cell in np.unique(cells[inside, feature]):
                rows = inside & (cells[:, feature] == cell)
                assert len(np.unique(np.atleast_2d(ids.T)[-1][rows])) >= least


@few
@given(st.integers(20, 2000), st.integers(0, 999))
def test_each_bin_is_counted_in_the_last_of_its_neighbours_and_these_in_themselves(count, seed):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.standard_t(3, count), np.ones(count)])
    _, _, merged = merged_cells(x, rng.integers(0, 2, count))
    bins = merged[0, :32]
    assert (np.diff(bins) >= 0).all()
    assert (bins >= np.arange(32)).all()
    np.testing.assert_array_equal(bins[bins], bins)


def test_cells_of_one_row_are_left_as_they_are_if_that_is_allowed():
    x = np.column_stack([np.linspace(-3, 3, 40), np.ones(40)])
    np.testing.assert_array_equal(merged_cells(x, np.arange(40) % 2, least=1)[2], np.tile(np.arange(33), (2, 1)))


def test_far_values_are_apart_from_others_and_many_rows_keep_their_bins():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.concatenate([rng.normal(-2, 0.1, 150), rng.normal(2, 0.1, 150)]), np.ones(300)])
    bins = merged_cells(x, np.arange(300) % 2)[2][0]
    assert bins[4] < 16 < bins[27]
    many = np.column_stack([rng.uniform(-3, 3, 20000), np.ones(20000)])
    np.testing.assert_array_equal(merged_cells(many, np.arange(20000) % 2)[2][0, :32], np.arange(32))


def test_the_extremes_do_not_show_in_bins_finer_than_a_thirty_second_of_the_range():
    x = np.column_stack([np.linspace(-1.001, 0.999, 400), np.ones(400)])
    ends = np.unique(merged_cells(x, np.arange(400) % 2, bins=320)[2][0, :320])
    outside = [end for end in ends.tolist() if not 106 < end < 214]
    assert outside
    assert all((end + 1) % 10 == 0 for end in outside)


@pytest.mark.parametrize(
    ("rare", "expected"), [({1: 30}, [0, 1, 2, 3]), ({1: 12, 9: 3}, [0, 3, 2, 3]), ({2: 4, 3: 4}, [3, 3, 3, 3])]
)
def test_rare_categories_are_other_values_with_the_rarest_of_the_others_if_they_are_few(rare, expected):
    """A code of 9 is unknown, so it is another value already."""
    ward = np.concatenate([np.full(100, 1.0), *(np.full(count, float(code)) for code, count in rare.items())])
    if 1 in rare:
        ward = np.concatenate([np.full(40, 1.0), np.full(rare[1], 2.0), np.full(60, 3.0), np.full(rare.get(9, 0), 9.0)])
    x = np.column_stack([np.zeros(len(ward)), ward])
    assert merged_cells(x, np.zeros(len(ward), int))[2][1, :4].tolist() == expected


def test_few_missing_values_are_in_the_first_bins_and_take_quantiles_in_moments():
    rng = np.random.default_rng(1)
    x, y = np.column_stack([rng.normal(size=200), np.ones(200)]), np.arange(200) % 2
    x[:5, 0] = np.nan
    of, column, merged = merged_cells(x, y)
    assert merged[0, -1] == merged[0, 0]
    filled = fill_few_missing(x, column, merged, np.zeros((2, 3), bool))
    assert not np.isnan(filled).any()
    for label in (0, 1):
        own = x[5:][y[5:] == label, 0]
        assert np.isin(filled[:5][y[:5] == label, 0], own).all()
    assert abs(filled[:5, 0].mean()) < 1
    x[:60, 0] = np.nan
    of, column, merged = merged_cells(x, y)
    assert merged[0, -1] == 32
    np.testing.assert_array_equal(fill_few_missing(x, column, merged, np.zeros((2, 3), bool)), x)
    assert not moments_show_cells(x, column, np.arange(200), of, merged, 10).any()


def test_moments_of_a_number_of_two_values_are_left_out_if_few_rows_have_one():
    y = np.arange(200) % 2
    x = np.column_stack([(np.arange(200) < 12).astype(float), np.ones(200)])
    of, column, merged = merged_cells(x, y)
    assert moments_show_cells(x, column, np.arange(200), of, merged, 10).tolist() == [True, False]
    assert moments_show_cells(x, column, np.arange(200), of, merged, 6).tolist() == [False, False]


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ((700, 276, 24), (True, True, False)),  # 24 rows would leave one cell
        ((700, 210, 90), (True, True, True)),  # 90 rows have four
        ((70, 50, 50), (True, True, True)),  # 70 rows alone are worth less
        ((900, 50, 0), (True, True, False)),  # a rule is compared in two classes
        ((900, 24, 0), (True, False, False)),  # which one cell does not show
        ((24, 24, 24), (True, True, True)),
    ],
)
def test_a_class_is_left_out_of_cells_if_others_lose_more_by_it(rows, kept):
    y = np.repeat(np.arange(3), rows)
    ids, of = np.arange(len(y)), layout(classes=3)
    column = assign_columns(y, ids, of)
    found = columns_in_cells(column, ids, of, 10)
    assert [bool(found.reported[y == label].all()) and bool((y == label).any()) for label in range(3)] == list(kept)
    np.testing.assert_array_equal(columns_in_cells(column, ids, of, 1).reported, column.reported)
    units = np.stack([ids, ids // 30], 1)  # of 30 rows each, so that no class has forty of them
    assert columns_in_cells(assign_columns(y, units, of), units, of, 10).reported.sum() <= len(y)


def test_a_pair_is_compared_in_classes_that_neither_leaves_out():
    """The largest values of the one are of a rare class, which the other counts."""
    rng = np.random.default_rng(0)
    sizes = ((700, 276, 24), (700, 210, 90))
    parts = []
    for rows in sizes:
        y = np.repeat(np.arange(3), rows)
        x = np.column_stack([rng.normal(size=1000) / 3 + np.array([-1, 0, 2])[y], np.ones(1000)])
        ids, of = np.arange(1000), layout(classes=3)
        column = assign_columns(y, ids, of)
        in_cells = columns_in_cells(column, ids, of, 10)
        merged = merge_cells_of_client(x, in_cells, ids, of, 10, 10)
        summary = summarize(x, y, ids, of)
        summary.counts[..., np.setdiff1d(column.index, column.index[in_cells.reported])] = 0
        parts.append(replace(summary, counts=count_in(summary.counts, merged[None]), counted_in=merged[None]))
    both = concatenate_summaries(parts)
    assert both.counts.sum(2)[:, 0].tolist() == [[700, 276, 0, 0], [700, 210, 90, 0]]
    pair = counts_of_pairs(both, np.array([[0, 1]]))[0, :, 0]
    assert pair.sum(1).tolist() == [[700, 276, 0, 0], [700, 210, 0, 0]]
    assert in_common_cells(both).counts.sum(2)[:, 0].tolist() == [[700, 276, 0, 0], [700, 210, 0, 0]]
    many = concatenate_summaries([parts[0], *[parts[1]] * 9])  # 24 of 834 rows of the class are left out
    assert in_common_cells(many).counts.sum((0, 2))[0, 2] == 810
