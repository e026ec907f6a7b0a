"""Each row of a client is in one split, and one at least is left to train on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silos.errors import UserError
from silos.params import SplitParams
from silos.rows import ClientRows
from silos.splits import split_rows

FRACTIONS = st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)).filter(lambda pair: sum(pair) < 1)


def client(n: int, split: np.ndarray | None = None) -> ClientRows:
    return ClientRows("lyon", "", np.zeros((n, 1), np.float32), np.zeros(n, np.int64), split)


@given(n=st.integers(1, 300), fractions=FRACTIONS, seed=st.integers(0, 2**32))
def test_each_row_is_in_one_split_and_one_at_least_trains(n, fractions, seed):
    params = SplitParams(validation=fractions[0], test=fractions[1])
    parts = split_rows(client(n), params, seed)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(n))
    assert len(parts["train"]) >= 1
    if fractions[0] * n + fractions[1] * n <= n - 2:
        assert len(parts["test"]) == int(n * fractions[1] + 0.5)
        assert len(parts["validation"]) == int(n * fractions[0] + 0.5)


def test_the_sources_own_split_is_kept():
    given_split = np.array(["test", "train", "validation", "train"])
    parts = split_rows(client(4, given_split), SplitParams(validation=0.5, test=0.2), 0)
    assert {name: rows.tolist() for name, rows in parts.items()} == {
        "train": [1, 3],
        "validation": [2],
        "test": [0],
    }


def test_validation_is_carved_from_train_where_the_source_gives_none():
    given_split = np.array(["train"] * 10 + ["test"] * 5)
    parts = split_rows(client(15, given_split), SplitParams(validation=0.2, test=0.5), 0)
    assert len(parts["validation"]) == 2
    assert set(parts["train"]) | set(parts["validation"]) == set(range(10))
    assert parts["test"].tolist() == list(range(10, 15))


def test_a_client_without_training_rows_is_named():
    with pytest.raises(UserError, match="Client lyon has no training rows"):
        split_rows(client(2, np.array(["test", "test"])), SplitParams(validation=0, test=0), 0)
