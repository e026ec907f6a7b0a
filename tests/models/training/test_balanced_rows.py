"""An epoch of balanced rows gives a client's classes the same chance, whoever is in the stack with it."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from models.networks.mlp import MLP
from models.prng import client_streams
from models.training.engine import Rows, Training, batches, broadcast_weights, full_gradient, train
from models.training.objectives import CrossEntropy
from models.training.optimizers import SGD

NETWORK = MLP(1, (), 4)
BALANCED = Training(CrossEntropy(), SGD(0.1), epochs=200, batch=16, rows="balanced")
LABELS = [[0] * 2 + [1] * 20 + [3] * 58, [2] * 5, [], [0] * 50 + [1] * 50]
NAMES = ["rare", "one class", "empty", "even"]


@pytest.fixture
def rows() -> Rows:
    """Every row's input is its own number, so that a batch tells which rows it drew."""
    x, y = torch.zeros(4, 100, 1), torch.zeros(4, 100, dtype=torch.int64)
    for client, labels in enumerate(LABELS):
        x[client, : len(labels), 0] = torch.arange(1.0, len(labels) + 1)
        y[client, : len(labels)] = torch.tensor(labels, dtype=torch.int64)
    return Rows(x, y, torch.tensor([len(labels) for labels in LABELS]))


def drawn(rows: Rows, names: list[str], training: Training = BALANCED) -> list[tuple[Tensor, Tensor]]:
    """Of each client what its batches hold: inputs and labels of rows that are used."""
    seen = list(batches(NETWORK, training, rows, client_streams(0, names, 1, "local_train")))
    each = range(len(names))
    xs = [torch.cat([b.x[c, b.used[c] > 0, 0] for b in seen]) for c in each]
    return list(zip(xs, [torch.cat([b.y[c, b.used[c] > 0] for b in seen]) for c in each], strict=True))


def test_classes_of_a_client_are_drawn_alike_and_rows_of_a_class_alike(rows):
    for labels, (x, y) in zip(LABELS, drawn(rows, NAMES), strict=True):
        assert len(x) == 200 * len(labels)  # an epoch is as long as it was
        if not labels:
            continue
        own = torch.tensor(labels)
        assert torch.equal(own[x.long() - 1], y)
        counts = torch.bincount(y, minlength=4)
        assert set(y.tolist()) == set(labels)
        assert len(set(labels)) == 1 or chisquare(counts[counts > 0].numpy()).pvalue > 1e-4
        for c in sorted(set(labels)):
            places = torch.bincount(x.long() - 1, minlength=len(labels))[own == c]
            assert chisquare(places.numpy()).pvalue > 1e-4


@pytest.mark.slow
def test_a_client_draws_the_same_rows_whoever_is_beside_it(rows):
    together = drawn(rows, NAMES)
    for client in (0, 1, 3):  # of nobody there is no batch
        alone = drawn(Rows(*(part[client : client + 1] for part in rows)), NAMES[client : client + 1])
        assert torch.equal(together[client][0], alone[0][0])


def test_a_whole_epoch_in_one_batch_is_drawn_too(rows):
    one = replace(BALANCED, epochs=1, batch=100)
    assert len(drawn(rows, NAMES, one)[0][0].unique()) < len(LABELS[0])


def test_a_gradient_over_all_rows_takes_each_once(rows):
    weights = broadcast_weights(NETWORK.init(torch.tensor(0)), 4)
    streams = client_streams(0, NAMES, 1, "local_train")
    found, expected = (
        full_gradient(NETWORK, weights, {}, rows, replace(BALANCED, rows=order), streams)[0]
        for order in ("balanced", "shuffled")
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("engine", ["batched", "vmap"])
def test_training_on_them_is_that_of_one_client_after_another(engine, rows):
    weights = broadcast_weights(NETWORK.init(torch.tensor(0)), 4)
    streams, few = client_streams(0, NAMES, 1, "local_train"), replace(BALANCED, epochs=3)
    rows = Rows(rows.x / 100, rows.y, rows.counts)
    one, other = (
        train(NETWORK, weights, {}, rows, replace(few, engine=kind), streams) for kind in ("sequential", engine)
    )
    for name in weights:
        torch.testing.assert_close(one.weights[name], other.weights[name], rtol=1e-5, atol=1e-6)
