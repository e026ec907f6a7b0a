"""Silos are a small reference; pooled, they are one client that owns all rows."""

import pickle

import numpy as np
import pytest

from silos.cohort import Stack, open_stack
from silos.errors import UserError
from silos.reference import Silos

SIZES = {"lyon": 20, "oslo": 30, "rome": 3}


@pytest.fixture
def silos(natural):
    return Silos.open(natural(SIZES), "v1")


def test_a_reference_pickles_small_and_opens_elsewhere(silos):
    assert len(pickle.dumps(silos)) < 500
    assert pickle.loads(pickle.dumps(silos)).rows("train") == silos.rows("train")
    assert hash(silos) == hash(pickle.loads(pickle.dumps(silos)))


def test_rows_are_counted_per_client_and_split(silos):
    assert silos.rows("train") == {"lyon": 14, "oslo": 21, "rome": 2}
    assert silos.rows("test") == {"lyon": 4, "oslo": 6, "rome": 1}


def test_select_keeps_the_order_asked_for(silos):
    assert silos.select(["rome", "lyon"]).clients == ("rome", "lyon")
    with pytest.raises(UserError, match="no client paris"):
        silos.select(["paris"])
    with pytest.raises(UserError, match="no client oslo"):
        silos.select(["rome"]).select(["oslo"])


def test_pooled_clients_are_one_that_owns_all_rows_in_order(silos):
    pooled = silos.select(["rome", "lyon"]).pool()
    assert pooled.clients == ("rome+lyon",)
    assert pooled.pooled
    assert pooled.rows("train") == {"rome+lyon": 16}
    rows = open_stack(pooled, Stack(pooled.clients, 1), "train")
    parts = [open_stack(silos, Stack((name,), 1), "train") for name in ("rome", "lyon")]
    np.testing.assert_array_equal(rows.x, np.concatenate([part.x for part in parts], axis=1))
    np.testing.assert_array_equal(rows.y, np.concatenate([part.y for part in parts], axis=1))


def test_pooling_one_client_is_that_client(silos):
    alone = silos.select(["oslo"])
    assert alone.pool() == alone


def test_pooling_twice_is_pooling_once(silos):
    assert silos.pool().pool() == silos.pool()
    assert silos.pool().select(silos.pool().clients) == silos.pool()
