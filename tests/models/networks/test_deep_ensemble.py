"""A deep ensemble: every member learns what it learns alone, and together they answer with the mean of probabilities."""

import json

import pytest
import torch

from models.networks.cnn import CNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.networks.network_factory import from_json, size, to_json
from models.networks.resnet_vgg import Residual
from models.networks.statistics_context import STATISTICS
from models.networks.wrappers.codebook_network import COUNT, OWN, SHARED, QuantizedNetwork
from models.networks.wrappers.distrans_network import OffsetNetwork
from models.prng import client_streams, server_stream
from models.training.engine import Training, broadcast_weights, train
from models.training.engine_and_stack_size import fitting, pick_kernel
from models.training.objectives import CrossEntropy
from models.training.optimizers import SGD, Adam

INNER = {
    "mlp": MLP(64, (6,), 3),
    "cnn": CNN((8, 8), (3, 4), (6,), 3, kernel=3, padding=True),
    "residual": Residual((8, 8), 3, (6,), 0.0, True, (4, 8)),
    "quantised": QuantizedNetwork(Residual((8, 8), 3, (6,), 0.0, True, (4, 8)), words=5, room=2),
}
OPTIMISERS = {"sgd": SGD(0.1), "momentum": SGD(0.1, 0.9, 0.01), "adam": Adam(0.01)}


def at_work(network, images, dtype=torch.float64):
    """Weights of three clients, what they have beside, rows and streams."""
    weights, rows, streams = images(network, dtype=dtype)
    context = {}
    for one in network.single_networks:
        if isinstance(one.network, QuantizedNetwork):
            draw = torch.Generator().manual_seed(one.number)
            weights[one.prefix + OWN] = torch.randn(3, 2, one.network.length, generator=draw).to(dtype)
            context[one.prefix + COUNT] = torch.tensor([2, 0, 1]).roll(one.number)
    return weights, context, rows, streams


@pytest.fixture(params=INNER.values(), ids=INNER)
def network(request) -> DeepEnsemble:
    return DeepEnsemble(request.param, 3)


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
def test_every_member_learns_what_it_learns_alone(optimiser, network, images):
    weights, context, rows, streams = at_work(network, images)
    plan = Training(CrossEntropy(), optimiser, 2, 3, "batched")
    found, loss, _ = train(network, weights, context, rows, plan, streams)
    assert set(found) == set(weights)
    losses = []
    for one in network.single_networks:
        alone, own_loss, _ = train(one.network, one.of(weights), one.of(context), rows, plan, streams)
        losses.append(own_loss)
        for name, w in alone.items():
            torch.testing.assert_close(found[one.prefix + name], w, rtol=0, atol=1e-9, msg=one.prefix + name)
    torch.testing.assert_close(loss, torch.stack(losses).mean(0), rtol=0, atol=1e-6)


def test_the_proximal_term_pulls_every_member_to_its_own_start(images):
    network = DeepEnsemble(MLP(64, (6,), 3), 2)
    weights, _, rows, streams = at_work(network, images)
    plan = Training(CrossEntropy(), Adam(0.01), 2, 3, "batched")
    found, *_ = train(network, weights, {}, rows, plan, streams, 0.5)
    for one in network.single_networks:
        alone, *_ = train(one.network, one.of(weights), {}, rows, plan, streams, 0.5)
        for name, w in alone.items():
            torch.testing.assert_close(found[one.prefix + name], w, rtol=0, atol=1e-9)


class Second(MLP):
    """An MLP that drops what the second member of an ensemble drops."""

    def apply_stack(self, weights, context, x, streams):
        return super().apply_stack(weights, context, x, DeepEnsemble(self, 2).single_networks[1].stream(streams))


def test_every_member_drops_activations_of_its_own_and_the_first_those_of_the_network_alone(images):
    inner = MLP(64, (20,), 3, dropout=0.5)
    network = DeepEnsemble(inner, 2)
    weights, _, rows, streams = at_work(network, images)
    plan = Training(CrossEntropy(), Adam(0.01), 2, 3, "batched")
    found, *_ = train(network, weights, {}, rows, plan, streams)
    first, second = network.single_networks
    of_first, *_ = train(inner, first.of(weights), {}, rows, plan, streams)
    of_second, *_ = train(Second(64, (20,), 3, dropout=0.5), second.of(weights), {}, rows, plan, streams)
    other, *_ = train(inner, second.of(weights), {}, rows, plan, streams)
    name = "dense0.weight"
    torch.testing.assert_close(found["0/" + name], of_first[name], rtol=0, atol=1e-9)
    torch.testing.assert_close(found["1/" + name], of_second[name], rtol=0, atol=1e-9)
    assert (found["1/" + name] - other[name]).abs().max() > 1e-3


def test_its_prediction_is_the_mean_of_the_members_probabilities(network, images):
    weights, context, rows, _ = at_work(network, images)
    said = [
        torch.softmax(one.network.apply_stack(one.of(weights), one.of(context), rows.x, None), -1)
        for one in network.single_networks
    ]
    found = network.apply_stack(weights, context, rows.x, None)
    torch.testing.assert_close(torch.softmax(found, -1), torch.stack(said).mean(0))
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(rows.y.shape).double())
    alone = network.apply({n: w[1] for n, w in weights.items()}, {n: c[1] for n, c in context.items()}, rows.x[1], None)
    torch.testing.assert_close(alone, found[1])


