"""SCAFFOLD, FedDyn, FedOpt and fine-tuning: against float64 loops of their papers' algorithms, and their reductions."""

import math
from pathlib import Path

import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.feddyn import FedDyn
from flows.methods.fedopt import FedOpt
from flows.methods.finetune import FineTune
from flows.methods.local_only import LocalOnly
from flows.methods.scaffold import Scaffold
from models.training.optimizers import SGD, Adam
from silos.client_store import ClientStore
from silos.errors import UserError
from silos.storage.partition_store import open_client

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}
ABSENT = {2: ["b", "e"], 3: ["a"]}
RATE = 0.1


def weights_of(played):
    return played.state.tensors["weights"]


def rows_of(setup, client):
    entry = setup.silos.manifest.client(client)
    x, y = open_client(Path(setup.silos.folder), entry, "train")
    return torch.from_numpy(x.copy()).double(), torch.from_numpy(y.copy())


def gradient(w, x, y):
    """Of the mean cross-entropy of the MLP with one hidden layer, in float64 by plain autograd."""
    leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
    hidden = torch.relu(x @ leaves["dense0.weight"] + leaves["dense0.bias"])
    logits = hidden @ leaves["dense1.weight"] + leaves["dense1.bias"]
    grads = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y), list(leaves.values()))
    return dict(zip(leaves, grads, strict=True))


def penalised(w, x, y, decay):
    """The gradient of the objective that a client minimises: with the penalty of weight decay."""
    return {name: g + decay * w[name] for name, g in gradient(w, x, y).items()}


def steps(w, x, y, epochs, offset, proximal=0.0, decay=0.0):
    """Full-batch gradient steps, so that the order of rows does not matter."""
    start, w = w, dict(w)
    for _ in range(epochs):
        g = penalised(w, x, y, decay)
        w = {name: w[name] - RATE * (g[name] + offset[name] + proximal * (w[name] - start[name])) for name in w}
    return w


def full_batches(make_problem, decay=0.0, **options):
    return make_problem(SIZES, batch=100, epochs=3, optimiser=SGD(RATE, weight_decay=decay), **options)


def start_of(setup):
    return {name: value.double() for name, value in FedAvg().init(setup).tensors["weights"].items()}


def present(number):
    return [client for client in SIZES if client not in ABSENT.get(number, ())]


def assert_near(weights, expected, error=1e-6):
    for name, value in expected.items():
        torch.testing.assert_close(weights[name].double(), value, rtol=0, atol=error)


@pytest.mark.parametrize("variate", ["difference", "gradient"])
@pytest.mark.parametrize(("server_rate", "decay"), [(1.0, 0.0), (0.5, 0.0), (1.0, 0.2)])
def test_scaffold_is_the_loop_of_algorithm_1(variate, server_rate, decay, make_problem, play):
    setup = full_batches(make_problem, decay)
    played = play(Scaffold(variate=variate, server_rate=server_rate), setup, [1, 2, 3], absent=ABSENT)
    w = start_of(setup)
    zeros = {name: torch.zeros_like(value) for name, value in w.items()}
    c, own = zeros, dict.fromkeys(SIZES, zeros)
    for number in (1, 2, 3):
        trained, renewed = {}, {}
        for client in present(number):
            x, y = rows_of(setup, client)
            trained[client] = steps(w, x, y, 3, {name: c[name] - own[client][name] for name in w}, decay=decay)
            if variate == "gradient":
                renewed[client] = penalised(w, x, y, decay)
            else:
                renewed[client] = {
                    name: own[client][name] - c[name] + (w[name] - trained[client][name]) / (3 * RATE) for name in w
                }
        rows = {client: SIZES[client] for client in trained}
        mean = {name: sum(n * trained[k][name] for k, n in rows.items()) / sum(rows.values()) for name in w}
        change = {name: sum(n * (renewed[k][name] - own[k][name]) for k, n in rows.items()) for name in w}
        w = {name: w[name] + server_rate * (mean[name] - w[name]) for name in w}
        c = {name: c[name] + change[name] / sum(SIZES.values()) for name in w}
        own |= renewed
    assert_near(weights_of(played), w)
    assert_near(played.state.tensors["variate"], c)


