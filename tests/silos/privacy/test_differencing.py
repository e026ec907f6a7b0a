"""No two answers without noise give, subtracted, a sum over a few rows."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silos.privacy import differencing
from silos.privacy.differencing import (
    LEAST_ROWS,
    OTHER,
    Values,
    other_bins,
    renamed_as,
    smallest_change,
    smallest_difference,
)
from silos.raw_cells import join_cells

ROWS = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 5), min_size=1, max_size=6))
POOLED = st.sets(st.sampled_from("abcd"))


@given(ROWS, POOLED, ROWS, POOLED)
def test_it_is_the_least_of_all_sums_of_groups_less_sums_of_groups(before, pooled, after, pooled_after):
    first, second = groups(before, pooled), groups(after, pooled_after)
    assert smallest_difference(of(first), of(second)) == least_of_all(first, second)
    assert smallest_difference(of(second), of(first)) == least_of_all(first, second)


@pytest.mark.parametrize("more", range(1, 12))
def test_rows_that_came_or_went_are_counted(more):
    before, after = of({"a": numbers(40)}), of({"a": numbers(40 + more)})
    assert smallest_difference(before, after) == smallest_difference(after, before) == more


def test_rows_that_went_and_rows_that_came_are_counted_apart():
    assert smallest_difference(of({"a": numbers(40)}), of({"a": numbers(40) + np.uint64(3)})) == 3
    one_went = of({"a": np.append(numbers(39), numbers(30, 100))})
    assert smallest_difference(of({"a": numbers(40)}), one_went) == 1


def test_ten_copies_of_one_row_are_fewer_than_ten():
    after = np.concatenate([numbers(40), np.repeat(numbers(1, 99), 10)])
    assert 0 < smallest_difference(of({"a": numbers(40)}), of({"a": after})) < LEAST_ROWS


def test_a_class_that_was_told_and_is_pooled_now_is_taken_out_of_the_pool():
    """12 of a were reported, and 11 others were pooled; now 9 of a are pooled with them. All of b is new."""
    a, others = numbers(12), numbers(11, 1000)
    before = of({"a": a, OTHER: others, "b": numbers(50, 2000)})
    after = of({OTHER: np.concatenate([a[:9], others]), "b": numbers(50, 3000)})
    assert smallest_difference(before, after) == smallest_difference(after, before) == 3


def test_a_class_that_left_the_pool_is_seen_in_what_the_pool_lost():
    """Nine of c were pooled, and twelve came; fifteen others came to the pool."""
    nine, rest = numbers(9), numbers(20, 1000)
    before = of({OTHER: np.concatenate([nine, rest])})
    after = of({"c": numbers(21), OTHER: np.concatenate([rest, numbers(15, 2000)])})
    assert smallest_difference(before, after) == smallest_difference(after, before) == 9


def test_a_class_that_is_withheld_now_differs_by_all_its_rows():
    assert smallest_difference(of({"a": numbers(15), "b": numbers(99, 500)}), of({"b": numbers(99, 500)})) == 15


def test_classes_that_were_cut_elsewhere_meanwhile_are_compared_whatever_their_names():
    """Targets in ranges: the lower one is three rows longer, and both together are the same rows."""
    rows = numbers(40)
    assert smallest_difference(of({"0 to 5": rows[:20]}), of({"0 to 6": rows[:23]})) == 3


def test_the_same_rows_leave_nothing_but_what_one_answer_tells():
    held = of({"a": numbers(40), OTHER: numbers(15, 500)})
    assert smallest_difference(held, held) == 15
    assert smallest_difference(of({}), of({})) == 0


def test_a_hundred_classes_of_which_most_are_pooled_are_looked_at_in_a_moment():
    """One row of a class that was reported is missing from those that are pooled now."""
    classes = {str(at): numbers(12, 100 * at) for at in range(100)}
    pooled = np.concatenate([rows[at == "7" :] for at, rows in classes.items()])
    assert smallest_difference(of(classes), of({OTHER: pooled})) == 1


@pytest.mark.parametrize(
    "rows", [np.arange(LEAST_ROWS - 1, dtype=np.uint64), np.zeros(30, np.uint64)], ids=["few rows", "copies"]
)
def test_groups_of_few_different_rows_are_no_groups(rows):
    of({"a": numbers(LEAST_ROWS)}).check()
    with pytest.raises(ValueError, match="class 'b' would be reported, and has fewer than 10 different rows"):
        of({"a": numbers(12, 50), "b": rows}).check()


def of(held: Mapping[str, np.ndarray]) -> Values:
    """The record of rows by group, without columns of cells."""
    rows = np.concatenate([np.empty(0, np.uint64), *held.values()]) << np.uint64(34)
    none, group = np.zeros((len(rows), 0), np.uint32), np.repeat(np.arange(len(held)), [len(r) for r in held.values()])
    return Values.of((), none, none.astype(bool), group, [*held], rows)


def numbers(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.uint64)


def groups(rows: Mapping[str, list[int]], pooled: set[str]) -> dict[str, np.ndarray]:
    """Rows of a class have hashes of their own; those of pooled classes are in one group."""
    hashes = {name: np.array([100 * ord(name) + value for value in values], np.uint64) for name, values in rows.items()}
    reported = {name: array for name, array in hashes.items() if name not in pooled}
    rest = [array for name, array in hashes.items() if name in pooled]
    return reported | ({OTHER: np.concatenate(rest)} if rest else {})


def least_of_all(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> int:
    """Every choice of groups of both, row by row; rows that went and rows that came are counted apart."""
    found = set()
    for chosen in subsets(before):
        for less in subsets(after):
            one, two = (
                Counter(chain(*(held[n].tolist() for n in names))) for held, names in ((before, chosen), (after, less))
            )
            found |= {len(one - two), len(two - one)}
    return min(found - {0}, default=0)


def subsets(held: Mapping[str, np.ndarray]) -> Iterator[tuple[str, ...]]:
    return chain(*(combinations(held, size) for size in range(len(held) + 1)))


VALUES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 3)), max_size=12)


@given(VALUES, VALUES)
def test_a_change_of_a_column_is_the_least_that_a_class_or_all_lost_or_got(before, after):
    """A row is its class and two values; that it has copies counts as one more, however many."""
    first, second = values(before), values(after)
    found = smallest_change(first, second)
    assert found == smallest_change(second, first)
    # classes are counted together only if rows may have moved between them
    assert found in (least_change(before, after), least_change(before, after, together=False))


def least_change(before, after, together=True):
    classes = {label for label, *_ in before} & {label for label, *_ in after}
    parts = [{label} for label in classes] + [set("ab") - classes] + ([set("ab")] if together else [])
    found = set()
    for chosen in parts:
        for column in (1, 2):
            held = [Counter(row[column] for row in rows if row[0] in chosen) for rows in (before, after)]
            once = [[row for at, row in enumerate(rows) if rows[:at].count(row) < 2] for rows in (before, after)]
            rows = [Counter(row[column] for row in rows if row[0] in chosen) for rows in once]
            for (less, more), (fewer, many) in ((held, rows), (held[::-1], rows[::-1])):
                moved = (less - more).keys()
                found |= {max(1, sum(max(0, fewer[value] - many[value]) for value in moved))} if moved else set()
    return min(found, default=0)


def values(rows, units=None):
    label, *columns = zip(*rows, strict=True) if rows else ((), (), ())
    names = sorted({*label})
    hashes = np.array([hash(row) % 2**64 for row in rows], np.uint64)
    tokens = np.array(columns, np.uint32).T.reshape(-1, 2)
    group = np.array([names.index(name) for name in label], np.int64)
    owner = None if units is None else np.array(units, np.uint64)
    return Values.of(("x", "z"), tokens, np.ones(tokens.shape, bool), group, names, hashes, owner)


@pytest.mark.parametrize(("copies", "counted"), [(1, 1), (2, 2), (3, 2), (12, 2)])
def test_copies_of_a_row_that_came_count_as_the_row_and_once_more(copies, counted):
    """A sum over twelve copies reveals the row, as a sum over two does."""
    held = [("a", at, at) for at in range(40)]
    before, after = values(held), values([*held, *[("a", 99, 99)] * copies])
    assert smallest_change(before, after) == smallest_change(after, before) == counted


@pytest.mark.parametrize("copies", [3, 4, 12])
def test_one_more_copy_of_a_row_that_has_two_copies_is_a_change(copies):
    held = [("a", at, at) for at in range(40)]
    before, after = values([*held, *[("a", 99, 99)] * 3]), values([*held, *[("a", 99, 99)] * copies])
    assert smallest_change(before, after) == smallest_change(after, before) == (copies > 3)


@pytest.mark.parametrize("classes", [4, 7, 9])
def test_a_row_that_left_while_two_classes_exchanged_rows_is_seen_though_many_left_all_others(classes):
    """Twenty rows of the first class are of the second now, but for one that left."""
    held = [(label, 100 * label + row) for label in range(classes) for row in range(60)]
    first_two = [(1 if value < 20 else label, value) for label, value in held if label < 2][1:]
    others = [(label, value) for label, value in held if label >= 2 and value % 100 < 30]
    before, after = (
        values([(f"{label}", value, value) for label, value in rows]) for rows in (held, [*first_two, *others])
    )
    assert smallest_change(before, after) == smallest_change(after, before) == 1


@pytest.mark.parametrize("changed", [(1, 30), (30, 1)])
@pytest.mark.parametrize("chunk", [1, 1 << 19])
def test_columns_are_compared_alike_some_at_a_time(chunk, changed, monkeypatch):
    monkeypatch.setattr(differencing, "_CHUNK", chunk)
    first = [("a", at, at) for at in range(60)]
    second = [("a", *(at + 1000 * (at < of_column) for of_column in changed)) for at in range(60)]
    assert smallest_change(values(first), values(second)) == 1


def columns_of(names, *columns, bins=None):
    """Values of one class, whose columns have these names."""
    tokens = np.array(columns, np.uint32).T
    used, group = np.ones(tokens.shape, bool), np.zeros(len(tokens), np.int64)
    return Values.of(names, tokens, used, group, ["a"], join_cells(tokens), bins=bins)


def test_a_column_under_another_name_is_the_one_with_the_most_values_in_common():
    before = columns_of(("age", "weight"), range(100, 140), range(200, 240))
    mixed = [*range(100, 112), *range(212, 240)]  # twelve of age, and 28 of weight
    after = renamed_as(before, columns_of(("alter", "age"), mixed, range(100, 140), bins={"alter": "5", "age": "7"}))
    assert after.columns[:-1] == ("weight", "age")
    assert after.bins == {"weight": "5", "age": "7"}
    few = columns_of(("alter",), [*range(100, 109), *range(500, 531)])
    assert renamed_as(before, few).columns[:-1] == ("alter",)  # nine in common
    swapped = renamed_as(before, columns_of(("weight", "age"), range(100, 140), range(200, 240)))
    assert swapped.columns[:-1] == ("age", "weight")


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        (range(40), range(30, 70), ["age"]),
        (range(40), range(31, 71), []),  # nine values in common
        ([0, 1, 2] * 10, [2, 1, 0] * 10, ["age"]),
        ([0, 1, 2] * 10, [1, 2, 3] * 10, []),  # not all of a column that has fewer than ten
    ],
)
def test_rows_are_counted_in_other_bins_if_enough_of_their_values_were(first, second, differ):
    before = columns_of(("age",), first, bins={"age": "10 from 0 to 80"})
    after = columns_of(("age",), second, bins={"age": "12 from 0 to 80"})
    assert other_bins(before, after) == differ
    assert other_bins(before, replace(after, bins=before.bins)) == other_bins(before, replace(after, bins={})) == []


def test_more_copies_of_a_row_are_not_cancelled_by_fewer():
    """Two copies of each of three rows less one copy of each is a sum over these three."""
    once, twice = of({"a": numbers(40)}), of({"a": np.concatenate([numbers(40), numbers(3)])})
    assert smallest_difference(once, twice) == smallest_difference(twice, once) == 3


def test_ten_rows_of_one_unit_are_one():
    rows = numbers(40)
    patients = rows // np.uint64(10)
    visits = [("a", at, at % 3) for at in range(40)]
    of_patients = values(visits, patients), values(visits[:30], patients[:30])
    assert smallest_change(*of_patients) == 1
    assert smallest_change(values(visits), values(visits[:30])) == 10
    with pytest.raises(ValueError, match="fewer than 10 different rows"):
        values(visits, patients).check()


def test_units_tell_people_who_left_and_came_from_a_person_whose_value_changed():
    """Twelve left and twelve came: of the few values of z, all but one cancel."""
    stay = [("a", at, 0) for at in range(12, 52)]
    left, came = [("a", at, at % 2) for at in range(12)], [("a", 100 + at, at % 2 * (at > 1)) for at in range(12)]
    first, second = [*stay, *left], [*stay, *came]
    assert smallest_change(values(first), values(second)) < 10
    people = [*range(52)], [*range(40), *range(100, 112)]
    assert smallest_change(values(first, people[0]), values(second, people[1])) == 12


def test_units_of_another_column_hide_no_change():
    """Of sixty rows x changed, and of one of them z as well."""
    first = [("a", at, at % 2) for at in range(100)]
    second = [("a", at + 1000 * (at < 60), at % 2 ^ (at == 0)) for at in range(100)]
    for column, units in (("admission", range(500, 600)), ("patient", range(100))):
        of_rows = replace(values(first, range(100)), unit="patient"), replace(values(second, units), unit=column)
        assert smallest_change(*of_rows) == 1


def test_what_is_kept_of_values_comes_back():
    rows = [("a", 1, 0), ("b", 2, 2), ("a", 0, 1)]
    for kept in (values(rows), replace(values(rows, [5, 6, 5]), unit="patient")):
        read = Values.read(kept.arrays())
        assert smallest_change(kept, read) == 0
        assert (read.columns, read.groups, read.bins, read.unit) == (kept.columns, kept.groups, kept.bins, kept.unit)


@pytest.mark.parametrize("classes", [6, 7, 9])
def test_a_row_that_left_while_many_rows_of_every_class_moved_on_is_seen_in_all_classes_together(classes):
    """Each class gives 20 rows to the next; every choice of classes changes by many, all together by the one that left."""
    held = [(label, 100 * label + row) for label in range(classes) for row in range(60)]
    moved = [((label + (value % 100 < 20)) % classes, value) for label, value in held][:-1]
    before, after = (values([(f"{label}", value, value) for label, value in rows]) for rows in (held, moved))
    assert smallest_change(before, after) == 1
