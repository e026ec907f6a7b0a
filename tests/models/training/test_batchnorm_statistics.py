"""Running statistics measured anew are those that torch's update_bn measures."""

import pytest
import torch
from torch import nn

from models.networks.cnn import BatchNormCNN
from models.networks.mlp import MLP
from models.prng import client_streams, fold_in, server_stream, shuffle
from models.training.batchnorm_statistics import measure_batchnorm, normalisation_statistics
from models.training.engine import Rows, Training, broadcast_weights
from models.training.objectives import CrossEntropy
from models.training.optimizers import SGD

NETWORK = BatchNormCNN((4, 4), 3, (3, 4), (False, True), (5,), 0.0)
COUNTS = (8, 0, 4, 1)
KINDS = pytest.mark.parametrize("kind", ["sequential", "vmap", "batched"])


def work(counts=COUNTS, network=NETWORK):
    draw = torch.Generator().manual_seed(0)
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), len(counts))
    weights = {n: w + 0.2 * torch.rand(w.shape, generator=draw) for n, w in weights.items()}
    x = torch.randn(len(counts), max(counts), 4, 4, generator=draw) + 1
    y = torch.zeros(x.shape[:2], dtype=torch.int64)
    return weights, Rows(x, y, torch.tensor(counts)), client_streams(0, list("abcdefg")[: len(counts)], 1, "t")


@KINDS
def test_they_are_torchs_batch_by_batch(kind):
    """Of clients whose batches are all as large: torch counts each batch once, and here each row."""
    weights, rows, streams = work()
    found = measure_batchnorm(NETWORK, weights, {}, rows, Training(CrossEntropy(), SGD(0.1), 7, 4, kind), streams)
    assert set(found) == set(NETWORK.buffers) == set(normalisation_statistics(NETWORK))
    for at in (0, 2):
        w, count = {n: t[at] for n, t in weights.items()}, COUNTS[at]
        layers = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 5),
            nn.BatchNorm1d(5),
        )
        names = {0: "conv0", 1: "norm0", 3: "conv1", 4: "norm1", 8: "dense0", 9: "norm2"}
        for place, name in names.items():
            for part in ("weight", "bias"):
                value = w[f"{name}.{part}"]
                getattr(layers[place], part).data = value.T if name.startswith("dense") and value.dim() == 2 else value
        order = shuffle(fold_in(streams[at], 0), max(COUNTS), torch.tensor(count))[:count]
        torch.optim.swa_utils.update_bn([rows.x[at, index][:, None] for index in order.split(4)], layers)
        for place in (1, 4, 9):
            for ours, theirs in (("mean", "running_mean"), ("variance", "running_var")):
                torch.testing.assert_close(
                    found[f"{names[place]}.{ours}"][at], getattr(layers[place], theirs), rtol=1e-4, atol=1e-5
                )


@KINDS
def test_what_no_batch_knows_stays_as_it_is(kind):
    """Of a client without rows all, of one row what its dense layers are normalised by."""
    weights, rows, streams = work()
    found = measure_batchnorm(NETWORK, weights, {}, rows, Training(CrossEntropy(), SGD(0.1), 1, 4, kind), streams)
    for name, t in found.items():
        assert torch.equal(t[1], weights[name][1])
        assert torch.equal(t[3], weights[name][3]) == name.startswith("norm2")
        assert not torch.equal(t[2], weights[name][2])


def test_a_last_batch_of_one_row_says_nothing_of_dense_layers():
    """Five rows in batches of four: it counts neither as a mean of that row nor as no variance."""
    weights, rows, streams = work((5,))
    found = measure_batchnorm(NETWORK, weights, {}, rows, Training(CrossEntropy(), SGD(0.1), 1, 4), streams)
    order = shuffle(fold_in(streams[0], 0), 5, torch.tensor(5))[:4]
    four = Rows(rows.x[:, order], rows.y[:, order], torch.tensor([4]))
    of_four = measure_batchnorm(NETWORK, weights, {}, four, Training(CrossEntropy(), SGD(0.1), 1, 4), streams)
    for part in ("mean", "variance"):
        torch.testing.assert_close(found[f"norm2.{part}"], of_four[f"norm2.{part}"])


def test_a_network_without_such_layers_has_none():
    network = MLP(16, (5,), 3)
    weights, rows, streams = work(network=network)
    assert measure_batchnorm(network, weights, {}, rows, Training(CrossEntropy(), SGD(0.1), 1, 4), streams) == {}
