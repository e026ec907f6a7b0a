"""What a network costs is what the paper of selective averaging has of its three, and can be added up by hand."""

from itertools import pairwise

import pytest
import torch

from models.metrics.flops import largest_activation, network_cost, training_floor
from models.networks.cnn import CNN, BatchNormCNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.prng import server_stream
from models.training.objectives import CrossEntropy, SquaredError
from models.training.optimizers import SGD, Adam

FC1 = MLP(784, (30,), 10)
C2R3 = CNN((28, 28), (10, 20), (50,), 10, dropout=0.5, channel_dropout=0.5)
CR3R3 = BatchNormCNN((28, 28), 10)


def start(network):
    return network.init(server_stream(0, 0, "init"))


def cost(network, objective=None, label=torch.int64):
    x, y = torch.rand(1, 28, 28), torch.zeros(1, dtype=label)
    return network_cost(network, start(network), {}, x, y, objective or CrossEntropy())


@pytest.mark.parametrize(
    ("network", "parameters", "buffers", "forward", "both"),
    [
        (FC1, 23_860, 0, 23_820, 47_940),
        (C2R3, 21_840, 0, 480_500, 1_297_500),
        (CNN((28, 28), (10, 20), (50,), 10), 21_840, 0, 480_500, 1_297_500),
        (CR3R3, 905_354, 832, 29_938_816, 89_590_656),  # torch's layers count batches besides: 837 with one number each
    ],
    ids=["FC1", "C2R3", "C2R3 without dropout", "CR3R3"],
)
def test_the_papers_networks_cost_what_its_table_says(network, parameters, buffers, forward, both):
    found = cost(network)
    assert (found.parameters, found.buffers, found.forward, found.both) == (parameters, buffers, forward, both)


def test_backward_is_two_products_a_layer_but_one_in_the_first():
    widths = [784, 20, 15, 10]
    products = [a * b for a, b in pairwise(widths)]
    found = cost(MLP(784, (20, 15), 10))
    assert (found.forward, found.both) == (sum(products), 3 * sum(products) - products[0])


def test_a_regression_and_an_ensemble_are_counted():
    assert cost(MLP(784, (30,), 1), SquaredError(), torch.float32).forward == 784 * 30 + 30
    assert cost(DeepEnsemble(FC1, 3)).both == 3 * 47_940


def test_the_test_rows_in_one_batch_need_the_gigabyte_that_a_raspberry_pi_did_not_have():
    first = BatchNormCNN((28, 28), 10, (32,), (False,))
    assert largest_activation(first, 10_000) == 10_000 * 32 * 28 * 28 * 4 == 1_003_520_000
    assert largest_activation(CR3R3, 10_000) == 2 * 1_003_520_000  # the second convolution's, before it is pooled
    assert largest_activation(first, 128) == 12_845_056


@pytest.mark.parametrize(
    ("optimiser", "each"), [(SGD(0.1), 8), (SGD(0.1, 0.9), 12), (Adam(0.1), 16)], ids=["sgd", "momentum", "adam"]
)
def test_training_needs_each_number_with_its_gradient_and_what_the_optimiser_remembers(optimiser, each):
    count = 4 * isinstance(optimiser, Adam)  # of steps
    for network, parameters in ((FC1, 23_860), (CR3R3, 905_354)):
        found = training_floor(network, start(network), optimiser, 7)
        assert found == each * parameters + count + 7 * 4 * network.max_width
