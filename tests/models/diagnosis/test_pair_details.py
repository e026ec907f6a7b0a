"""What is drawn of the worst pairs is what clients told of them."""

import numpy as np
import pytest

from models.diagnosis.client_summaries.client_summary import Layout, Summaries, concatenate_summaries, summarize
from models.diagnosis.diagnose_pairs import diagnose_pairs
from models.diagnosis.merged_tables import all_pairs
from models.diagnosis.screen_clients import PAIRS, merge_shared_bins, pair_details

ROWS = 200


def layout(*categories: tuple[float, ...] | None) -> Layout:
    names = tuple(f"f{at}" for at in range(len(categories)))
    low, high = np.full(len(names), -4.0), np.full(len(names), 4.0)
    return Layout(names, categories, low, high, 32, 2, missing=(True,) * len(names))


def told(columns: Layout, *tables: np.ndarray) -> Summaries:
    """Of each table, whose labels take turns."""
    same = np.arange(ROWS)
    return concatenate_summaries([summarize(x, same % 2, same, columns) for x in tables])


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, 2))


def test_the_worst_feature_of_a_pair_has_all_its_rows_in_bins_that_hold_its_values():
    columns = layout(None, None)
    first, second = rows(0), rows(1) + np.array([0, 1.5])
    there = told(columns, first, second)
    (one,) = pair_details(there, columns, diagnose_pairs(there, columns, *all_pairs(2)), [[0], [1]])
    assert (one.first, one.second, one.feature) == (0, 1, 1)
    inside = [np.clip(x[:, 1], -3.99, 3.99) for x in (first, second)]
    for counts, values in zip(one.counts, inside, strict=True):
        assert counts.sum(-1).tolist() == np.histogram(values, one.ends)[0].tolist()
        assert counts.sum(0).tolist() == [ROWS / 2, ROWS / 2, 0]
    least, most = min(map(np.min, inside)), max(map(np.max, inside))
    width = 8 / 32
    assert least - width <= one.ends[0] <= least
    assert most <= one.ends[-1] <= most + width


def test_categories_and_missing_values_stand_under_their_names():
    columns = layout((0.0, 2.0), None)
    first, second = rows(0), rows(1)
    first[:, 0], second[:, 0] = np.repeat([0, 2], ROWS // 2), np.repeat([2, 7], ROWS // 2)
    second[:50, 0] = np.nan
    there = told(columns, first, second)
    (one,) = pair_details(there, columns, diagnose_pairs(there, columns, *all_pairs(2)), [[0], [1]])
    assert one.values == ("0", "2", "other", "missing")
    assert one.counts.sum(-1).tolist() == [[100, 100, 0, 0], [0, 50, 100, 50]]
    assert one.ends is None


def test_each_two_groups_have_one_pair_and_silos_that_do_not_differ_none():
    columns = layout(None, None)
    moved = [np.array([2.0 * (at // 2), 0]) for at in range(10)]
    there = told(columns, *(rows(at) + moved[at] for at in range(10)))
    found = diagnose_pairs(there, columns, *all_pairs(10))
    groups = [[at, at + 1] for at in range(0, 10, 2)]
    seen = [(one.first // 2, one.second // 2) for one in pair_details(there, columns, found, groups)]
    assert len(seen) == len(set(seen)) == PAIRS
    assert all(a != b for a, b in seen)
    alike = told(columns, rows(0), rows(1))
    assert pair_details(alike, columns, diagnose_pairs(alike, columns, *all_pairs(2)), [[0, 1]]) == ()


def test_the_pairs_that_differ_most_come_first_and_the_worst_of_each_two_groups_is_drawn():
    columns = layout(None, None)
    there = told(columns, *(rows(at) + np.array([1.5 * at, 0]) for at in range(4)))
    found = diagnose_pairs(there, columns, *all_pairs(4))
    seen = [(one.first, one.second) for one in pair_details(there, columns, found, [[0], [1], [2], [3]])]
    largest = dict(zip(zip(found.first, found.second, strict=True), found.parts.max(-1), strict=True))
    assert seen == sorted(largest, key=lambda pair: -largest[pair])[:PAIRS]
    (one,) = pair_details(there, columns, found, [[0], [1, 2, 3]])[:1]
    assert (one.first, one.second) == max((pair for pair in largest if pair[0] == 0), key=lambda pair: largest[pair])


@pytest.mark.parametrize("odd_pair", [(0, 2), (0, 3)])
def test_the_pair_of_two_groups_has_their_most_common_verdict(odd_pair):
    columns = layout(None, None)
    tables = [rows(0), rows(1), rows(2) + np.array([1.5, 0]), rows(3) + np.array([1.5, 0])]
    there = told(columns, *tables)
    found = diagnose_pairs(there, columns, *all_pairs(4))
    odd = next(at for at, places in enumerate(zip(found.first, found.second, strict=True)) if places == odd_pair)
    found.verdicts.types[odd] = True
    found.parts[odd] = 100.0
    (one, *_) = pair_details(there, columns, found, [[0, 1], [2, 3]])
    assert (one.first, one.second) != odd_pair


@pytest.mark.parametrize(("part", "drawn"), [(0.34, [1, 0]), (0.32, [1])])
def test_a_second_feature_is_drawn_if_it_has_a_third_of_the_effect_of_the_first(part, drawn):
    columns = layout(None, None, None)
    x = np.random.default_rng(0).normal(size=(2, ROWS, 3)) + np.array([[[0.0]], [[1.5]]])
    there = told(columns, *x)
    found = diagnose_pairs(there, columns, *all_pairs(2))
    found.parts[0] = [2 * part, 2.0, 0.1]
    assert [one.feature for one in pair_details(there, columns, found, [[0], [1]])] == drawn


def test_bins_that_are_joined_for_all_have_places_and_no_ends():
    columns = layout(None, None)
    there, shared = merge_shared_bins(told(columns, rows(0), rows(1) + 2.0), columns)
    one = pair_details(there, shared, diagnose_pairs(there, shared, *all_pairs(2)), [[0], [1]])[0]
    assert one.joined
    assert one.ends is None
    assert len(one.values) == one.counts.shape[1]
    assert one.counts.sum((1, 2)).tolist() == [ROWS, ROWS]


def test_without_counts_there_is_nothing_to_draw():
    columns = layout(None, None)
    there = told(columns, rows(0), rows(1) + 2.0)
    found = diagnose_pairs(there, columns, *all_pairs(2))
    bare = Summaries(there.rows, there.labels, there.counts[..., :0, :], there.moments)
    assert pair_details(bare, columns, found, [[0], [1]]) == ()
