"""DisTrans and its reductions (Yuan et al. 2022)."""

from dataclasses import fields, replace

import pytest
import torch

from flows.methods.distrans import DisTrans
from flows.methods.fedavg import FedAvg
from models.networks.mlp import MLP
from models.networks.wrappers.conditional_network import Ensemble
from models.server_state import ServerState
from models.training.optimizers import SGD
from silos.errors import UserError

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}
LAST = "dense1.weight"


class LastTwiceAsFast(MLP):
    """Each half of the wide last layer gets the full gradient, so their sum moves twice as far."""

    lr_multipliers = {LAST: 2.0}  # noqa: RUF012


def offset(played, client: str):
    return played.private.load("offset", played.state.private["offset"], client)["offset"]


def added(weights: dict) -> dict:
    first, second = weights[LAST].chunk(2, 0)
    return {**weights, LAST: first + second}


def test_with_mix_0_it_is_fedavg_with_both_halves_of_the_last_layer_added(make_problem, play):
    """To rounding, whatever the offsets; with a last layer that learns twice as fast."""
    page, setup, absent = DisTrans(mix=0, start_scale=50.0), make_problem(SIZES), {2: ["b", "e"]}
    start = page.init(setup).tensors["weights"]
    plain = LastTwiceAsFast(**{f.name: getattr(setup.network, f.name) for f in fields(MLP)})
    reference = make_problem(SIZES, network=plain, engine="vmap")
    ours = play(page, setup, [1, 2, 3], absent=absent)
    theirs = play(FedAvg(), reference, [1, 2, 3], state=ServerState({"weights": added(start)}), absent=absent)
    for name, w in theirs.state.tensors["weights"].items():
        torch.testing.assert_close(added(ours.state.tensors["weights"])[name], w, rtol=0, atol=2e-6)
    losses = [[r.metrics["loss/train"] for r in played.reports] for played in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_offsets_stay_with_the_clients_and_cost_no_bytes(make_problem, play):
    setup = make_problem(SIZES)
    played = play(DisTrans(), setup, [1])
    number = 5 * 6 + 6 + 12 * 3 + 3
    assert set(played.state.tensors) == {"weights"}
    assert set(played.state.tensors["weights"]) == {"dense0.weight", "dense0.bias", LAST, "dense1.bias"}
    tally = played.rounds[0].tally
    assert tally.bytes_down == 5 * 4 * number
    assert tally.bytes_up == 5 * 4 * (number + 2)
    assert offset(played, "a").shape == (5,)
    assert offset(played, "a").tobytes() != offset(played, "b").tobytes()


def test_an_absent_client_keeps_its_offset_and_one_that_never_trained_has_the_start(make_problem, play):
    setup = make_problem(SIZES)
    before = play(DisTrans(), setup, [1], absent={1: ["e"]})
    after = play(DisTrans(), setup, [2], state=before.state, absent={2: ["b", "e"]})
    assert offset(after, "b").tobytes() == offset(before, "b").tobytes()
    assert offset(after, "a").tobytes() != offset(before, "a").tobytes()
    model = after.page.model(after.state, setup)
    assert "e" not in model.personal.refs
    start = model.personal.start["offset"]
    assert start.shape == (5,)
    assert ((start >= 0) & (start < 1)).all()


def test_a_client_goes_on_from_its_own_offset(make_problem, play):
    setup = make_problem(SIZES)
    before = play(DisTrans(), setup, [1])
    still = replace(setup, training=replace(setup.training, optimiser=SGD(1e-30)))
    after = play(DisTrans(), still, [2], state=before.state)
    assert all(offset(after, client).tobytes() == offset(before, client).tobytes() for client in SIZES)


def test_with_offset_rate_0_offsets_are_a_fixed_augmentation(make_problem, play):
    setup = make_problem(SIZES)
    played = play(DisTrans(offset_rate=0), setup, [1, 2])
    start = played.page.model(played.state, setup).personal.start["offset"].numpy()
    assert all(offset(played, client).tobytes() == start.tobytes() for client in SIZES)


def test_a_network_without_a_last_dense_layer_is_refused_with_a_way_out(make_problem):
    setup = make_problem(SIZES, network=Ensemble(5, 3, 4, experts=2))
    with pytest.raises(
        UserError, match=r"model.kind: got ensemble, which has no last dense layer to build on, expected residual"
    ):
        DisTrans().init(setup)
