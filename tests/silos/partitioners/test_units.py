"""No two splits share a unit, and partitioners deal whole units."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silos.dataset import SPLITS, Partition
from silos.errors import UserError
from silos.row_units import count_copies, hash_units, number_units, unit_weights, whole_units

COLUMN = {"kind": "column", "column": "client"}


def units_of(n: int, sizes: list[int]) -> np.ndarray:
    """n rows of units with these sizes, again and again."""
    unit = np.repeat(np.arange(len(sizes) * n), np.tile(sizes, n))[:n]
    return hash_units(unit)


def splits_by_unit(partition: Partition) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for client in partition.clients:
        assert client.unit is not None
        assert client.split is not None
        for unit, split in zip(client.unit.tolist(), client.split.tolist(), strict=True):
            found.setdefault(unit, set()).add(split)
    if partition.common is not None:
        for unit, split in zip(partition.common.unit.tolist(), partition.common.split.tolist(), strict=True):
            found.setdefault(unit, set()).add(f"common {split}")
    return found


@settings(max_examples=60, deadline=None)
@given(
    unit=st.lists(st.integers(0, 30), min_size=40, max_size=200),
    clients=st.integers(1, 3),
    shares=st.tuples(st.floats(0, 0.5), st.floats(0, 0.45)),
    common=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_no_two_splits_share_a_unit_also_over_clients(numbered, make, unit, clients, shares, common, seed):
    rows = numbered(len(unit), client=(np.arange(len(unit)) % clients).astype(str), unit=hash_units(np.array(unit)))
    split = {"validation": shares[0], "test": shares[1], "test_rows": "common" if common else "own"}
    try:
        made = make(rows, COLUMN, seed=seed, **split)
    except UserError as error:
        assert "rounds to none" in str(error) or "data.source.unit" in str(error) or "takes all" in str(error)  # noqa: PT017
        return
    assert all(len(splits) == 1 for splits in splits_by_unit(made).values())
    assert all((client.split == "train").any() for client in made.clients)
    again = make(rows, COLUMN, seed=seed, **split)
    np.testing.assert_array_equal(made.clients.split, again.clients.split)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    rows=st.integers(60, 200),
    test=st.floats(0.1, 0.5),
    seed=st.integers(0, 2**31),
)
def test_shares_are_met_to_half_a_unit(numbered, make, sizes, rows, test, seed):
    made = make(numbered(rows, unit=units_of(rows, sizes), client=np.full(rows, "a")), COLUMN, seed=seed, test=test)
    assert abs((made.clients.split == SPLITS.index("test")).sum() - test * rows) <= max(sizes) / 2


def test_units_of_one_row_are_as_many_as_rows_without_units(numbered, make):
    for rows in range(2, 30):
        alone, plain = (
            make(replace(numbered(rows), client=np.full(rows, "a"), unit=unit), COLUMN, validation=0.15, test=0.25)
            for unit in (hash_units(np.arange(rows)), None)
        )
        assert np.bincount(alone.clients.split).tolist() == np.bincount(plain.clients.split).tolist()


def test_a_client_of_one_unit_has_none_to_test_on(numbered, make):
    rows = numbered(40, client=np.repeat(["a", "b"], 20), unit=hash_units(np.repeat([1, 2, 3], [10, 10, 20])))
    with pytest.raises(UserError, match=r"data\.source\.unit: client b has one unit, .* expected two or more"):
        make(rows, COLUMN, test=0.25)
    assert len(make(rows, COLUMN).clients) == 2


def test_marks_of_the_source_that_part_a_unit_are_refused(numbered, make):
    marks = np.array(["train", "test"] * 10)
    rows = numbered(20, client=np.full(20, "a"), split=marks, unit=hash_units(np.arange(20) // 2))
    with pytest.raises(UserError, match="got 10 of 10 units with rows in two splits of the source, expected one"):
        make(rows, COLUMN)
    whole = replace(rows, unit=hash_units(np.arange(20) % 2))
    assert make(whole, COLUMN).clients.split.tolist() == [0, 2] * 10


def test_validation_is_drawn_by_unit_where_the_source_marks_test(numbered, make):
    marks = np.repeat(["train", "test"], [30, 10])
    rows = numbered(40, client=np.full(40, "a"), split=marks, unit=hash_units(np.arange(40) // 5))
    made = make(rows, COLUMN, validation=0.3)
    assert all(len(splits) == 1 for splits in splits_by_unit(made).values())
    assert np.bincount(made.clients.split).tolist() == [20, 10, 10]


def test_the_first_rows_for_validation_are_of_whole_units(numbered, make):
    rows = numbered(40, client=np.full(40, "a"), unit=hash_units(np.arange(40) // 4))
    made = make(rows, COLUMN, validation=0.16, validation_rows="common", validation_from="start")
    assert made.common.x[:, 0].tolist() == list(range(8))


@pytest.mark.parametrize("step", [{"kind": "equal"}, {"kind": "quantity", "beta": 0.5}])
@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=6), clients=st.integers(1, 6), seed=st.integers(0, 999))
def test_dealers_keep_units_whole(numbered, make, step, sizes, clients, seed):
    unit = units_of(120, sizes)
    made = make(numbered(120, unit=unit), {**step, "clients": clients}, seed=seed)
    owners = [np.unique(client.unit) for client in made.clients]
    assert sum(map(len, owners)) == len(np.unique(unit))
    assert sorted(np.concatenate([client.x[:, 0] for client in made.clients]).tolist()) == list(range(120))
    if step["kind"] == "equal":
        assert np.ptp([len(client.y) for client in made.clients]) <= max(sizes)


def test_dealers_by_label_and_too_few_units_are_refused(numbered, make):
    rows = numbered(60, unit=hash_units(np.arange(60) // 20))
    with pytest.raises(UserError, match=r"got a step that deals single rows, .* `equal` or `quantity`"):
        make(rows, {"kind": "dirichlet", "clients": 2, "alpha": 1.0})
    with pytest.raises(UserError, match="clients: got 4, expected at most the 3 units to deal"):
        make(rows, {"kind": "equal", "clients": 4})


def test_units_at_several_clients_are_named(numbered, make):
    rows = numbered(40, client=np.repeat(["a", "b"], 20), unit=hash_units(np.arange(40) % 20 // 2))
    notes = make(rows, COLUMN, test=0.25).notes
    assert "unit: 10 of 10 have rows at several clients, and count once at each" in notes
    assert "unit: 40 rows of 10 units, each whole in training, validation or test" in notes


@given(unit=st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_the_weights_of_a_unit_add_up_to_one_exactly(unit):
    weights = unit_weights(np.array(unit))
    for number in set(unit):
        of_unit = weights[np.array(unit) == number]
        assert of_unit.sum() == 1
        assert of_unit == pytest.approx(1 / len(of_unit), abs=2e-6)
    assert number_units(np.array(unit)).tolist() == [list(dict.fromkeys(unit)).index(each) for each in unit]


@given(target=st.floats(0, 20), n=st.integers(0, 20))
def test_units_of_one_row_are_rounded_as_rows_are(target, n):
    assert whole_units(np.arange(n), target) == min(int(np.floor(target + 0.5)), n)


def copied(rng: np.random.Generator, x: Callable[[], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    once = x()
    return np.repeat(once, 2, 0), np.repeat(rng.integers(0, 2, len(once)), 2)


def test_copies_are_found_unless_few_values_explain_them():
    rng = np.random.default_rng(0)
    assert count_copies(*copied(rng, lambda: rng.normal(size=(100, 3)))) == 100
    assert count_copies(*copied(rng, lambda: rng.integers(0, 256, (100, 4, 4)).astype(np.uint8))) == 100
    assert count_copies(rng.normal(size=(200, 3)), rng.integers(0, 2, 200)) == 0
    assert count_copies(rng.integers(0, 2, (500, 4)).astype(float), rng.integers(0, 2, 500)) == 0
    ages = np.stack([rng.integers(20, 90, 500), rng.integers(0, 2, 500)], 1).astype(float)
    assert count_copies(ages, rng.integers(0, 2, 500)) == 0
    vitals = np.stack([rng.integers(20, 90, 3000), rng.integers(80, 180, 3000), rng.integers(0, 2, 3000)], 1)
    assert count_copies(vitals.astype(float), rng.integers(0, 2, 3000)) == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_client_too_small_for_test_rows_trains_though_its_units_are_seen_elsewhere_too(numbered, make, seed):
    client = np.array(["big"] * 40 + ["large"] * 40 + ["small"] * 2)
    unit = hash_units(np.concatenate([np.arange(40), np.arange(40), [3, 3]]))
    made = make(numbered(82, client=client, unit=unit), COLUMN, seed=seed, validation=0.2, test=0.2)
    for one in made.clients:
        assert (one.split == "train").any()
    assert all(len(splits) == 1 for splits in splits_by_unit(made).values())
    assert {*made.clients.split[made.clients.owner == made.clients.names.index("small")].tolist()} == {
        SPLITS.index("train")
    }
