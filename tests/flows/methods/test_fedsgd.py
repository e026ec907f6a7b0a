"""FedSGD: one round is one step of full-batch training on the rows of all clients together."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.fedsgd import FedSGD
from models.networks.mlp import MLP
from models.networks.resnet_vgg import Residual
from models.prng import server_stream
from models.training.optimizers import SGD, Adam
from silos.storage.partition_store import open_client
from tasks.tracking.checkpoint import load_state, save_state

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}
OPTIMISERS = [
    (SGD(0.3), lambda p: torch.optim.SGD(p, 0.3)),
    (SGD(0.1, 0.9, 0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
    (Adam(0.01, 0.1, decoupled=True), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)),
]


def rows_of(setup, clients):
    folder, manifest = Path(setup.silos.folder), setup.silos.manifest
    parts = [open_client(folder, manifest.client(c), "train") for c in clients]
    return [torch.from_numpy(np.concatenate(p)) for p in zip(*parts, strict=True)]


def images(client, total):
    """Of 8 x 8 grey pixels, another brightness for each client."""
    rng = np.random.default_rng(list(client.encode()))
    return rng.normal(ord(client) - 98, 2, size=(total, 8, 8)), rng.integers(0, 3, total)


@dataclass(frozen=True)
class Watched(MLP):
    """Remembers how many rows it was shown at once."""

    inputs: int = 5
    hidden: tuple[int, ...] = (6,)
    outputs: int = 3
    seen: list[int] = field(default_factory=list)

    def apply(self, weights, context, x, stream):
        self.seen.append(len(x))
        return super().apply(weights, context, x, stream)


def plainly(setup, make, rounds):
    """Full-batch training in plain torch, double precision; `rounds` are the clients of each."""
    weights = setup.network.init(server_stream(setup.seed, 0, "init"))
    weights = {name: w.double().requires_grad_() for name, w in weights.items()}
    optimiser = make(list(weights.values()))
    for clients in rounds:
        x, y = rows_of(setup, clients)
        hidden = torch.relu(x.double() @ weights["dense0.weight"] + weights["dense0.bias"])
        logits = hidden @ weights["dense1.weight"] + weights["dense1.bias"]
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits, y).backward()
        optimiser.step()
    return weights


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs"), OPTIMISERS, ids=["sgd", "momentum", "adamw"])
def test_a_round_is_a_step_on_the_rows_of_all_clients_together(ours, theirs, make_problem, play):
    """With three local epochs and batches of 4 in params, which do not count."""
    setup = make_problem(SIZES, optimiser=ours, epochs=3)
    found = play(FedSGD(), setup, range(1, 31)).state.tensors["weights"]
    for name, w in plainly(setup, theirs, [SIZES] * 30).items():
        torch.testing.assert_close(found[name].double(), w.detach(), rtol=0, atol=1e-6)


def test_those_who_dropped_out_are_not_in_the_step(make_problem, play):
    setup, absent = make_problem(SIZES), {1: ["a"], 3: ["b", "c"]}
    found = play(FedSGD(), setup, [1, 2, 3], absent=absent).state.tensors["weights"]
    rounds = [[c for c in SIZES if c not in absent.get(number, ())] for number in (1, 2, 3)]
    for name, w in plainly(setup, lambda p: torch.optim.SGD(p, 0.1), rounds).items():
        torch.testing.assert_close(found[name].double(), w.detach(), rtol=0, atol=1e-6)


def test_small_slopes_are_not_lost_beside_large_weights(make_problem, play):
    """Adam divides a slope by its size, so one that was read off the difference of two weights would be rounding."""

    def rows_of(client, total):
        rng = np.random.default_rng(list(client.encode()))
        return 1e-6 * rng.normal(size=(total, 5)), rng.integers(0, 3, total)

    setup = make_problem(SIZES, optimiser=Adam(0.01), silos={"rows_of": rows_of})
    found = play(FedSGD(), setup, range(1, 11)).state.tensors["weights"]
    for name, w in plainly(setup, lambda p: torch.optim.Adam(p, 0.01), [SIZES] * 10).items():
        torch.testing.assert_close(found[name].double(), w.detach(), rtol=0, atol=1e-5)


def test_with_one_full_batch_a_round_fedavg_is_fedsgd_with_plain_descent(make_problem, play):
    setup = make_problem(SIZES, epochs=1, batch=100)
    one, other = (play(page, setup, [1, 2, 3]) for page in (FedSGD(), FedAvg()))
    for name, w in other.state.tensors["weights"].items():
        torch.testing.assert_close(one.state.tensors["weights"][name], w, rtol=0, atol=1e-6)
    assert one.reports[0].metrics["loss/train"] == pytest.approx(other.reports[0].metrics["loss/train"])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_with_one_full_batch_a_round_it_is_fedavg_also_where_batches_normalise(dropout, make_problem, play):
    """Running statistics are averaged as they are, and no optimiser of the server's moves them."""
    network = Residual((8, 8), 3, (6,), dropout, True, (4, 8))
    plan = {"optimiser": SGD(0.1, 0.0, 0.01), "epochs": 1, "batch": 100}
    setup = make_problem(SIZES, network=network, silos={"rows_of": images}, **plan)
    one, other = (play(page, setup, [1, 2, 3]) for page in (FedSGD(), FedAvg()))
    for name, w in other.state.tensors["weights"].items():
        torch.testing.assert_close(one.state.tensors["weights"][name], w, rtol=0, atol=1e-5, msg=name)
    kept = play(FedSGD(), replace(setup, training=replace(setup.training, optimiser=Adam(0.01))), [1, 2]).state
    assert not any(buffer in name for buffer in network.buffers for name in kept.tensors["server"])


def test_rows_are_read_in_batches_and_a_step_is_still_one_on_all_of_them(make_problem, play):
    """So memory does not grow with a client's rows: at most 9 here, as many as make activations as large as weights."""
    network = Watched()
    setup = make_problem({"a": 90, "b": 41}, network=network, batch=8, engine="vmap")
    found = play(FedSGD(), setup, [1, 2]).state.tensors["weights"]
    assert max(network.seen) == 9
    for name, w in plainly(setup, lambda p: torch.optim.SGD(p, 0.1), [["a", "b"]] * 2).items():
        torch.testing.assert_close(found[name].double(), w.detach(), rtol=0, atol=1e-6)


def test_the_servers_optimiser_goes_on_after_a_resume(make_problem, play, tmp_path):
    setup = make_problem(SIZES, optimiser=Adam(0.01, 0.1, decoupled=True))
    whole = play(FedSGD(), setup, [1, 2, 3, 4]).state
    save_state(tmp_path / "checkpoint", play(FedSGD(), setup, [1, 2]).state, 2)
    half, _, _ = load_state(tmp_path / "checkpoint")
    assert float(half.tensors["server"]["steps"]) == 2
    assert play(FedSGD(), setup, [3, 4], state=half).state.sha256() == whole.sha256()


def test_a_client_sends_one_gradient_and_two_numbers(make_problem, play):
    number = 5 * 6 + 6 + 6 * 3 + 3
    tally = play(FedSGD(), make_problem(SIZES, network=MLP(5, (6,), 3)), [1]).rounds[0].tally
    assert (tally.bytes_up, tally.bytes_down) == (5 * 4 * (number + 2), 5 * 4 * number)
