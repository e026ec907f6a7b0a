"""The server's mean."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.aggregate import aggregate
from tasks.messages.update_messages import Update


def update(rows: list[int], weights: np.ndarray) -> Update:
    """weights: (clients, 3)."""
    sums = {"w": torch.from_numpy((np.array(rows)[:, None] * weights.astype(np.float64)).sum(0))}
    return Update(tuple(f"c{i}" for i in range(len(rows))), torch.tensor(rows), sums, torch.zeros(len(rows)))


def test_the_mean_is_weighed_by_rows():
    updates = [
        update([1, 3], np.array([[1.0, 0, 2], [5, 4, 2]])),
        update([4], np.array([[9.0, 8, 2]])),
    ]
    mean = aggregate.fn(updates, {"w": torch.zeros(3)})["w"]
    assert mean.tolist() == [(1 + 15 + 36) / 8, (12 + 32) / 8, 2.0]
    assert mean.dtype == torch.float32


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_the_mean_is_numpys_average(rows, seed):
    weights = np.random.default_rng(seed).normal(size=(len(rows), 3)).astype(np.float32)
    current = {"w": torch.full((3,), 7.0)}
    mean = aggregate.fn([update([n], weights[i : i + 1]) for i, n in enumerate(rows)], current)["w"]
    expected = np.average(weights.astype(np.float64), axis=0, weights=rows) if sum(rows) else np.full(3, 7.0)
    np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-6, atol=1e-7)


@given(st.integers(1, 10**6), st.integers(0, 2**32 - 1))
def test_the_mean_of_equal_weights_is_those_weights_to_the_bit(rows, seed):
    w = np.random.default_rng(seed).normal(size=(1, 3)).astype(np.float32)
    mean = aggregate.fn([update([rows], w)], {"w": torch.zeros(3)})["w"]
    assert mean.numpy().tobytes() == w[0].tobytes()


@pytest.mark.parametrize("updates", [[], [update([0], np.ones((1, 3)))]])
def test_if_nobody_has_rows_the_weights_stay(updates):
    current = {"w": torch.tensor([1.0, 2.0, 3.0])}
    assert torch.equal(aggregate.fn(updates, current)["w"], current["w"])


def test_a_client_without_rows_has_no_say():
    loud = update([2, 0], np.array([[1.0, 1, 1], [1e30, -1e30, 5]]))
    assert aggregate.fn([loud], {"w": torch.zeros(3)})["w"].tolist() == [1, 1, 1]


def test_weights_keep_their_own_type():
    found = aggregate.fn([update([2], np.ones((1, 3)))], {"w": torch.zeros(3, dtype=torch.float64)})
    assert found["w"].dtype == torch.float64
