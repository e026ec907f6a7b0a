"""Local training as a task: pure, and the same however it is dealt."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from flows.methods.fedavg import FedAvg
from flows.methods.local_only import LocalOnly
from models.prng import client_streams
from models.training.engine import Rows, broadcast_weights, train
from silos.client_store import ClientStore
from silos.cohort import Stack, make_stacks
from tasks.aggregate import aggregate
from tasks.execution.load_client_data import load_rows
from tasks.execution.task_runner import assign_stacks
from tasks.local_train import _SMALL, local_train, weighted_sum

NINE = {f"c{i}": 5 + 3 * i for i in range(9)}


@pytest.mark.parametrize("page", [FedAvg(), LocalOnly()])
def test_running_it_twice_gives_the_same_messages(page, make_problem, make_round):
    setup, model = _problem_and_model(page, make_problem)
    first, second = (make_round(setup, stack=4).train(local_train, model) for _ in range(2))
    assert len(first) == len(second) == 3
    for a, b in zip(first, second, strict=True):
        assert _same(a, b)


def test_an_update_is_each_clients_own_training_weighed_by_its_rows(make_problem, make_round):
    """Every client is trained here by itself, from its rows on disk."""
    setup, model = _problem_and_model(FedAvg(), make_problem)
    updates = make_round(setup, number=3, stack=4).train(local_train, model)
    for update in updates:
        expected = {n: torch.zeros(w.shape, dtype=torch.float64) for n, w in model.shared.items()}
        for client, loss in zip(update.clients, update.loss, strict=True):
            rows: Rows = load_rows(setup.silos, Stack((client,), 1), "train", "cpu")
            streams = client_streams(setup.seed, [client], 3, "local_train")
            weights, seen, _ = train(
                setup.network, broadcast_weights(model.shared, 1), {}, rows, setup.training, streams
            )
            for name in expected:
                expected[name] += NINE[client] * weights[name][0].double()
            assert float(loss) == pytest.approx(float(seen), abs=1e-5)
        assert update.rows.tolist() == [NINE[c] for c in update.clients]
        for name in expected:
            torch.testing.assert_close(update.sums[name], expected[name], rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("page", [FedAvg(), LocalOnly()])
def test_dealing_to_1_2_3_or_7_workers_gives_the_same_messages_in_the_same_order(page, make_problem, make_round):
    setup, model = _problem_and_model(page, make_problem)
    found = [make_round(setup, workers=n, stack=2).train(local_train, model) for n in (1, 2, 3, 7)]
    assert len(assign_stacks(setup.silos, make_stacks(setup.silos, 2), 3)) == 3
    for other in found[1:]:
        assert all(_same(a, b) for a, b in zip(found[0], other, strict=True))


def test_dealing_gives_bit_equal_weights_after_rounds_of_fedavg(make_problem, play):
    setup = make_problem(NINE)
    hashes = {play(FedAvg(), setup, [1, 2, 3], workers=n, stack=2).state.sha256() for n in (1, 2, 3, 5)}
    assert len(hashes) == 1


@pytest.mark.parametrize("page", [FedAvg(), LocalOnly()])
def test_the_order_in_which_clients_are_listed_is_irrelevant(page, make_problem, make_round):
    setup, model = _problem_and_model(page, make_problem)
    there = list(NINE)
    one = make_round(setup, clients=there, stack=2).train(local_train, model)
    other = make_round(setup, clients=there[::-1], stack=2).train(local_train, model)
    assert all(_same(a, b) for a, b in zip(one, other, strict=True))


def test_another_stack_size_changes_weights_by_rounding_only(make_problem, play):
    setup = make_problem(NINE)
    first, *others = (play(FedAvg(), setup, [1], stack=n).state.tensors["weights"] for n in (1, 2, 4, 16))
    for other in others:
        for name in first:
            torch.testing.assert_close(other[name], first[name], rtol=0, atol=1e-6)


def test_seconds_are_on_the_first_message_of_a_cohort_only(make_problem, make_round):
    setup, model = _problem_and_model(FedAvg(), make_problem)
    updates = make_round(setup, workers=1, stack=2).train(local_train, model)
    assert updates[0].seconds > 0
    assert {u.seconds for u in updates[1:]} == {0.0}


def test_a_client_takes_up_what_it_stored(make_problem, play, tmp_path):
    """Two rounds of a client alone are its second round from the weights of its first."""
    setup = make_problem({"a": 9, "b": 12, "c": 4})
    store = ClientStore(str(tmp_path / "own"))
    played = play(LocalOnly(), setup, [1, 2], stack=2, private=store)
    start = LocalOnly().model(LocalOnly().init(setup), setup).personal.start
    for client in setup.silos.clients:
        weights = broadcast_weights(start, 1)
        rows = load_rows(setup.silos, Stack((client,), 1), "train", "cpu")
        for number in (1, 2):
            streams = client_streams(0, [client], number, "local_train")
            weights, *_ = train(setup.network, weights, {}, rows, setup.training, streams)
        kept = store.load("weights", played.state.private["weights"], client)
        for name in kept:
            torch.testing.assert_close(torch.from_numpy(kept[name].copy()), weights[name][0], rtol=0, atol=1e-6)


@given(some.lists(some.integers(0, 1000), min_size=1, max_size=5), some.sampled_from([1, _SMALL, _SMALL + 1]))
def test_every_tensor_is_weighed_by_rows_however_many_numbers_it_has(rows, numbers):
    stack = np.random.default_rng(numbers).normal(size=(len(rows), 1, numbers)).astype(np.float32)
    found = weighted_sum(torch.from_numpy(stack), torch.tensor(rows))
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, np.einsum("k,k...", rows, stack.astype(float)), rtol=1e-12, atol=1e-9)


def _problem_and_model(page, make_problem):
    setup = make_problem(NINE)
    return setup, page.model(page.init(setup), setup)


def _same(a, b) -> bool:
    """Equal in everything but the clock."""
    for field in fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if field.name == "seconds":
            continue
        if field.name == "sums":
            if list(x) != list(y) or not all(torch.equal(x[n], y[n]) for n in x):
                return False
        elif isinstance(x, torch.Tensor):
            if not torch.equal(x, y):
                return False
        elif x != y:
            return False
    return True


@pytest.mark.parametrize("stack", [2, 3])
def test_with_shares_clients_count_as_the_page_says_and_not_by_rows(stack, make_problem, make_round):
    """The mean of each client's own weights by these numbers, whatever the stacks and their padding; 0 counts nothing."""
    setup, shares = make_problem({"a": 23, "b": 5, "c": 11}), {"a": 0.0, "b": 3.0, "c": 0.5}
    round, page = make_round(setup, stack=stack), FedAvg()
    state = page.init(setup)
    updates = round.train(local_train, page.model(state, setup), shares=shares, each=True)
    own = {c: {n: w[at] for n, w in u.each.items()} for u in updates for at, c in enumerate(u.clients)}
    for name, w in round.run_on_server(aggregate, updates, state.tensors["weights"]).items():
        expected = sum(shares[c] * own[c][name].double() for c in shares) / sum(shares.values())
        torch.testing.assert_close(w, expected.float())


@pytest.mark.parametrize("share", [-1.0, float("nan"), float("inf"), None])
def test_a_share_that_is_none_is_refused_with_the_clients_name(share, make_problem, make_round):
    setup = make_problem({"a": 23, "b": 5})
    page, round = FedAvg(), make_round(setup)
    shares = {"a": 1.0} | ({} if share is None else {"b": share})
    with pytest.raises(ValueError, match="for client b, expected numbers of at least 0"):
        round.train(local_train, page.model(page.init(setup), setup), shares=shares)
