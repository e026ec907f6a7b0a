"""The server's mean, and its robust forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from silos.errors import UserError
from tasks.aggregate import Aggregation, aggregate
from tasks.messages.round_messages import Update


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


def each(rows: list[int], weights: np.ndarray, buffer: np.ndarray | None = None) -> Update:
    """An update with every client's weights, and a running statistic if there is one."""
    tensors = {"w": torch.from_numpy(weights.astype(np.float32))}
    if buffer is not None:
        tensors["mean"] = torch.from_numpy(buffer.astype(np.float32))
    sums = {name: (torch.tensor(rows).double()[:, None] * t.double()).sum(0) for name, t in tensors.items()}
    clients = tuple(f"c{i}" for i in range(len(rows)))
    return Update(clients, torch.tensor(rows), sums, torch.zeros(len(rows)), each=tensors)


def robustly(updates: list[Update], robust: Aggregation, start: float = 0.0) -> torch.Tensor:
    return aggregate.fn(updates, {"w": torch.full((3,), start)}, robust)["w"]


def test_one_update_that_is_100_times_too_long_moves_the_clipped_mean_by_its_share_of_the_clip():
    """Ten rows each; honest updates have length 1, and so the clip changes none of them."""
    honest = np.eye(3)[[0, 1, 2, 0, 1]]
    faulty = honest.copy()
    faulty[2] *= 100
    clip = Aggregation(clip=1.0)
    before, after = (robustly([each([10] * 3, w[:3]), each([10] * 2, w[3:])], clip) for w in (honest, faulty))
    assert before.tolist() == pytest.approx([0.4, 0.4, 0.2])
    assert torch.allclose(after, before)  # it points where it did before, and is as long
    faulty[2] *= -1
    moved = robustly([each([10] * 5, faulty)], clip) - before
    assert moved.norm() == pytest.approx(2 * 1.0 / 5)  # the most that it can: twice the clip times its share
    plain = aggregate.fn([each([10] * 5, faulty)], {"w": torch.zeros(3)})["w"] - before
    assert plain.norm() == pytest.approx(101 / 5)
    for rule in ("median", "trimmed_mean"):
        assert (robustly([each([10] * 5, faulty)], Aggregation(rule=rule)) - before).norm() < 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(0, 2**32 - 1))
def test_the_rules_are_those_of_numpy_one_coordinate_at_a_time(rows, seed):
    weights = np.random.default_rng(seed).normal(size=(len(rows), 3)).astype(np.float32)
    updates = [each([n], weights[i : i + 1]) for i, n in enumerate(rows)]
    if len(rows) > 1:
        median = robustly(updates, Aggregation(rule="median")).numpy()
        np.testing.assert_allclose(median, np.median(weights.astype(np.float64), axis=0), rtol=1e-6, atol=1e-7)
        out = min(math.ceil(0.3 * len(rows)), (len(rows) - 1) // 2)
        expected = np.sort(weights.astype(np.float64), 0)[out : len(rows) - out].mean(0)
        trimmed = robustly(updates, Aggregation(rule="trimmed_mean", trim=0.3)).numpy()
        np.testing.assert_allclose(trimmed, expected, rtol=1e-6, atol=1e-7)
    start, clip = np.float64(0.25), 0.5
    lengths = np.linalg.norm(weights.astype(np.float64) - start, axis=1, keepdims=True)
    shortened = start + (weights - start) * np.minimum(1, clip / lengths)
    if len(rows) > 1:
        found = robustly(updates, Aggregation(clip=clip), 0.25).numpy()
        np.testing.assert_allclose(found, np.average(shortened, axis=0, weights=rows), rtol=1e-5, atol=1e-6)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_a_clip_that_no_update_reaches_is_the_mean_to_the_bit(rows, seed):
    weights = np.random.default_rng(seed).normal(size=(len(rows), 3))
    updates = [each(rows[:2], weights[:2]), *([each(rows[2:], weights[2:])] if len(rows) > 2 else [])]
    plain = aggregate.fn(updates, {"w": torch.zeros(3)})["w"]
    assert torch.equal(robustly(updates, Aggregation(clip=1e6)), plain)


@pytest.mark.parametrize(
    "robust", [Aggregation(clip=9.0), Aggregation(rule="median"), Aggregation(rule="trimmed_mean")]
)
def test_weights_that_are_not_finite_do_not_count(robust):
    weights = np.array([[1.0, 2, 3], [np.nan, 1, 1], [3.0, 2, 1], [np.inf, 0, 0]])
    assert robustly([each([5, 5, 5, 5], weights)], robust).tolist() == [2, 2, 2]
    assert robustly([each([5, 5], weights[[1, 3]])], robust, 7.0).tolist() == [7, 7, 7]


def test_a_client_that_answers_alone_is_clipped_too():
    alone = each([5], np.array([[3.0, 0, 4]]))
    assert robustly([alone], Aggregation(clip=1.0)).tolist() == pytest.approx([0.6, 0, 0.8])
    assert robustly([alone], Aggregation(rule="median")).tolist() == [3, 0, 4]
    assert robustly([each([5], np.array([[np.nan, 1, 1]]))], Aggregation(rule="median"), 7.0).tolist() == [7, 7, 7]
    pooled = update([5], np.array([[3.0, 0, 4]]))
    assert robustly([pooled], Aggregation(clip=1.0)).tolist() == [3, 0, 4], "pooled rows are no client"


def test_running_statistics_are_not_clipped_but_the_median_covers_them():
    update = each([1, 1, 1], np.eye(3), np.array([[0.0], [1.0], [50.0]]))
    current = {"w": torch.zeros(3), "mean": torch.zeros(1)}
    clipped = aggregate.fn([update], current, Aggregation(clip=0.5), {"mean"})
    assert clipped["w"].tolist() == pytest.approx([1 / 6] * 3)
    assert clipped["mean"].item() == pytest.approx(17)
    assert aggregate.fn([update], current, Aggregation(rule="median"), {"mean"})["mean"].item() == 1


def test_sums_over_clients_are_refused():
    with pytest.raises(UserError, match=r"aggregation: got clip: 1, rule: median, expected clip: null and rule: mean"):
        robustly([update([1, 2], np.ones((2, 3)))], Aggregation(clip=1.0, rule="median"))
