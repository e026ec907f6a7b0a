"""Convolutions and dense layers normalised by their batch, against torch's own layers with the same weights."""

import json

import pytest
import torch
from torch import nn

from models.networks.cnn import BatchNormCNN
from models.networks.network_factory import build, from_json, num_trainable, size, to_json
from models.prng import client_streams, fold_in, server_stream, shuffle
from models.training.engine import Rows, Training, broadcast_weights, full_gradient, per_example_metrics, train
from models.training.objectives import CrossEntropy
from models.training.optimizers import SGD

NETWORK = BatchNormCNN((9, 8, 2), 3, (3, 4, 5), (False, True, True), (7, 6), 0.0)
COUNTS = (9, 0, 4, 2)
KINDS = pytest.mark.parametrize("kind", ["sequential", "vmap", "batched"])
THEIRS = {"weight": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}


def as_torch(network, weights):
    """The network as torch's layers with these weights, and the names of ours to those of theirs."""
    layers, names, inside = [], {}, network.shape[2]

    def add(ours, layer):
        parts = THEIRS if ours.startswith("norm") else ("weight", "bias")
        names.update({f"{ours}.{part}": f"{len(layers)}.{THEIRS[part]}" for part in parts})
        layers.append(layer)

    for at, (width, pooled) in enumerate(zip(network.channels, network.pooled, strict=True)):
        add(f"conv{at}", nn.Conv2d(inside, width, 3, padding=1))
        add(f"norm{at}", nn.BatchNorm2d(width))
        layers += [nn.ReLU(), *([nn.MaxPool2d(2)] if pooled else [])]
        inside = width
    layers.append(nn.Flatten())
    inside = weights["dense0.weight"].shape[0]
    for at, width in enumerate(network.hidden):
        layers.append(nn.Dropout(network.dropout))
        add(f"dense{at}", nn.Linear(inside, width))
        add(f"norm{len(network.channels) + at}", nn.BatchNorm1d(width))
        layers.append(nn.ReLU())
        inside = width
    layers.append(nn.Dropout(network.dropout))
    add(f"dense{len(network.hidden)}", nn.Linear(inside, network.outputs))
    made = nn.Sequential(*layers).to(weights["dense0.weight"].dtype)
    assert names.keys() == weights.keys()
    made.load_state_dict(made.state_dict() | {t: turned(o, weights[o]) for o, t in names.items()})
    return made, names


def turned(name, w):
    """A dense layer's weight is (in, out) here and (out, in) there."""
    return w.T if name.startswith("dense") and w.dim() == 2 else w


@pytest.fixture
def work():
    """Weights that differ from client to client, rows, and streams; in float64."""
    draw = torch.Generator().manual_seed(0)
    start = broadcast_weights(NETWORK.init(server_stream(0, 0, "init")), len(COUNTS))
    weights = {
        n: w.double() * (1 + 0.2 * torch.randn(w.shape, generator=draw).tanh()) + ("mean" in n) * 0.1
        for n, w in start.items()
    }
    x = torch.randn(len(COUNTS), max(COUNTS), *NETWORK.shape, generator=draw).double()
    y = torch.arange(len(COUNTS) * max(COUNTS)).view(len(COUNTS), -1) % 3
    return weights, Rows(x, y, torch.tensor(COUNTS)), client_streams(0, list("abcd"), 1, "t")


def images(x):
    return x.movedim(-1, 1)


@KINDS
def test_in_evaluation_it_is_torchs_with_the_same_weights(kind, work):
    weights, rows, _ = work
    found = per_example_metrics(NETWORK, weights, {}, rows, CrossEntropy(), kind)["loss"]
    for at, count in enumerate(COUNTS):
        layers, _ = as_torch(NETWORK, {n: w[at] for n, w in weights.items()})
        x, y = rows.x[at, :count], rows.y[at, :count]
        expected = nn.functional.cross_entropy(layers.eval()(images(x)), y, reduction="none")
        torch.testing.assert_close(found[at, :count].double(), expected, rtol=0, atol=1e-5)


@KINDS
def test_gradients_and_running_statistics_are_torchs_and_padding_counts_in_neither(kind, work):
    weights, rows, streams = work
    rows = rows._replace(x=rows.x.clone())
    for at, count in enumerate(COUNTS):
        rows.x[at, count:] = 100  # what padding is must not matter
    plan = Training(CrossEntropy(), SGD(0.1), 1, max(COUNTS), kind)
    found, loss = full_gradient(NETWORK, weights, {}, rows, plan, streams)
    for at, count in enumerate(COUNTS):
        if not count:
            continue
        layers, names = as_torch(NETWORK, {n: w[at] for n, w in weights.items()})
        expected = nn.functional.cross_entropy(layers(images(rows.x[at, :count])), rows.y[at, :count])
        expected.backward()
        gradients = {n: p.grad for n, p in layers.named_parameters()}
        state = layers.state_dict()
        torch.testing.assert_close(loss[at].double(), expected.detach(), rtol=0, atol=1e-5)
        for ours, theirs in names.items():
            wanted = state[theirs] if ours in NETWORK.buffers else gradients[theirs]
            torch.testing.assert_close(turned(ours, found[ours][at]), wanted, rtol=0, atol=1e-9, msg=ours)


