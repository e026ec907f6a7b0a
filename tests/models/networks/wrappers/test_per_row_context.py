"""Rows of several clients side by side answer as each client's rows do beside that client's statistics."""

import pytest
import torch

from models.networks.cnn import CNN
from models.networks.mlp import MLP
from models.networks.statistics_context import STATISTICS
from models.networks.wrappers.conditional_network import Bilinear, Ensemble
from models.networks.wrappers.per_row_context import PerRowContext
from models.prng import server_stream

ROWS = (4, 1, 3)
NETWORKS = [
    ((5,), MLP(5, (6,), 3, statistics=7)),
    ((5,), MLP(5, (), 1, statistics=7)),
    ((5,), Bilinear(5, 3, 7)),
    ((5,), Bilinear(5, 1, 7, constant=True)),
    ((5,), Ensemble(5, 3, 7, experts=2)),
    ((8, 8), CNN((8, 8), (3,), (6,), 3, kernel=3, statistics=7)),
    ((8, 8, 2), CNN((8, 8, 2), (3,), (6,), 3, kernel=3, statistics=7)),
    ((8, 8), CNN((8, 8), (3,), (6,), 3, kernel=3, statistics=2 * (64 + 3), planes=2)),
]
each_network = pytest.mark.parametrize(("shape", "network"), NETWORKS)


def drawn(shape, network):
    """Weights; and x (rows, *shape) and statistics of three clients."""
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, *shape, generator=draw), torch.randn(network.statistics, generator=draw)) for n in ROWS]
    return network.init(server_stream(0, 0, "init")), clients


def together(clients):
    return torch.cat([torch.cat([x.flatten(1), own.expand(len(x), -1)], 1) for x, own in clients])


@each_network
def test_each_row_is_answered_as_its_clients_own(shape, network):
    weights, clients = drawn(shape, network)
    expected = torch.cat([network.apply(weights, {STATISTICS: own}, x, None) for x, own in clients])
    found = PerRowContext(network, shape, network.statistics).apply(weights, {}, together(clients), None)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    others = [(x, clients[at - 1][1]) for at, (x, _) in enumerate(clients)]
    assert not torch.allclose(network.apply(weights, {STATISTICS: others[0][1]}, others[0][0], None), expected[:4])


@each_network
def test_the_form_for_stacks_is_the_networks_own(shape, network):
    weights, clients = drawn(shape, network)
    rowwise, x = PerRowContext(network, shape, network.statistics), together(clients)
    assert rowwise.stacked is rowwise
    stack = {name: torch.stack([w, -w]) for name, w in weights.items()}
    found = rowwise.apply_stack(stack, {}, torch.stack([x, x.flip(0)]), None)
    expected = [
        rowwise.apply({n: w[at] for n, w in stack.items()}, {}, rows, None) for at, rows in ((0, x), (1, x.flip(0)))
    ]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)


@each_network
def test_a_stack_of_clients_is_each_client_with_its_own_statistics(shape, network):
    weights, clients = drawn(shape, network)
    x = torch.stack([x[:1] for x, _ in clients])
    own = {STATISTICS: torch.stack([own for _, own in clients])}
    expected = torch.stack(
        [network.apply(weights, {STATISTICS: s}, rows, None) for s, rows in zip(own[STATISTICS], x, strict=True)]
    )
    stack = {name: w.expand(len(x), *w.shape) for name, w in weights.items()}
    found = network.apply_stack(stack, own, x, None)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@each_network
def test_without_statistics_zeros_stand_in(shape, network):
    weights, ((x, _), *_) = drawn(shape, network)
    zeros = {STATISTICS: torch.zeros(network.statistics)}
    assert torch.equal(network.apply(weights, {}, x, None), network.apply(weights, zeros, x, None))


@each_network
@pytest.mark.parametrize("length", [1, 6])
def test_statistics_of_another_length_are_refused(shape, network, length):
    """One number, too, which broadcasting would take."""
    weights, ((x, _), *_) = drawn(shape, network)
    with pytest.raises(ValueError, match=rf"statistics: got {length} numbers, expected {network.statistics}"):
        network.apply(weights, {STATISTICS: torch.ones(length)}, x, None)