def test_scaffold_counts_steps_of_each_client_by_its_own_batches(make_problem, play):
    """With one round the variate is the mean gradient of the steps: (w - w_k) / (K h)."""
    setup = make_problem(SIZES, batch=4, epochs=2, optimiser=SGD(RATE))
    played = play(Scaffold(), setup, [1])
    alone = play(LocalOnly(), setup, [1], private=ClientStore(str(Path(setup.silos.folder) / "alone")))
    start = FedAvg().init(setup).tensors["weights"]
    for client, rows in SIZES.items():
        after = alone.private.load("weights", alone.state.private["weights"], client)
        variate = played.private.load("variates", played.state.private["variates"], client)
        for name in start:
            expected = (start[name] - torch.from_numpy(after[name])) / (RATE * 2 * math.ceil(rows / 4))
            torch.testing.assert_close(torch.from_numpy(variate[name]), expected, rtol=1e-5, atol=1e-6)


def test_the_first_round_of_scaffold_is_fedavg(make_problem, play):
    """Its variates are zero: x - 0 is x to the bit."""
    setup = make_problem(SIZES)
    ours, theirs = (play(method, setup, [1]) for method in (Scaffold(), FedAvg()))
    for name, w in weights_of(theirs).items():
        assert torch.equal(weights_of(ours)[name], w)


@pytest.mark.slow
def test_scaffold_on_quadratics_ends_at_the_optimum_of_the_pooled_rows_where_fedavg_does_not(quadratic, play):
    curves = {"a": (10, 1.0, 4.0), "b": (10, 3.0, -2.0), "c": (20, 0.5, 1.0)}
    pooled = sum(n * a * m for n, a, m in curves.values()) / sum(n * a for n, a, _ in curves.values())
    setup = quadratic(curves, epochs=5)
    ours, theirs = (float(weights_of(play(m, setup, range(1, 61)))["w"]) for m in (Scaffold(), FedAvg()))
    assert ours == pytest.approx(pooled, abs=1e-6)
    assert abs(theirs - pooled) > 0.05


@pytest.mark.parametrize("optimiser", [SGD(0.1, 0.9), Adam(0.01)])
def test_scaffold_needs_plain_sgd(optimiser, make_problem):
    with pytest.raises(UserError, match="expected plain sgd for scaffold"):
        Scaffold().init(make_problem(SIZES, optimiser=optimiser))


def test_feddyn_is_the_loop_of_algorithm_1(make_problem, play):
    setup, alpha = full_batches(make_problem), 0.3
    played = play(FedDyn(alpha=alpha), setup, [1, 2, 3], absent=ABSENT)
    w = start_of(setup)
    zeros = {name: torch.zeros_like(value) for name, value in w.items()}
    h, dual = zeros, dict.fromkeys(SIZES, zeros)
    for number in (1, 2, 3):
        trained = {}
        for client in present(number):
            x, y = rows_of(setup, client)
            trained[client] = steps(w, x, y, 3, {name: -dual[client][name] for name in w}, alpha)
        for client, after in trained.items():
            dual[client] = {name: dual[client][name] - alpha * (after[name] - w[name]) for name in w}
        h = {n: h[n] - alpha / len(SIZES) * sum(after[n] - w[n] for after in trained.values()) for n in w}
        w = {n: sum(after[n] for after in trained.values()) / len(trained) - h[n] / alpha for n in w}
    assert_near(weights_of(played), w)


