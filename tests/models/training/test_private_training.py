"""Private steps against a loop in float64, against plain training, and against what one row or unit may change."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from models.networks.cnn import CNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.networks.network_factory import build
from models.training.engine import Privacy, Rows, Training, train
from models.training.objectives import CrossEntropy, Focal, SquaredError
from models.training.optimizers import SGD, Adam
from models.training.private_training import SharedNoise, clipped_sums, refusal, step_with_sum, train_privately

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


def _delta(first, second, epsilon):
    """Return the δ of two laws on integers at this ε: the larger hockey-stick divergence."""
    return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((first, second), (second, first)))


@pytest.mark.parametrize("clients", [1, 2, 9])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_rounded_noise_of_several_clients_hides_as_much_as_normal_noise_of_their_sum(clients, epsilon):
    """Deviations of 8 integers, where noise has 65,536 or more, and a row that moves one client's sum by 3.7 of them."""
    deviation, shift = 8.0, 3.7
    grid = np.arange(-40 * int(deviation), 40 * int(deviation) + 1)

    def law(mean):
        return np.diff(norm.cdf(np.append(grid - 0.5, grid[-1] + 0.5), mean, deviation))

    rest = functools.reduce(np.convolve, [law(0.3)] * (clients - 1), np.ones(1))
    found = _delta(np.convolve(rest, law(0.2)), np.convolve(rest, law(0.2 + shift)), epsilon)
    mu = shift / (deviation * math.sqrt(clients))
    normal = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert found <= normal + 1e-9
    assert found >= 0.8 * normal - 1e-9, "the comparison can fail"


@pytest.mark.parametrize(("clients", "least", "colluders"), [(4, 4, 0), (4, 4, 1), (5, 4, 2)])
def test_a_sum_of_enough_clients_has_the_noise_of_the_whole_sum(clients, least, colluders):
    """Those that collude know their own noise, so the noise of the others is what counts."""
    privacy = Privacy(CLIP, 3.0, 10.0, 1)
    noise = SharedNoise(privacy, least, colluders)
    draw = torch.randn(clients, 40_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    integers = noise.integers({"w": torch.zeros(clients, 40_000)}, draw)
    assert 2**16 <= noise.deviation / noise.grid < 2**17
    honest = integers[: least - colluders].sum(0).double() * noise.grid
    assert float(honest.std()) == pytest.approx(3.0 * CLIP, rel=4 / math.sqrt(80_000))


def test_integers_are_the_sums_to_half_of_a_grid_and_none_is_so_large_that_a_sum_wraps_around():
    noise = SharedNoise(Privacy(CLIP, 3.0, 10.0, 1), 2, 0)
    sums = {"b": torch.tensor([[1.25], [-7.5]]), "a": torch.tensor([[[0.1]], [[0.2]]])}
    integers = noise.integers(sums, torch.zeros(2, 2, dtype=torch.float64))
    expected = torch.tensor([[0.1, 1.25], [0.2, -7.5]])
    assert float((integers * noise.grid - expected.double()).abs().max()) <= noise.grid / 2 + 1e-7
    assert int(noise.integers({"w": torch.full((1, 1), 1e15)}, torch.zeros(1, 1, dtype=torch.float64))) == 2**52
    noise.check(10**6)
    with pytest.raises(ValueError, match="a sum of 1000000 rows has no exact integer"):
        SharedNoise(Privacy(CLIP, 1e-9, 10.0, 1), 2, 0).check(10**6)


@pytest.mark.parametrize("optimiser", [SGD(0.1), SGD(0.1, momentum=0.9, weight_decay=0.01), Adam(0.1)])
def test_a_step_with_the_sum_is_the_step_of_one_client_with_the_mean(optimiser):
    network = MLP(5, (6,), 4)
    weights, rows = _problem(network)
    training = _training(optimiser=optimiser)
    shared = {name: w[0] for name, w in weights.items()}
    noise = SharedNoise(training.privacy, 3, 0)
    start = {name: w[None].repeat(3, *[1] * w.dim()) for name, w in shared.items()}
    sums = clipped_sums(network, start, {}, rows, training, _used(rows))
    integers = noise.integers(sums, torch.zeros(3, sum(w.numel() for w in shared.values()), dtype=torch.float64))
    found = step_with_sum(network, shared, training, noise, integers.sum(0), 3)
    mean = {name: total.sum(0, keepdim=True) / (3 * training.privacy.divisor) for name, total in sums.items()}
    one = {name: w[None] for name, w in shared.items()}
    expected, _ = optimiser.step(one, mean, optimiser.init(one, 1))
    for name, w in found.items():
        torch.testing.assert_close(w, expected[name][0], rtol=1e-3, atol=1e-5)


def test_a_row_changes_a_sum_of_many_rows_by_no_more_than_the_clip_norm():
    """Only targets are chosen: to a float32 total of 2^15, a little more than half of its last bit is added as a whole one.

    So one row decides what each of the 512 chunks after it adds.
    """
    network, chunk, bit = MLP(1, (), 1), 1024, 2.0**-8
    gradients = torch.zeros(2**15 + 512 * chunk)
    gradients[: 2**15] = 1.0
    gradients[2**15 :: chunk] = bit / 2 * (1 + 2**-10)
    weights = {name: torch.zeros(1, *w.shape) for name, w in network.init(torch.tensor(0)).items()}
    training = _training(objective=SquaredError(), clip=1.0)
    totals = []
    for first in (1.0, 0.0):
        gradients[0] = first
        rows = Rows(torch.zeros(1, len(gradients), 1), -gradients[None] / 2, torch.tensor([len(gradients)]))
        sums = clipped_sums(network, weights, {}, rows, training, _used(rows))
        totals.append(float(sums["dense0.bias"]))
    assert abs(totals[0] - totals[1]) <= 1.02
