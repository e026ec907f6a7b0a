"""Fine bins are joined from the left until they hold their share, against a walk over Python's fractions."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.diagnosis.client_summaries.client_summary import merge_bins, merged_bin_index


def walked(rows, most):
    """Which joined bin each is in; a rest of less than half of the share is joined to the last whole one."""
    share, places, held = Fraction(sum(rows), most), [], Fraction(0)
    place = 0
    for count in rows:
        places.append(place)
        held += count
        if held >= share:
            place, held = place + 1, Fraction(0)
    if place and held < share / 2:
        places = [min(at, place - 1) for at in places]
    return [min(at, most - 1) for at in places]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=20).filter(any), st.sampled_from([2, 4, 8]))
def test_bins_are_joined_as_by_hand_also_where_rows_are_a_share_or_half_of_one_exactly(rows, most):
    assert merged_bin_index(np.array(rows, float), most).tolist() == walked(rows, most)


def test_a_share_that_is_reached_exactly_is_whole_and_a_rest_of_exactly_half_of_one_stays():
    assert merged_bin_index(np.array([3.0, 1, 4, 2, 2, 4]), 4).tolist() == [0, 0, 1, 2, 2, 3]
    assert merged_bin_index(np.array([6.0, 5, 3, 2]), 4).tolist() == [0, 1, 2, 2]
    assert merged_bin_index(np.array([6.0, 5, 4, 1]), 4).tolist() == [0, 1, 2, 2]
    assert merged_bin_index(np.array([5.0, 5, 4, 2]), 4).tolist() == [0, 1, 2, 3]


def test_columns_that_do_not_decide_are_put_together_as_those_that_do():
    rows = np.array([[4.0, 0, 0, 4], [0, 4, 4, 0]])[:, :, None]
    other = np.arange(8.0).reshape(2, 4, 1)
    tables = np.concatenate([rows, other], -1)
    found = merge_bins(tables, 2, slice(1))
    np.testing.assert_array_equal(found[..., 0], [[4, 4], [4, 4]])
    np.testing.assert_array_equal(found[..., 1], [[1, 5], [9, 13]])
