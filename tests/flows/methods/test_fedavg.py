"""FedAvg and its reductions: against plain PyTorch, and against a closed form."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.fedprox import FedProx
from flows.methods.local_only import LocalOnly
from flows.methods.pooled import Pooled
from models.networks.mlp import MLP
from models.prng import client_streams, fold_in, server_stream, shuffle
from models.training.optimizers import SGD, Adam
from silos.client_store import ClientStore
from silos.storage.partition_store import open_client

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}


def plain_fedavg(setup, rounds: int, batch: int, epochs: int, optimiser) -> dict[str, torch.Tensor]:
    """McMahan et al. 2017, algorithm 1, on torch.nn and torch.optim, one client after another."""
    begin = setup.network.init(server_stream(setup.seed, 0, "init"))
    (width,) = setup.network.hidden
    server = torch.nn.Sequential(torch.nn.Linear(5, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))
    for layer, name in ((server[0], "dense0"), (server[2], "dense1")):
        layer.load_state_dict({"weight": begin[f"{name}.weight"].T, "bias": begin[f"{name}.bias"]})
    folder, manifest = Path(setup.silos.folder), setup.silos.manifest
    for number in range(1, rounds + 1):
        sent, counts = [], []
        for client in setup.silos.clients:
            x, y = (torch.from_numpy(a) for a in open_client(folder, manifest.client(client), "train"))
            module = deepcopy(server)
            optimise = optimiser(module.parameters())
            stream = client_streams(setup.seed, [client], number, "local_train")[0]
            for epoch in range(epochs):
                for index in shuffle(fold_in(stream, epoch), len(y), torch.tensor(len(y))).split(batch):
                    optimise.zero_grad()
                    torch.nn.functional.cross_entropy(module(x[index]), y[index]).backward()
                    optimise.step()
            sent.append(module.state_dict())
            counts.append(len(y))
        shares = [n / sum(counts) for n in counts]
        mean = {k: sum(s * w[k].double() for s, w in zip(shares, sent, strict=True)).float() for k in sent[0]}
        server.load_state_dict(mean)
    weights = {}
    for layer, name in ((server[0], "dense0"), (server[2], "dense1")):
        weights |= {f"{name}.weight": layer.weight.detach().T, f"{name}.bias": layer.bias.detach()}
    return weights


@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
        (SGD(0.05, 0.9, 0.001), lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.001)),
    ],
    ids=["sgd", "momentum"],
)
def test_five_rounds_are_those_of_plain_pytorch(ours, theirs, engine, make_problem, play):
    setup = make_problem(SIZES, optimiser=ours, engine=engine)
    weights = play(FedAvg(), setup, range(1, 6), stack=3).state.tensors["weights"]
    expected = plain_fedavg(setup, 5, 4, 2, theirs)
    for name, w in expected.items():
        torch.testing.assert_close(weights[name], w, rtol=0, atol=1e-6)


def test_adam_starts_fresh_in_every_round_as_in_plain_pytorch(make_problem, play):
    setup = make_problem(SIZES, optimiser=Adam(0.01))
    weights = play(FedAvg(), setup, range(1, 4), stack=3).state.tensors["weights"]
    expected = plain_fedavg(setup, 3, 4, 2, lambda p: torch.optim.Adam(p, 0.01))
    for name, w in expected.items():
        torch.testing.assert_close(weights[name], w, rtol=0, atol=2e-4)


def test_a_network_whose_tensors_are_large_is_averaged_as_in_plain_pytorch(make_problem, play):
    """Its first layer has 5,000 numbers, and the large are added in another way than the small."""
    setup = make_problem(SIZES, network=MLP(5, (1000,), 3))
    weights = play(FedAvg(), setup, [1, 2], stack=3).state.tensors["weights"]
    for name, w in plain_fedavg(setup, 2, 4, 2, lambda p: torch.optim.SGD(p, 0.1)).items():
        torch.testing.assert_close(weights[name], w, rtol=0, atol=1e-6)


CURVES = {"a": (6, 1, 0), "b": (3, 2, 1), "c": (1, 4, 5)}  # rows, a_k, m_k: p = 0.6, 0.3, 0.1
START = 3.0


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "stack"), [("vmap", 1), ("vmap", 2), ("sequential", 3)])
@pytest.mark.parametrize(
    ("epochs", "rounds", "printed"), [(1, 130, 1.625), (2, 66, 1.496503), (5, 30, 1.228288), (20, 12, 0.862419)]
)
def test_more_local_epochs_move_the_fixed_point_as_the_closed_form_says(
    epochs, rounds, printed, engine, stack, quadratic, play
):
    """w_E = sum p_k q_k m_k / sum p_k q_k with q_k = 1 - (1 - h a_k)^E; E = 1 is the minimum of the sum."""
    p, a, m = (np.array(v) for v in zip(*((n / 10, a, m) for n, a, m in CURVES.values()), strict=True))
    q = 1 - (1 - 0.1 * a) ** epochs
    closed = (p * q * m).sum() / (p * q).sum()
    played = play(FedAvg(), quadratic(CURVES, epochs=epochs, engine=engine), range(1, rounds + 1), stack=stack)
    found = float(played.state.tensors["weights"]["w"])
    assert found == pytest.approx(closed, abs=1e-9)
    assert found == pytest.approx(printed, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("a", "m", "mu"), [(1, 2, 0.5), (2, -1, 3), (4, 5, 0)])
def test_fedprox_solved_exactly_is_the_weighted_mean_of_minimum_and_start(a, m, mu, quadratic, play):
    setup = quadratic({"a": (3, a, m)}, epochs=400)
    found = float(play(FedProx(proximal=mu), setup, [1]).state.tensors["weights"]["w"])
    assert found == pytest.approx((a * m + mu * START) / (a + mu), abs=1e-9)


@pytest.mark.slow
def test_fedprox_pulls_towards_this_rounds_weights(quadratic, play):
    """Each exact round halves the way to the minimum: the anchor moves along."""
    setup = quadratic({"a": (3, 2, 0)}, epochs=400)
    found = float(play(FedProx(proximal=2), setup, [1, 2, 3]).state.tensors["weights"]["w"])
    assert found == pytest.approx(START / 8, abs=1e-9)


def test_fedprox_without_a_proximal_term_is_fedavg_to_the_bit(make_problem, play):
    setup = make_problem(SIZES)
    prox, avg = (play(page, setup, [1, 2, 3]) for page in (FedProx(proximal=0), FedAvg()))
    assert prox.state.sha256() == avg.state.sha256()
    assert prox.reports == avg.reports


def test_a_large_proximal_term_stays_near_the_start(make_problem, play):
    setup = make_problem(SIZES, optimiser=SGD(0.005))
    start = FedAvg().init(setup).tensors["weights"]

    def moved(mu):
        weights = play(FedProx(proximal=mu), setup, [1], private=None).state.tensors["weights"]
        return sum(float((weights[n] - start[n]).norm()) for n in start)

    assert moved(0) > moved(10) > moved(100)
    assert moved(100) < 0.4 * moved(0)


@pytest.mark.parametrize("page", [FedAvg(), Pooled(), FedProx(proximal=0)])
def test_with_one_client_it_is_local_only_to_the_bit(page, make_problem, play, tmp_path):
    setup = make_problem({"only": 13})
    shared = play(page, setup, [1, 2, 3])
    store = ClientStore(str(tmp_path / "own"))
    alone = play(LocalOnly(), setup, [1, 2, 3], private=store)
    kept = store.load("weights", alone.state.private["weights"], "only")
    for name, w in shared.state.tensors["weights"].items():
        assert kept[name].tobytes() == w.contiguous().numpy().tobytes()
    assert shared.reports == alone.reports


def test_pooled_trains_on_the_rows_of_all_as_one_client(make_problem, write_silos, play):
    """In full batches the order is nothing: FedAvg on one client that owns the same rows."""
    setup = make_problem({"a": 6, "b": 9}, batch=100)
    pooled = play(Pooled(), setup, [1, 2]).state.tensors["weights"]
    folder, manifest = Path(setup.silos.folder), setup.silos.manifest
    x, y = (np.concatenate(p) for p in zip(*(open_client(folder, e, "train") for e in manifest.clients), strict=True))
    silos = write_silos({"all": 15}, 0, 0, rows_of=lambda *_: (x, y), name="union")
    union = type(setup)(silos, setup.network, setup.training, setup.seed)
    one = play(FedAvg(), union, [1, 2]).state.tensors["weights"]
    for name in one:
        torch.testing.assert_close(pooled[name], one[name], rtol=0, atol=1e-6)


def test_pooled_takes_the_rows_of_those_only_that_answered(make_problem, play):
    setup = make_problem({"a": 6, "b": 9, "c": 4})
    fewer = play(Pooled(), setup, [1], absent={1: ["c"]})
    assert fewer.reports[0].metrics != play(Pooled(), setup, [1]).reports[0].metrics
