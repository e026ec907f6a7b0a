"""No two answers without noise give, subtracted, a sum over a few rows."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silos.privacy.differencing import EVERY, LEAST_ROWS, OTHER, check, packed, smallest_difference, unpacked

ROWS = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 5), min_size=1, max_size=6))
POOLED = st.sets(st.sampled_from("abcd"))


@given(ROWS, POOLED, ROWS, POOLED)
def test_it_is_the_least_of_all_sums_of_groups_less_sums_of_groups(before, pooled, after, pooled_after):
    first, second = groups(before, pooled), groups(after, pooled_after)
    assert smallest_difference({EVERY: first}, {EVERY: second}) == least_of_all(first, second)


@given(ROWS, POOLED, ROWS, POOLED)
def test_it_does_not_matter_which_answer_was_first(before, pooled, after, pooled_after):
    first, second = {EVERY: groups(before, pooled)}, {EVERY: groups(after, pooled_after)}
    assert smallest_difference(first, second) == smallest_difference(second, first)


@pytest.mark.parametrize("more", range(1, 12))
def test_rows_that_came_or_went_are_counted(more):
    before, after = {EVERY: {"a": numbers(40)}}, {EVERY: {"a": numbers(40 + more)}}
    assert smallest_difference(before, after) == smallest_difference(after, before) == more


def test_the_same_rows_leave_nothing_but_what_one_answer_tells():
    held = {EVERY: {"a": numbers(40), OTHER: numbers(15, 500)}}
    assert smallest_difference(held, held) == 15
    assert smallest_difference({EVERY: {}}, {EVERY: {}}) == 0


def test_a_row_that_was_replaced_is_two():
    assert smallest_difference({EVERY: {"a": numbers(40)}}, {EVERY: {"a": numbers(40) + 3}}) == 6


def test_ten_copies_of_one_row_are_that_row():
    after = np.concatenate([numbers(40), np.repeat(numbers(1), 10)])
    assert smallest_difference({EVERY: {"a": numbers(40)}}, {EVERY: {"a": after}}) == 1


def test_a_class_that_was_told_and_is_pooled_now_is_taken_out_of_the_pool():
    """12 of a were told, and 11 others were pooled; now 9 of a are pooled with them. All of b is new."""
    a, others = numbers(12), numbers(11, 1000)
    before = {EVERY: {"a": a, OTHER: others, "b": numbers(50, 2000)}}
    after = {EVERY: {OTHER: np.concatenate([a[:9], others]), "b": numbers(50, 3000)}}
    assert smallest_difference(before, after) == smallest_difference(after, before) == 3


def test_a_class_that_is_withheld_now_differs_by_all_its_rows():
    assert (
        smallest_difference({EVERY: {"a": numbers(15), "b": numbers(99, 500)}}, {EVERY: {"b": numbers(99, 500)}}) == 15
    )


def test_a_feature_that_few_rows_have_is_held_to_the_rows_that_have_it():
    """Twelve rows are new, and one of them has an age, which the sum of ages would tell."""
    before = {EVERY: {"a": numbers(40)}, "age": {"a": numbers(20)}}
    after = {EVERY: {"a": numbers(52)}, "age": {"a": np.append(numbers(20), np.uint64(50))}}
    assert smallest_difference(before, after) == 1
    assert smallest_difference({EVERY: before[EVERY]}, {EVERY: after[EVERY]}) == 12


def test_a_feature_without_groups_of_its_own_is_over_all_rows():
    """All 40 rows had an age, now one has none."""
    assert smallest_difference({EVERY: {"a": numbers(40)}}, {EVERY: {"a": numbers(40)}, "age": {"a": numbers(39)}}) == 1


def test_classes_that_were_cut_elsewhere_meanwhile_are_compared_whatever_their_names():
    """Targets in ranges: the lower one is three rows longer, and both together are the same rows."""
    rows = numbers(40)
    assert smallest_difference({EVERY: {"0 to 5": rows[:20]}}, {EVERY: {"0 to 6": rows[:23]}}) == 3


CUTS = st.sets(st.integers(1, 29), min_size=2, max_size=4)
FEW = st.sets(st.integers(0, 3), max_size=2)


@given(CUTS, FEW, CUTS, FEW, st.sets(st.integers(0, 29), max_size=3))
@settings(max_examples=60, deadline=None)
def test_of_targets_that_were_cut_elsewhere_meanwhile_all_sums_are_looked_at_as_well(cuts, pooled, others, rest, gone):
    rows = numbers(30)
    before, after = (
        ranges(held, at, few) for held, at, few in ((rows, cuts, pooled), (np.delete(rows, sorted(gone)), others, rest))
    )
    assert smallest_difference({EVERY: before}, {EVERY: after}) == least_of_all(before, after)


def test_groups_that_differ_by_a_row_together_are_seen_though_each_two_differ_by_many():
    """Below 100 and below 101: one row. Of the groups above and below these cuts each two differ by 20 rows or more."""
    rows = numbers(200)
    before, after = ranges(rows, {50, 100, 150}, set()), ranges(rows, {25, 101, 125}, set())
    assert smallest_difference({EVERY: before}, {EVERY: after}) == 1


def test_a_hundred_classes_of_which_most_are_pooled_are_looked_at_in_a_moment():
    """One row of a class that was told is missing from those that are pooled now."""
    classes = {str(at): numbers(12, 100 * at) for at in range(100)}
    pooled = np.concatenate([rows[at == "7" :] for at, rows in classes.items()])
    assert smallest_difference({EVERY: classes}, {EVERY: {OTHER: pooled}}) == 1


@given(ROWS, POOLED)
def test_what_is_kept_of_groups_comes_back(rows, pooled):
    told = {EVERY: groups(rows, pooled), "age": {}, "blood pressure": groups(rows, set())}
    read = unpacked(packed(told))
    assert read.keys() == told.keys()
    for feature, held in told.items():
        assert {name: Counter(hashes) for name, hashes in read[feature].items()} == {
            name: Counter(hashes) for name, hashes in held.items()
        }


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({}, "must name the rows"),
        ({"age": {}}, "must name the rows"),
        ({EVERY: {"a": np.arange(LEAST_ROWS - 1, dtype=np.uint64)}}, "class 'a' would be told, and has fewer than 10"),
        ({EVERY: {"a": np.zeros(30, np.uint64)}}, "fewer than 10 different rows"),
        (
            {EVERY: {"a": np.arange(12, dtype=np.uint64), "b": np.arange(11, 30, dtype=np.uint64)}},
            "is in two of the groups",
        ),
    ],
)
def test_groups_that_must_not_be_told_are_no_groups(told, sentence):
    with pytest.raises(ValueError, match=sentence):
        check(told)


def numbers(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.uint64)


def groups(rows: Mapping[str, list[int]], pooled: set[str]) -> dict[str, np.ndarray]:
    """Rows of a class have hashes of their own; those of pooled classes are in one group."""
    hashes = {name: np.array([100 * ord(name) + value for value in values], np.uint64) for name, values in rows.items()}
    told = {name: array for name, array in hashes.items() if name not in pooled}
    rest = [array for name, array in hashes.items() if name in pooled]
    return told | ({OTHER: np.concatenate(rest)} if rest else {})


def ranges(rows: np.ndarray, cuts: set[int], pooled: set[int]) -> dict[str, np.ndarray]:
    """Groups of rows between cuts, as of targets; some are pooled, and those without rows are not told."""
    of = np.searchsorted(sorted(cuts), rows, side="right")
    held = {str(at): rows[of == at] for at in np.unique(of).tolist()}
    rest = [part for at, part in held.items() if int(at) in pooled]
    told = {at: part for at, part in held.items() if int(at) not in pooled}
    return told | ({OTHER: np.concatenate(rest)} if rest else {})


def least_of_all(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> int:
    """Every choice of groups of both, row by row."""
    found = set()
    for chosen in subsets(before):
        for less in subsets(after):
            one, two = (
                Counter(chain(*(held[n].tolist() for n in names))) for held, names in ((before, chosen), (after, less))
            )
            found.add(sum(one[row] != two[row] for row in one.keys() | two.keys()))
    return min(found - {0}, default=0)


def subsets(held: Mapping[str, np.ndarray]) -> Iterator[tuple[str, ...]]:
    return chain(*(combinations(held, size) for size in range(len(held) + 1)))