def test_very_sure_members_give_no_infinite_numbers():
    network = DeepEnsemble(MLP(2, (), 2), 2)
    eye = torch.eye(2)[None] * 1e4
    weights = {"0/dense0.weight": eye, "1/dense0.weight": -eye, "0/dense0.bias": torch.zeros(1, 2)}
    weights["1/dense0.bias"] = torch.zeros(1, 2)
    said = network.apply_stack(weights, {}, torch.eye(2)[None], None)
    torch.testing.assert_close(said.exp(), torch.full((1, 2, 2), 0.5))
    assert torch.isfinite(said).all()


def test_the_first_member_starts_as_the_network_alone_and_no_two_start_alike(network):
    stream = server_stream(0, 0, "init")
    weights, alone = network.init(stream), network.inner.init(stream)
    first, second, third = (one.of(weights) for one in network.single_networks)
    assert all(torch.equal(first[name], w) for name, w in alone.items())
    name = "dense0.weight"
    assert not torch.equal(first[name], second[name])
    assert not torch.equal(second[name], third[name])
    assert size(network) == 3 * size(network.inner)


@pytest.mark.slow
def test_the_reference_engine_learns_the_same(network, images, learns_alone):
    weights, context, rows, streams = at_work(network, images)
    learns_alone(network, weights, context, rows, streams, batch=3)


def test_no_member_reads_another_ones_weights_or_words(images):
    network = DeepEnsemble(INNER["quantised"], 2)
    weights, context, rows, streams = at_work(network, images, torch.float32)
    plan = Training(CrossEntropy(), Adam(0.01), 1, 4, "batched")
    expected, *_ = train(network, weights, context, rows, plan, streams)
    first, second = network.single_networks
    poisoned = weights | second.named({n: w * torch.nan for n, w in second.of(weights).items()})
    found, *_ = train(network, poisoned, context, rows, plan, streams)
    for name, w in first.of(expected).items():
        assert torch.equal(found[first.prefix + name], w), name


def test_in_no_member_a_client_reads_another_ones_words(images):
    """With NaN in every other client's own words and in the room beyond its own, nothing of a client changes."""
    network = DeepEnsemble(INNER["quantised"], 2)
    weights, context, rows, streams = at_work(network, images, torch.float32)
    plan = Training(CrossEntropy(), Adam(0.01), 1, 4, "batched")
    expected, loss, _ = train(network, weights, context, rows, plan, streams)
    for client in range(3):
        poisoned = dict(weights)
        for one in network.single_networks:
            words = poisoned[one.prefix + OWN] = weights[one.prefix + OWN].clone()
            words[torch.arange(3) != client] = torch.nan
            words[client, context[one.prefix + COUNT][client] :] = torch.nan
        found, own_loss, _ = train(network, poisoned, context, rows, plan, streams)
        assert own_loss[client] == loss[client]
        for name, w in expected.items():
            beyond = context[name.replace(OWN, COUNT)][client] if name.endswith(OWN) else None
            assert torch.equal(found[name][client][:beyond], w[client][:beyond]), name


def test_running_statistics_are_every_members_own_and_no_gradient_moves_them(images):
    network = DeepEnsemble(INNER["residual"], 2)
    assert set(network.buffers) == {f"{m}/{name}" for m in (0, 1) for name in network.inner.buffers}
    weights, _, rows, streams = at_work(network, images)
    plan = Training(CrossEntropy(), SGD(0.0), 1, 4, "batched")
    found, *_ = train(network, weights, {}, rows, plan, streams)
    moved = {name for name, w in weights.items() if not torch.equal(found[name], w)}
    assert moved == set(network.buffers)


def test_rates_are_those_of_every_member():
    inner = OffsetNetwork(MLP(64, (6,), 3), (8, 8), offset_rate=0.2)
    assert DeepEnsemble(inner, 2).lr_multipliers == {
        f"{m}/{name}": 0.2 for m in (0, 1) for name in inner.lr_multipliers
    }


def test_what_is_no_members_is_read_by_all():
    network = DeepEnsemble(MLP(5, (6,), 3, statistics=2), 2)
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), 1)
    x, context = torch.ones(1, 4, 5), {STATISTICS: torch.tensor([[3.0, -1.0]])}
    said = [
        torch.softmax(one.network.apply_stack(one.of(weights), context, x, None), -1) for one in network.single_networks
    ]
    found = network.apply_stack(weights, context, x, None)
    torch.testing.assert_close(torch.softmax(found, -1), torch.stack(said).mean(0))


def test_it_comes_back_from_its_json_whatever_it_is_of():
    for inner in INNER.values():
        network = DeepEnsemble(inner, 3)
        assert from_json(json.loads(json.dumps(to_json(network)))) == network


def test_the_engine_takes_the_line_of_what_it_is_of_and_smaller_stacks():
    inner = MLP(784, (200,), 10)
    network = DeepEnsemble(inner, 2)
    assert pick_kernel(network, 32, "cpu") == (kernel := pick_kernel(network, 32, "cpu", "batched"))
    assert kernel.kind == "batched"
    assert kernel.stack == fitting(network, 32, 4) < pick_kernel(inner, 32, "cpu").stack
    assert network.max_width == 2 * inner.max_width
    assert pick_kernel(network, 32, "cpu", "vmap").kind == "vmap"


def test_a_network_that_is_no_ensemble_is_its_own_only_member():
    network, weights = MLP(5, (), 3), {"dense0.weight": torch.zeros(5, 3), SHARED: torch.zeros(0, 5)}
    (one,) = network.single_networks
    streams = client_streams(0, ["a", "b"], 1, "t")
    assert one.network is network
    assert one.of(weights) is weights
    assert one.stream(streams) is streams
