"""Stacks depend on the data alone, and opening them is remembered."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silos import cohort
from silos.cohort import Silos, Stack, make_stacks, open_stack
from silos.storage.partition_store import open_client, write

COUNTS = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 50), min_size=1, max_size=20)


def sized(rows: dict[str, int]) -> Silos:
    """Silos of which only the row counts matter."""
    return SimpleNamespace(rows=lambda _: rows, clients=tuple(rows))


@given(rows=COUNTS, size=st.integers(1, 7), data=st.data())
def test_stacks_do_not_depend_on_the_order_of_listing(rows, size, data):
    shuffled = dict(data.draw(st.permutations(list(rows.items()))))
    assert make_stacks(sized(rows), size) == make_stacks(sized(shuffled), size)


@given(rows=COUNTS, size=st.integers(1, 7))
def test_stacks_hold_each_client_once_the_largest_first(rows, size):
    stacks = make_stacks(sized(rows), size)
    order = [name for stack in stacks for name in stack.clients]
    assert sorted(order) == sorted(rows)
    assert [rows[name] for name in order] == sorted(rows.values(), reverse=True)
    assert all(stack.size == size for stack in stacks)
    assert all(len(stack.clients) == size for stack in stacks[:-1])


def test_a_stack_is_its_clients_padded_with_zeros(natural):
    silos = Silos.open(natural({"lyon": 20, "oslo": 30, "one": 1}), "v")
    (stack,) = make_stacks(silos, 5)
    rows = open_stack(silos, stack, "train")
    assert stack.clients == ("oslo", "lyon", "one")
    assert rows.x.shape == (5, 21, 2, 2)
    assert rows.x.dtype == np.float32
    assert rows.y.dtype == np.int64
    assert rows.rows.tolist() == [21, 14, 1, 0, 0]
    for at, name in enumerate(stack.clients):
        x, y = open_client(Path(silos.folder), silos.manifest.client(name), "train")
        np.testing.assert_array_equal(rows.x[at, : len(y)], x / np.float32(255))
        np.testing.assert_array_equal(rows.y[at, : len(y)], y)
        assert not rows.x[at, len(y) :].any()
        assert not rows.y[at, len(y) :].any()


def test_a_split_without_rows_is_one_wide(natural):
    silos = Silos.open(natural({"one": 1}), "v")
    rows = open_stack(silos, Stack(("one",), 2), "test")
    assert rows.x.shape == (2, 1, 2, 2)
    assert rows.rows.tolist() == [0, 0]


def test_float_features_are_not_scaled(tmp_path, params):
    x = np.array([[300.0], [-2.0], [7.5]])
    np.savez(tmp_path / "own.npz", x=x, y=[0, 1, 0])
    own = params(source={"kind": "npz", "path": "own.npz"}, scheme=[{"kind": "equal", "clients": 1}])
    write(tmp_path / "data", own, tmp_path)
    silos = Silos.open(tmp_path / "data", "v")
    rows = open_stack(silos, Stack(("c00",), 1), "train")
    assert set(rows.x.ravel().tolist()) <= {300.0, -2.0, 7.5}


def test_opened_stacks_are_shared_between_threads_and_by_key(natural):
    silos = Silos.open(natural({"lyon": 20, "oslo": 30}), "v")
    stack = Stack(("lyon",), 1)
    first = open_stack(silos, stack, "train")
    with ThreadPoolExecutor(4) as pool:
        assert all(rows is first for rows in pool.map(lambda _: open_stack(silos, stack, "train"), range(20)))
    assert open_stack(silos, stack, "test") is not first
    assert open_stack(Silos.open(silos.folder, "w"), stack, "train") is not first


def test_the_oldest_stacks_give_way_when_memory_is_used_up(natural, monkeypatch):
    silos = Silos.open(natural({"a": 20, "b": 20, "c": 20}), "budget")
    cohort.forget_stacks()
    stacks = make_stacks(silos, 1)
    size = open_stack(silos, stacks[0], "train").nbytes
    monkeypatch.setattr(cohort, "CACHE_BYTES", 2 * size)
    kept, gone = open_stack(silos, stacks[0], "train"), open_stack(silos, stacks[1], "train")
    assert open_stack(silos, stacks[0], "train") is kept  # used again, so younger than the other
    open_stack(silos, stacks[2], "train")
    assert open_stack(silos, stacks[0], "train") is kept
    assert open_stack(silos, stacks[1], "train") is not gone


@pytest.fixture(autouse=True)
def _no_stacks_left_in_memory():
    yield
    cohort.forget_stacks()
