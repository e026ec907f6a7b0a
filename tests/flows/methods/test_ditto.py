"""Ditto and its reductions (Li et al. 2021)."""

import pytest
import torch

from flows.methods.ditto import Ditto
from flows.methods.fedavg import FedAvg
from flows.methods.local_only import LocalOnly
from silos.client_store import ClientStore

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}
START = 3.0


def own(played, client: str) -> dict:
    return played.private.load("personal", played.state.private["personal"], client)


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.0, 0.1, 1.0, 7.0])
def test_the_shared_path_is_fedavg_to_the_bit_for_every_weight(weight, make_problem, play):
    setup, absent = make_problem(SIZES), {2: ["b", "e"]}
    ditto, fedavg = (play(page, setup, [1, 2, 3], absent=absent) for page in (Ditto(personal_weight=weight), FedAvg()))
    for name, w in fedavg.state.tensors["weights"].items():
        assert torch.equal(ditto.state.tensors["weights"][name], w)
    shared = [r.metrics["loss/train_shared"] for r in ditto.reports]
    assert shared == [r.metrics["loss/train"] for r in fedavg.reports]


def test_with_weight_0_the_personal_path_is_local_only_to_the_bit(make_problem, play, tmp_path):
    """Also where clients are absent: nothing of the shared weights enters."""
    setup, absent = make_problem(SIZES), {1: ["c"], 2: ["b", "e"]}
    ditto = play(Ditto(personal_weight=0), setup, [1, 2, 3], absent=absent)
    store = ClientStore(str(tmp_path / "local"))
    local = play(LocalOnly(), setup, [1, 2, 3], absent=absent, private=store)
    for client in SIZES:
        kept = store.load("weights", local.state.private["weights"], client)
        for name, w in own(ditto, client).items():
            assert w.tobytes() == kept[name].tobytes()
    assert [r.client_metrics for r in ditto.reports] == [r.client_metrics for r in local.reports]


@pytest.mark.slow
@pytest.mark.parametrize(("a", "m", "weight"), [(1, 2, 0.5), (2, -1, 3), (4, 5, 0)])
def test_solved_exactly_a_client_is_between_its_minimum_and_the_weights_that_it_received(a, m, weight, quadratic, play):
    """(H + lambda I)^-1 (H theta + lambda w), with w as it was before the round's average."""
    setup = quadratic({"a": (3, a, m), "b": (5, 1, 0)}, epochs=400)
    received = START
    for rounds in ([1], [1, 2]):
        played = play(Ditto(personal_weight=weight), setup, rounds)
        expected = (a * m + weight * received) / (a + weight)
        assert float(own(played, "a")["w"][0]) == pytest.approx(expected, abs=1e-9)
        received = float(played.state.tensors["weights"]["w"])


def test_where_rate_times_weight_is_1_a_step_ends_beside_the_received_weights(quadratic, play):
    """v <- v - h (grad F(v) + (v - w) / h) = w - h grad F(v)."""
    setup = quadratic({"a": (3, 2, 1), "b": (5, 1, 0)})
    first, second = (play(Ditto(personal_weight=10), setup, rounds) for rounds in ([1], [1, 2]))
    received, before = float(first.state.tensors["weights"]["w"]), float(own(first, "a")["w"][0])
    assert float(own(second, "a")["w"][0]) == pytest.approx(received - 0.1 * 2 * (before - 1), abs=1e-12)


def test_a_client_that_is_absent_keeps_its_own_weights(make_problem, play):
    setup = make_problem(SIZES)
    before = play(Ditto(), setup, [1])
    after = play(Ditto(), setup, [2], state=before.state, absent={2: ["b"]})
    for name, w in own(before, "b").items():
        assert own(after, "b")[name].tobytes() == w.tobytes()
        assert own(after, "a")[name].tobytes() != own(before, "a")[name].tobytes()


def test_a_client_that_never_trained_has_the_shared_weights(make_problem, play):
    setup = make_problem(SIZES)
    played = play(Ditto(), setup, [1, 2], absent={1: ["b"], 2: ["b"]})
    model = played.page.model(played.state, setup)
    assert "b" not in model.personal.refs
    for name, w in played.state.tensors["weights"].items():
        assert torch.equal(model.personal.start[name], w)


def test_personal_weights_stay_and_cost_two_numbers_a_client(make_problem, play):
    number = 5 * 6 + 6 + 6 * 3 + 3
    played = play(Ditto(), make_problem(SIZES), [1])
    assert set(played.state.tensors) == {"weights"}
    tally = played.rounds[0].tally
    assert tally.bytes_down == 5 * 4 * number
    assert tally.bytes_up == 5 * 4 * (number + 2 + 2)
