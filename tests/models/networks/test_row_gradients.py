"""Row gradients of convolutional networks in one pass, against a loop in float64 and the form of one row after another."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.networks.cnn import CNN
from models.networks.row_gradients import DenseRows, scaled_sums
from models.networks.statistics_context import STATISTICS
from models.training import private_training
from models.training.engine import Privacy, Rows, Training
from models.training.objectives import CrossEntropy
from models.training.optimizers import SGD
from models.training.private_training import clipped_sums

CLIP = 0.5
NETWORKS = {
    "plain": {},
    "padding": {"padding": True},
    "an even kernel": {"kernel": 4, "padding": True},
    "no hidden layer": {"hidden": ()},
    "two hidden layers": {"hidden": (8, 5)},
    "one convolution": {"channels": (4,), "kernel": 5},
    "three convolutions": {"channels": (3, 4, 2), "padding": True},
    "colours and odd sides": {"shape": (13, 15, 3)},
    "statistics": {"statistics": 5},
    "statistics as images": {"statistics": 2 * (196 + 3), "planes": 2},
}


def _network(**options):
    return CNN(**{"shape": (14, 14), "channels": (4, 6), "hidden": (8,), "outputs": 3, "kernel": 3, **options})


def _problem(network, clients=3, width=7):
    draw = torch.Generator().manual_seed(0)
    start = network.init(torch.tensor(0))
    weights = {n: w + 0.1 * torch.randn(clients, *w.shape, generator=draw) for n, w in start.items()}
    x = torch.randn(clients, width, *network.shape, generator=draw)
    y = torch.randint(0, network.outputs, (clients, width), generator=draw)
    counts = torch.tensor([width, max(width - 2, 1), 1][:clients])
    shares = (torch.arange(width) < counts[:, None]) / torch.tensor([1.0, 2.0, 1.0][:clients])[:, None]
    context = {STATISTICS: torch.randn(clients, network.statistics, generator=draw)} if network.statistics else {}
    return weights, context, Rows(x, y, counts), shares


def _sums(network, weights, context, rows, shares, engine="batched"):
    training = Training(CrossEntropy(), SGD(0.1), 1, 4, engine, privacy=Privacy(CLIP, 1.0, 10.0, rounds=1))
    return clipped_sums(network, weights, context, rows, training, shares)


def _loop_in_float64(network, weights, context, rows, shares):
    sums = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in weights.items()}
    for client, row in shares.nonzero().tolist():
        leaves = {name: w[client].double().requires_grad_() for name, w in weights.items()}
        own = {name: value[client].double() for name, value in context.items()}
        logits = network.apply(leaves, own, rows.x[client, row : row + 1].double(), None)
        gradients = torch.autograd.grad(CrossEntropy()(logits, rows.y[client, row : row + 1]).sum(), [*leaves.values()])
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        for name, gradient in zip(leaves, gradients, strict=True):
            sums[name][client] += gradient * min(1.0, CLIP / norm) * float(shares[client, row])
    return sums


def _distance(found, expected):
    """Return the norm of the difference over the norm, for all weights together."""
    square = {n: (float((found[n] - e).double().square().sum()), float(e.square().sum())) for n, e in expected.items()}
    return math.sqrt(sum(part for part, _ in square.values()) / sum(whole for _, whole in square.values()))


def _chunk_of(monkeypatch, rows):
    monkeypatch.setattr(private_training, "_LEAST_ROWS", rows)
    monkeypatch.setattr(private_training, "_NUMBERS_PER_CHUNK", {"cpu": -(2**40)})


@pytest.mark.parametrize("chunk", [3, 32])
@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
def test_one_pass_is_a_loop_in_float64_and_one_row_after_another(options, chunk, monkeypatch):
    _chunk_of(monkeypatch, chunk)
    network = _network(**options)
    problem = _problem(network)
    found = _sums(network, *problem)
    assert {name: total.shape for name, total in found.items()} == {name: w.shape for name, w in problem[0].items()}
    assert _distance(found, _loop_in_float64(network, *problem)) < 1e-6
    assert _distance(found, _sums(network, *problem, engine="vmap")) < 1e-6


@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
def test_a_row_changes_no_sum_by_more_than_the_clip_norm(options):
    network = _network(**options)
    weights, context, rows, shares = _problem(network)
    whole = _sums(network, weights, context, rows, shares)
    rest = _sums(network, weights, context, rows, shares.index_fill(1, torch.tensor([0]), 0.0))
    change = sum((whole[name] - rest[name]).flatten(1).square().sum(1) for name in whole).sqrt()
    assert change.tolist() == pytest.approx((CLIP * shares[:, 0]).tolist(), rel=1e-4)


@pytest.mark.parametrize("chunk", [3, 32])
@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
def test_a_clients_bits_are_the_same_in_any_stack_of_the_size_at_any_place(options, chunk, monkeypatch):
    _chunk_of(monkeypatch, chunk)
    network = _network(**options)
    weights, context, *rest = _problem(network)
    whole = _sums(network, weights, context, *rest)
    for members in ([2, 0, 1], [1, 1, 0], [0, 2, 2]):
        own, about = ({name: w[members] for name, w in named.items()} for named in (weights, context))
        rows, shares = Rows(*(part[members] for part in rest[0])), rest[1][members]
        dealt = _sums(network, own, about, rows, shares)
        assert all(torch.equal(dealt[name], total[members]) for name, total in whole.items())


def test_padding_adds_nothing():
    network = _network()
    weights, context, rows, shares = _problem(network)
    spoiled = rows._replace(x=torch.where((shares == 0)[..., None, None], 1e3, rows.x))
    found, expected = (_sums(network, weights, context, each, shares) for each in (spoiled, rows))
    assert all(torch.equal(found[name], total) for name, total in expected.items())


@pytest.mark.parametrize("spoiled", [math.inf, math.nan, 1e30])
def test_a_row_with_a_gradient_that_is_not_finite_adds_nothing(spoiled):
    network = _network()
    weights, context, rows, shares = _problem(network)
    without = shares.clone()
    without[0, 1] = 0
    expected = _sums(network, weights, context, rows, without)
    rows.x[0, 1, 3, 3] = spoiled
    found = _sums(network, weights, context, rows, shares)
    for name, total in expected.items():
        torch.testing.assert_close(found[name], total, rtol=1e-6, atol=1e-7)


@settings(max_examples=200, deadline=None)
@given(
    inputs=st.lists(st.floats(-30, 30), min_size=3, max_size=3),
    deltas=st.lists(st.floats(-30, 30), min_size=4, max_size=4),
    clip=st.sampled_from([1e-6, 1.0]),
)
def test_no_row_of_any_size_adds_more_than_the_clip_norm(inputs, deltas, clip):
    """Squares of small deltas would be 0 in float32, and their row would pass with huge inputs."""
    a, d = (torch.tensor([[[10.0**power for power in powers]]]) for powers in (inputs, deltas))
    clipping = private_training._Clipping(None, CrossEntropy(), clip)
    rows = DenseRows("dense0", a, d)
    sums = scaled_sums([rows], lambda squares: clipping._scale(squares, torch.ones(1, 1)))
    norm = sum(float(total.double().square().sum()) for total in sums.values()) ** 0.5
    assert norm <= clip * (1 + 1e-5)