@KINDS
def test_it_is_trained_as_torch_trains_the_same_layers(kind, work):
    """Each client on its rows alone, in its order, in batches of five, so that the rest of nine is of four.

    Of two rows that come after other steps, dense layers make rounding of 1e-15 into 3e-9: processors would differ.
    """
    weights, rows, streams = work
    plan = Training(CrossEntropy(), SGD(0.05, 0.9), 3, 5, kind)
    trained = train(NETWORK, weights, {}, rows, plan, streams).weights
    for at, count in enumerate(COUNTS):
        layers, names = as_torch(NETWORK, {n: w[at] for n, w in weights.items()})
        optimiser = torch.optim.SGD(layers.parameters(), 0.05, 0.9)
        for epoch in range(3):
            order = shuffle(fold_in(streams[at], epoch), max(COUNTS), torch.tensor(count))[:count]
            for index in order.split(5) if count else ():
                optimiser.zero_grad()
                logits = layers(images(rows.x[at, index]))
                nn.functional.cross_entropy(logits, rows.y[at, index]).backward()
                optimiser.step()
        state = layers.state_dict()
        for ours, theirs in names.items():
            torch.testing.assert_close(turned(ours, trained[ours][at]), state[theirs], rtol=0, atol=1e-9, msg=ours)


@KINDS
def test_a_batch_of_one_row_moves_no_statistics_of_dense_layers(kind, work):
    """torch refuses it: of one number a variance is not known. Of an image's places it is."""
    weights, rows, streams = work
    one = rows._replace(counts=torch.ones(len(COUNTS), dtype=torch.int64))
    plan = Training(CrossEntropy(), SGD(0.1), 1, 1, kind)
    trained = train(NETWORK, weights, {}, one, plan, streams).weights
    for layer in range(5):
        for part in ("mean", "variance"):
            same = torch.equal(trained[f"norm{layer}.{part}"], weights[f"norm{layer}.{part}"])
            assert same == (layer > 2)
    assert all(torch.isfinite(w).all() for w in trained.values())


def test_dropout_acts_on_what_each_dense_layer_reads():
    """Through dense layers that change nothing but are normalised by mean 0 and variance 1, what is left is three masks."""
    network = BatchNormCNN((4, 4), 40, (40,), (False,), (40, 40), 0.5)
    weights = network.init(server_stream(0, 0, "init"))
    weights |= {n: torch.zeros_like(w) for n, w in weights.items() if n.startswith(("conv", "dense"))}
    weights |= {"norm0.bias": torch.ones(40), "dense0.weight": torch.eye(40).repeat_interleave(16, 0) / 16}
    weights |= {f"dense{layer}.weight": torch.eye(40) for layer in (1, 2)}
    x = torch.rand(200, 4, 4, generator=torch.Generator().manual_seed(0))
    calm = network.apply(weights, {}, x, None)
    torch.testing.assert_close(calm, torch.ones(200, 40), rtol=0, atol=1e-4)
    drawn = network.apply(weights, {}, x, server_stream(0, 1, "t"))
    assert float((drawn == 0).double().mean()) == pytest.approx(0.75, abs=0.02)
    assert float(drawn.mean()) == pytest.approx(1, abs=0.05)
    first = drawn[drawn > 0] / 4 * 16 / 2  # kept by the second and third mask: how many of 16 places the first has kept
    torch.testing.assert_close(first, first.round(), rtol=0, atol=1e-2)
    assert len(first.round().unique()) > 5


def test_the_network_of_selective_averaging_has_its_papers_size():
    network = build("cnn_bn", (28, 28), 10, {})
    assert num_trainable(network) == 905_354
    assert size(network) - num_trainable(network) == 2 * (32 + 64 + 128 + 128 + 64)
    assert network.init(server_stream(0, 0, "init"))["dense0.weight"].shape == (6272, 128)
    assert network.max_width == 64 * 28 * 28


def test_it_comes_back_from_its_json_and_refuses_what_cannot_be():
    assert from_json(json.loads(json.dumps(to_json(NETWORK)))) == NETWORK
    for shape, options, sentence in (
        ((64,), {}, "Use the kind mlp"),
        ((3, 3), {}, r"pooled: got too many poolings, expected fewer, since nothing is left of an image of 3 x 3\."),
        ((8, 8), {"channels": [3, 4]}, "pooled: got 3 entries, expected 2"),
    ):
        with pytest.raises(ValueError, match=sentence):
            build("cnn_bn", shape, 10, options)
