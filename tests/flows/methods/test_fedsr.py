"""FedSR and its reductions (Nguyen, Torr and Lim 2022)."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.fedsr import FedSR
from models.networks.resnet_vgg import Residual
from models.training.optimizers import SGD, Adam

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}


def kept(played, client: str) -> dict:
    return played.private.load("references", played.state.private["references"], client)


@pytest.mark.parametrize("optimiser", [SGD(0.1, 0.9), Adam(0.01)])
def test_without_weights_and_draws_it_is_fedavg_to_the_bit(optimiser, make_problem, play):
    setup, absent = make_problem(SIZES, optimiser=optimiser), {2: ["b", "e"]}
    page = FedSR(norm_weight=0, conditional_weight=0, sampled=False)
    ours, theirs = (play(p, setup, [1, 2, 3], absent=absent) for p in (page, FedAvg()))
    for name, w in theirs.state.tensors["weights"].items():
        assert torch.equal(ours.state.tensors["weights"][name], w)
    assert ours.reports == theirs.reports


@pytest.mark.parametrize("page", [FedSR(norm_weight=0.1, conditional_weight=0, sampled=False), FedSR(), FedSR(width=4)])
def test_anything_else_is_another_training(page, make_problem, play):
    setup = make_problem(SIZES, optimiser=SGD(0.1, 0.9))
    ours, theirs = (play(p, setup, [1]).state.tensors["weights"] for p in (page, FedAvg()))
    assert not torch.equal(ours["dense0.weight"], theirs["dense0.weight"])


def test_references_stay_with_the_clients_and_cost_no_bytes(make_problem, play):
    played = play(FedSR(), make_problem(SIZES), [1])
    number = 5 * 6 + 6 + 6 * 3 + 3 + 6 * 6 + 6
    assert set(played.state.tensors) == {"weights"}
    assert not [name for name in played.state.tensors["weights"] if name.startswith("reference")]
    tally = played.rounds[0].tally
    assert tally.bytes_down == 5 * 4 * number
    assert tally.bytes_up == 5 * 4 * (number + 2)
    assert kept(played, "a")["reference.mean"].shape == (3, 6)
    assert kept(played, "a")["reference.mean"].tobytes() != kept(played, "b")["reference.mean"].tobytes()


def test_an_absent_client_keeps_its_references(make_problem, play):
    setup = make_problem(SIZES)
    before = play(FedSR(), setup, [1])
    after = play(FedSR(), setup, [2], state=before.state, absent={2: ["b"]})
    for name, w in kept(before, "b").items():
        assert kept(after, "b")[name].tobytes() == w.tobytes()
        assert kept(after, "a")[name].tobytes() != kept(before, "a")[name].tobytes()


def test_a_client_goes_on_from_its_own_references(make_problem, play):
    setup = make_problem(SIZES)
    before = play(FedSR(), setup, [1])
    still = replace(setup, training=replace(setup.training, optimiser=SGD(1e-30)))
    after = play(FedSR(), still, [2], state=before.state)
    for client in SIZES:
        for name, w in kept(before, client).items():
            np.testing.assert_allclose(kept(after, client)[name], w, rtol=0, atol=1e-20)


def test_a_clients_references_never_reach_the_model_that_is_scored(make_problem, play):
    setup = make_problem(SIZES)
    played = play(FedSR(), setup, [1])
    model = played.page.model(played.state, setup)
    assert not model.is_personal
    assert not set(model.shared) & set(model.network.personal)


def test_it_runs_on_images_with_a_residual_network(make_problem, play):
    def images(client, total):
        draw = torch.Generator().manual_seed(len(client))
        return torch.rand(total, 8, 8, generator=draw).numpy(), torch.arange(total).numpy() % 3

    setup = make_problem(
        {"a": 9, "b": 5}, network=Residual((8, 8), 3, (6,), 0.1, True, (4,)), silos={"rows_of": images}
    )
    played = play(FedSR(), setup, [1, 2])
    assert all(torch.isfinite(w).all() for w in played.state.tensors["weights"].values())
    moved = played.state.tensors["weights"]["stage0.norm1.mean"]
    assert moved.abs().sum() > 0
