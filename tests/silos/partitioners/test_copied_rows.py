"""Rows of one silo that another holds as well are counted, and rows of few categories that agree by chance are not named."""

import numpy as np
import pytest

from silos.dataset import Clients
from silos.partitioners.copied_rows import copied_row_notes


def clients(*silos):
    sizes = [len(y) for _, y in silos]
    return Clients(
        names=[f"shop {index}" for index in range(len(silos))],
        domains=[""] * len(silos),
        roles=["federated"] * len(silos),
        ends=np.cumsum(sizes),
        x=np.concatenate([x for x, _ in silos]).astype(np.float32),
        y=np.concatenate([y for _, y in silos]),
    )


def rows(seed, count=70, values=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, values, (count, 3)) if values else rng.normal(size=(count, 3))
    return x, rng.integers(0, 2, count)


def with_copies(own, other, count):
    return tuple(np.concatenate([part, more[:count]]) for part, more in zip(own, other, strict=True))


def test_a_copied_half_of_70_rows_is_named_with_both_counts_and_other_silos_are_not():
    silos = [rows(0), with_copies(rows(1), rows(0), 35), rows(2)]
    assert copied_row_notes(clients(*silos)) == [
        "equal rows at two silos, perhaps copies: 35 of 70 rows of shop 0 at shop 1, 35 of 105 rows of shop 1 at shop 0; "
        "keep each in one silo"
    ]


def test_a_copy_in_a_large_silo_is_named_for_the_small_one():
    (note,) = copied_row_notes(clients(rows(0), with_copies(rows(1, 5000), rows(0), 70)))
    assert "70 of 70 rows of shop 0 at shop 1;" in note


@pytest.mark.parametrize("values", [2, 3, 5, 12])
def test_rows_of_few_categories_that_agree_by_chance_are_not_named(values):
    for seed in range(10):
        assert copied_row_notes(clients(rows(2 * seed, 300, values), rows(2 * seed + 1, 300, values))) == []
        assert copied_row_notes(clients(rows(2 * seed, 100, values), rows(2 * seed + 1, 3000, values))) == []


def test_a_few_equal_rows_and_rows_with_another_label_are_not_named():
    x, y = rows(0)
    assert copied_row_notes(clients((x, y), with_copies(rows(1), (x, y), 6))) == []
    assert copied_row_notes(clients((x, y), with_copies(rows(1), (x, 1 - y), 35))) == []


def test_missing_values_are_equal_and_so_are_both_zeros():
    x, y = rows(0)
    x[:, 0] = np.where(y == 1, np.nan, 0.0)
    copied = np.where(x == 0, -0.0, x), y
    assert "35 of 70 rows of shop 0" in copied_row_notes(clients((x, y), with_copies(rows(1), copied, 35)))[0]


def test_rows_that_three_silos_hold_are_counted_at_each_two_of_them():
    (note,) = copied_row_notes(clients(rows(0), rows(0), rows(0)))
    assert note.count("70 of 70 rows") == 3
    assert "and 3 more" in note


def test_rows_that_very_many_silos_hold_are_common_and_not_copied():
    assert copied_row_notes(clients(*[rows(0)] * 6)) == []
