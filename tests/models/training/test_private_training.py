"""Private steps against a loop in float64, against plain training, and against what one row or unit may change."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.networks.cnn import CNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.networks.network_factory import build
from models.training.engine import Privacy, Rows, Training, train
from models.training.objectives import CrossEntropy, Focal, SquaredError
from models.training.optimizers import SGD, Adam
from models.training.private_training import clipped_sums, refusal, train_privately

CLIP = 0.5
FORMS = ("batched", "vmap", "sequential")


def _training(engine="batched", objective=None, clip=CLIP, noise=1.0, divisor=10.0, **more):
    usual = {"objective": objective or CrossEntropy(), "optimiser": SGD(0.1), "epochs": 1, "batch": 4}
    return Training(**{**usual, **more}, engine=engine, privacy=Privacy(clip, noise, divisor, rounds=3))


def _problem(network, clients=3, width=9, seed=0, outputs=4, shape=(5,)):
    draw = torch.Generator().manual_seed(seed)
    start = network.init(torch.tensor(seed))
    weights = {n: w + 0.3 * torch.randn(clients, *w.shape, generator=draw) for n, w in start.items()}
    counts = torch.tensor([width, max(width - 4, 1), 2][:clients])
    x = 3 * torch.randn(clients, width, *shape, generator=draw)
    y = torch.randint(0, outputs, (clients, width), generator=draw)
    return weights, Rows(x, y, counts)


def _used(rows):
    return (torch.arange(rows.y.shape[1]) < rows.counts[:, None]).float()


def _loop_in_float64(network, weights, rows, objective, clip, shares):
    """Clip each row's gradient of autograd by itself; (clients, ...) by name."""
    sums = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in weights.items()}
    for client, count in enumerate(rows.counts.tolist()):
        for row in range(count):
            leaves = {name: w[client].double().requires_grad_() for name, w in weights.items()}
            logits = network.apply(leaves, {}, rows.x[client, row : row + 1].double(), None)
            target = rows.y[client, row : row + 1]
            loss = objective(logits, target.double() if target.is_floating_point() else target).sum()
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            norm = float(sum(g.square().sum() for g in gradients)) ** 0.5
            for name, gradient in zip(leaves, gradients, strict=True):
                sums[name][client] += gradient * min(1.0, clip / norm) * float(shares[client, row])
    return sums


