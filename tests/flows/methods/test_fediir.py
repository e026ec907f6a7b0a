"""FedIIR and its reductions (Guo et al. 2023)."""

from pathlib import Path

import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.fediir import FedIIR
from models.prng import server_stream
from models.training.optimizers import SGD, Adam
from silos.storage.partition_store import open_client

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}
PARTS = ("dense1.weight", "dense1.bias")


def mean_gradient(setup, weights, clients) -> dict:
    """Of the mean loss over all rows of these clients, by plain PyTorch."""
    rows = [setup.silos.manifest.client(c) for c in clients]
    opened = [open_client(Path(setup.silos.folder), entry, "train") for entry in rows]
    x = torch.cat([torch.from_numpy(x.copy()) for x, _ in opened]).float()
    y = torch.cat([torch.from_numpy(y.copy()) for _, y in opened])
    w = {name: t.clone().requires_grad_() for name, t in weights.items()}
    hidden = torch.relu(x @ w["dense0.weight"] + w["dense0.bias"])
    loss = torch.nn.functional.cross_entropy(hidden @ w[PARTS[0]] + w[PARTS[1]], y)
    return dict(zip(PARTS, torch.autograd.grad(loss, [w[n] for n in PARTS]), strict=True))


@pytest.mark.parametrize("optimiser", [SGD(0.1, 0.9), Adam(0.01)])
def test_with_penalty_0_it_is_fedavg_to_the_bit(optimiser, make_problem, play):
    setup, absent = make_problem(SIZES, optimiser=optimiser), {2: ["b", "e"]}
    ours, theirs = (play(page, setup, [1, 2, 3], absent=absent) for page in (FedIIR(penalty=0), FedAvg()))
    for name, w in theirs.state.tensors["weights"].items():
        assert torch.equal(ours.state.tensors["weights"][name], w)
    assert [r.client_metrics for r in ours.reports] == [r.client_metrics for r in theirs.reports]


def test_g_is_the_exponential_mean_of_the_mean_gradients_of_those_with_ten_rows_that_took_part(make_problem, play):
    """Of a client with one row the gradient is that row's features times numbers."""
    page, setup = FedIIR(decay=0.8), make_problem(SIZES)
    start = setup.network.init(server_stream(0, 0, "init"))
    first = play(page, setup, [1])
    second = play(page, setup, [2], state=first.state, absent={2: ["a", "c"]})
    expected = {n: 0.2 * g for n, g in mean_gradient(setup, start, ["a", "e"]).items()}
    for name in PARTS:
        torch.testing.assert_close(first.state.tensors["target"][name], expected[name], rtol=1e-5, atol=1e-7)
    later = mean_gradient(setup, first.state.tensors["weights"], ["e"])
    for name in PARTS:
        now = 0.8 * expected[name] + 0.2 * later[name]
        torch.testing.assert_close(second.state.tensors["target"][name], now, rtol=1e-5, atol=1e-7)
    norm = sum(float((g**2).sum()) for g in second.state.tensors["target"].values()) ** 0.5
    assert second.reports[0].metrics["gradient/norm"] == pytest.approx(norm)


def test_one_client_that_forgets_g_takes_fedavgs_first_step_on_a_full_batch(make_problem, play):
    """Its own gradient is the target, so the penalty and its gradient are 0, however large lambda is."""
    setup = make_problem({"a": 13}, batch=13, epochs=1, optimiser=SGD(0.1, 0.9))
    plain = play(FedAvg(), setup, [1])
    for decay, same in ((0.0, True), (0.95, False)):
        ours = play(FedIIR(penalty=10, decay=decay), setup, [1])
        close = [
            torch.allclose(ours.state.tensors["weights"][n], w, rtol=0, atol=1e-5)
            for n, w in plain.state.tensors["weights"].items()
        ]
        assert all(close) == same


def test_a_large_penalty_brings_the_clients_gradients_nearer_to_each_other(make_problem, play):
    setup = make_problem(SIZES, optimiser=SGD(0.05))

    def spread(page) -> float:
        weights = play(page, setup, range(1, 9)).state.tensors["weights"]
        each = [mean_gradient(setup, weights, [client]) for client in SIZES]
        return sum(float(torch.stack([g[n] for g in each]).var(0).sum()) for n in PARTS)

    assert spread(FedIIR(penalty=3, decay=0)) < spread(FedIIR(penalty=0))


def test_a_round_sends_the_last_layer_once_more_each_way(make_problem, play):
    played = play(FedIIR(), make_problem(SIZES), [1], absent={1: ["a"]})
    weights, last = 5 * 6 + 6 + 6 * 3 + 3, 6 * 3 + 3
    tally = played.rounds[0].tally
    assert tally.bytes_down == 4 * 4 * (weights + last)
    assert tally.bytes_up == 4 * 4 * (weights + 2 + last + 1)
    assert {n: t.shape for n, t in played.state.tensors["target"].items()} == {PARTS[0]: (6, 3), PARTS[1]: (3,)}