def test_feddyn_without_its_term_is_fedavg_of_clients_that_count_equally(make_problem, play):
    equal = dict.fromkeys(SIZES, 9)
    setup = make_problem(equal)
    ours, theirs = (play(method, setup, [1, 2, 3], absent=ABSENT) for method in (FedDyn(alpha=0), FedAvg()))
    for name, w in weights_of(theirs).items():
        torch.testing.assert_close(weights_of(ours)[name], w, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("server", ["adam", "yogi", "adagrad"])
def test_fedopt_is_the_loop_of_algorithm_2(server, make_problem, play):
    setup, (b1, b2, rate, tau) = full_batches(make_problem), (0.8, 0.95, 0.02, 0.01)
    method = FedOpt(server=server, beta1=b1, beta2=b2, rate=rate, tau=tau)
    played = play(method, setup, [1, 2, 3], absent=ABSENT)
    w = start_of(setup)
    m = {name: torch.zeros_like(value) for name, value in w.items()}
    v = {name: torch.full_like(value, tau**2) for name, value in w.items()}
    zeros = dict(m)
    for number in (1, 2, 3):
        rows = {client: SIZES[client] for client in present(number)}
        trained = {client: steps(w, *rows_of(setup, client), 3, zeros) for client in rows}
        d = {n: sum(k * (trained[c][n] - w[n]) for c, k in rows.items()) / sum(rows.values()) for n in w}
        for name in w:
            m[name] = b1 * m[name] + (1 - b1) * d[name]
            square = d[name] ** 2
            v[name] = {
                "adam": b2 * v[name] + (1 - b2) * square,
                "adagrad": v[name] + square,
                "yogi": v[name] - (1 - b2) * square * torch.sign(v[name] - square),
            }[server]
        w = {name: w[name] + rate * m[name] / (v[name].sqrt() + tau) for name in w}
    assert_near(weights_of(played), w, 1e-5)  # steps are of the size of the rate, whatever the change


def test_fedopt_with_sgd_and_rate_1_is_fedavg_to_the_bit(make_problem, play):
    setup = make_problem(SIZES)
    ours, theirs = (play(m, setup, [1, 2, 3], absent=ABSENT) for m in (FedOpt(server="sgd", rate=1), FedAvg()))
    assert ours.state.sha256() == theirs.state.sha256()
    half = play(FedOpt(server="sgd", rate=0.5), setup, [1])
    start, once = FedAvg().init(setup).tensors["weights"], play(FedAvg(), setup, [1])
    for name, w in weights_of(half).items():
        torch.testing.assert_close(w, (start[name] + weights_of(once)[name]) / 2)


def test_finetuning_trains_the_shared_weights_on_own_rows(make_problem, play):
    setup = full_batches(make_problem)
    played = play(FineTune(epochs=2), setup, [1, 2])
    plain = play(FedAvg(), setup, [1, 2])
    for name, w in weights_of(plain).items():
        assert torch.equal(weights_of(played)[name], w)
    model = played.page.scored_model(played.state, played.rounds[-1])
    shared = {name: w.double() for name, w in weights_of(plain).items()}
    zeros = {name: torch.zeros_like(w) for name, w in shared.items()}
    for client in SIZES:
        expected = steps(shared, *rows_of(setup, client), 2, zeros)
        own = played.private.load("finetuned", model.personal.refs, client)
        assert_near({name: torch.from_numpy(value) for name, value in own.items()}, expected)


def test_finetuning_for_no_epoch_is_fedavg_to_the_bit(make_problem, play):
    setup = make_problem(SIZES)
    played, plain = play(FineTune(epochs=0), setup, [1, 2]), play(FedAvg(), setup, [1, 2])
    model = played.page.scored_model(played.state, played.rounds[-1])
    assert not model.personal.refs
    for name, w in weights_of(plain).items():
        assert torch.equal(model.personal.start[name], w)


def test_a_variate_stays_with_its_client_and_its_change_is_sent(make_problem, play):
    number = 5 * 6 + 6 + 6 * 3 + 3
    played = play(Scaffold(), make_problem(SIZES), [1])
    tally = played.rounds[0].tally
    assert tally.bytes_down == 5 * 4 * 2 * number
    assert tally.bytes_up == 5 * 4 * (2 * number + 2)
    assert set(played.state.private["variates"]) == set(SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
@pytest.mark.parametrize("method", [Scaffold(), FedDyn(alpha=0.1)])
def test_all_forms_of_the_engine_agree(method, engine, make_problem, play):
    setup = make_problem(SIZES, engine=engine)
    reference = play(method, make_problem(SIZES, engine="sequential"), [1, 2], stack=5)
    found = play(method, setup, [1, 2], stack=2)
    assert_near(weights_of(found), {name: w.double() for name, w in weights_of(reference).items()}, 2e-6)