@given(
    hidden=st.sampled_from([(), (6,), (7, 3)]),
    engine=st.sampled_from(FORMS),
    clip=st.sampled_from([0.01, 0.5, 1e6]),
    objective=st.sampled_from([CrossEntropy(), Focal(2.0), SquaredError()]),
    seed=st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_clipped_sums_are_those_of_a_loop_in_float64(hidden, engine, clip, objective, seed):
    outputs = 1 if objective.task == "regression" else 4
    network = MLP(5, hidden, outputs)
    weights, rows = _problem(network, seed=seed, outputs=outputs)
    rows = rows._replace(y=rows.y + 0.5) if outputs == 1 else rows
    shares = _used(rows) / torch.tensor([1.0, 2.0, 1.0])[:, None]
    found = clipped_sums(network, weights, {}, rows, _training(engine, objective, clip), shares)
    expected = _loop_in_float64(network, weights, rows, objective, clip, shares)
    assert found.keys() == expected.keys()
    for name, total in expected.items():
        torch.testing.assert_close(found[name].double(), total, rtol=2e-6, atol=2e-6 * float(total.abs().max()) + 1e-7)


def test_convolutions_are_clipped_like_a_loop_in_float64():
    network = build("cnn", (12, 12, 1), 3, {"channels": [2, 3], "kernel": 3, "hidden": [4]})
    assert isinstance(network, CNN)
    weights, rows = _problem(network, width=4, outputs=3, shape=(12, 12, 1))
    expected = _loop_in_float64(network, weights, rows, CrossEntropy(), CLIP, _used(rows))
    for engine in FORMS:
        found = clipped_sums(network, weights, {}, rows, _training(engine), _used(rows))
        for name, total in expected.items():
            torch.testing.assert_close(found[name].double(), total, rtol=1e-5, atol=1e-6)


@given(hidden=st.sampled_from([(), (6,)]), engine=st.sampled_from(FORMS), seed=st.integers(0, 50))
@settings(max_examples=25, deadline=None)
def test_without_one_row_no_clients_sum_changes_by_more_than_the_clip_norm(hidden, engine, seed):
    network = MLP(5, hidden, 4)
    weights, rows = _problem(network, seed=seed)
    whole = clipped_sums(network, weights, {}, rows, _training(engine), _used(rows))
    for row in range(2):
        without = _used(rows).index_fill(1, torch.tensor([row]), 0.0)
        rest = clipped_sums(network, weights, {}, rows, _training(engine), without)
        change = sum((whole[name] - rest[name]).flatten(1).square().sum(1) for name in whole).sqrt()
        assert bool((change <= CLIP * (1 + 1e-5)).all())
        assert float(change.max()) == pytest.approx(CLIP, rel=1e-4)  # gradients here are longer than the norm


def test_all_rows_of_a_unit_together_change_the_sum_by_the_clip_norm_at_most():
    network = MLP(5, (6,), 4)
    weights, rows = _problem(network, clients=1)
    rows = rows._replace(x=rows.x[:, :1].expand(-1, 9, -1).contiguous(), y=rows.y[:, :1].expand(-1, 9).contiguous())
    shares = torch.full((1, 9), 1 / 6)
    shares[0, 6:] = 1 / 3
    whole = clipped_sums(network, weights, {}, rows, _training(), shares)
    rest = clipped_sums(network, weights, {}, rows, _training(), shares * (torch.arange(9) >= 6))
    assert math.sqrt(sum(float((whole[n] - rest[n]).square().sum()) for n in whole)) == pytest.approx(CLIP, rel=1e-5)


@pytest.mark.parametrize("engine", FORMS)
@pytest.mark.parametrize("optimiser", [SGD(0.3), SGD(0.2, 0.9, 0.01), Adam(0.05)])
def test_without_noise_and_with_a_wide_clip_norm_it_is_plain_training_with_all_rows_in_a_batch(engine, optimiser):
    network = MLP(5, (6,), 4)
    weights, rows = _problem(network)
    rows = rows._replace(counts=torch.full((3,), 9))
    training = _training(engine, clip=1e6, noise=1e-12, divisor=9.0, epochs=3, optimiser=optimiser)
    anchor = {name: w + 0.1 for name, w in weights.items()}
    quiet = lambda shapes: {name: torch.zeros(shape) for name, shape in shapes.items()}  # noqa: E731
    found = train_privately(network, weights, {}, rows, training, quiet, _used(rows), 0.5, anchor)
    plain = replace(training, batch=9, privacy=None)
    expected = train(network, weights, {}, rows, plain, torch.zeros(3, dtype=torch.int64), 0.5, anchor)
    for name, weight in expected.weights.items():
        torch.testing.assert_close(found.weights[name], weight, rtol=1e-4, atol=1e-4)
    assert len(found.loss) == 0, "a loss without noise would reveal rows"


def test_noise_of_each_step_is_added_once_in_units_of_the_clip_norm_and_divided_by_the_constant():
    network = MLP(5, (), 4)
    weights, rows = _problem(network, clients=2)
    draws = []

    def noise(shapes):
        draws.append({name: torch.full(shape, 10.0 ** len(draws)) for name, shape in shapes.items()})
        return draws[-1]

    training = _training(noise=2.0, divisor=8.0, epochs=2, optimiser=SGD(0.5))
    empty = torch.zeros_like(_used(rows))  # no row counts
    found = train_privately(network, weights, {}, rows, training, noise, empty)
    for name, weight in weights.items():
        step = 0.5 * 2.0 * CLIP / 8.0
        torch.testing.assert_close(found.weights[name], weight - 11 * step, rtol=1e-4, atol=1e-3)
    assert len(draws) == 2


def test_noisy_sums_lie_on_a_grid_that_no_row_decides():
    network = MLP(5, (), 4)
    weights, rows = _problem(network, clients=1)
    zero = {name: torch.zeros_like(w) for name, w in weights.items()}
    draw = torch.Generator().manual_seed(1)
    noise = lambda shapes: {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}  # noqa: E731
    training = _training(noise=3.0, divisor=1.0, optimiser=SGD(1.0))
    found = train_privately(network, zero, {}, rows, training, noise, _used(rows))
    grid = 2.0 ** (math.floor(math.log2(3.0 * CLIP)) - 6)
    for weight in found.weights.values():
        assert bool((weight / grid == (weight / grid).round()).all())


@pytest.mark.parametrize("engine", FORMS)
def test_a_row_with_a_gradient_that_is_not_finite_adds_nothing(engine):
    network = MLP(5, (6,), 4)
    weights, rows = _problem(network)
    rows.x[0, 1] = math.inf
    without = _used(rows)
    without[0, 1] = 0
    clean = rows._replace(x=rows.x.nan_to_num(posinf=0.0))
    found = clipped_sums(network, weights, {}, rows, _training(engine), _used(rows))
    expected = clipped_sums(network, weights, {}, clean, _training(engine), without)
    for name, total in expected.items():
        torch.testing.assert_close(found[name], total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", FORMS)
def test_a_clients_bits_do_not_depend_on_who_shares_its_stack(engine):
    network = MLP(5, (6,), 4)
    weights, rows = _problem(network)
    whole = clipped_sums(network, weights, {}, rows, _training(engine), _used(rows))
    for client in range(3):
        alone = slice(client, client + 1)
        own = {name: w[alone] for name, w in weights.items()}
        single = clipped_sums(
            network, own, {}, Rows(*(part[alone] for part in rows)), _training(engine), _used(rows)[alone]
        )
        assert all(torch.equal(whole[name][alone], single[name]) for name in whole)


@pytest.mark.parametrize(
    ("network", "more", "key"),
    [
        (build("cnn_bn", (12, 12, 1), 3, {"channels": [2], "pooled": [True], "hidden": [4]}), {}, "model:"),
        (MLP(5, (6,), 4, dropout=0.2), {}, "model.dropout"),
        (DeepEnsemble(MLP(5, (6,), 4), 2), {}, "model.members"),
        (MLP(5, (6,), 4), {"rows": "balanced"}, "training.rows"),
    ],
)
def test_networks_and_orders_without_a_guarantee_are_refused(network, more, key):
    assert key in refusal(network, _training(**more))
    assert refusal(MLP(5, (6,), 4), _training()) == ""
