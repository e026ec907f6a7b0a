"""Rows mixed with an offset: the plain network at mix 0, plain PyTorch's steps, and no client's offset in another's."""

import json
from dataclasses import fields, replace

import pytest
import torch

from models.metrics.uncertainty import predictive
from models.networks.mlp import MLP
from models.networks.network_factory import from_json, to_json
from models.networks.wrappers.distrans_network import OFFSET, OffsetNetwork
from models.training.engine import Training, per_example_metrics, train
from models.training.objectives import CrossEntropy
from models.training.optimizers import SGD, Adam

SHAPE = (8, 8)


def plan(optimiser, engine="batched", epochs=2, batch=4) -> Training:
    return Training(CrossEntropy(), optimiser, epochs, batch, engine)


def halves_added(network, weights):
    """The plain network's weights: W1 + W2."""
    last = f"{network.head}.weight"
    first, second = weights[last].chunk(2, 1)
    return {**{n: w for n, w in weights.items() if n != OFFSET}, last: first + second}


def with_rates(network, rates):
    """The same network, some of whose weights have a learning rate of their own."""
    kind = type("Paced", (type(network),), {"lr_multipliers": rates})
    return kind(**{f.name: getattr(network, f.name) for f in fields(network)})


def test_at_mix_0_the_logits_are_the_plain_networks_whatever_the_offset(inner, images):
    network = OffsetNetwork(inner, SHAPE, mix=0)
    weights, rows, _ = images(network)
    weights[OFFSET] = weights[OFFSET] * 100
    expected = inner.apply_stack(halves_added(network, weights), {}, rows.x, None)
    torch.testing.assert_close(network.apply_stack(weights, {}, rows.x, None), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimiser", [SGD(0.1), SGD(0.05, 0.9)])
def test_at_mix_0_it_learns_as_the_plain_network_whose_last_layer_learns_twice_as_fast(optimiser, inner, images):
    """Each half gets the full gradient, and their sum moves by both."""
    network = OffsetNetwork(inner, SHAPE, mix=0)
    weights, rows, streams = images(network)
    trained, loss, _ = train(network, weights, {}, rows, plan(optimiser), streams)
    plain = with_rates(inner, {f"{network.head}.weight": 2.0})
    expected, its, _ = train(plain, halves_added(network, weights), {}, rows, plan(optimiser, "sequential"), streams)
    torch.testing.assert_close(loss, its, rtol=0, atol=1e-9)
    for name, w in halves_added(network, trained).items():
        if not name.endswith(".variance"):  # twice the rows, so another correction for their number
            torch.testing.assert_close(w, expected[name], rtol=0, atol=1e-9, msg=name)


def test_the_two_mixes_of_a_row_are_the_papers_and_their_mean_is_the_row(images):
    network = OffsetNetwork(MLP(64, (), 3), SHAPE, mix=0.3)
    weights, rows, _ = images(network)
    first, second = network.encode_stack(weights, {}, rows.x)[0].unflatten(2, SHAPE).squeeze(-1).chunk(2, 1)
    torch.testing.assert_close(first, 0.7 * rows.x + 0.3 * weights[OFFSET][:, None])
    torch.testing.assert_close(second, 1.3 * rows.x - 0.3 * weights[OFFSET][:, None])
    torch.testing.assert_close((first + second) / 2, rows.x)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1, 0.9), lambda params, rate: torch.optim.SGD(params, 0.1 * rate, 0.9)),
        (Adam(0.01), lambda params, rate: torch.optim.Adam(params, 0.01 * rate)),
    ],
)
def test_steps_are_those_of_plain_pytorch_with_two_optimisers(ours, theirs, images):
    network = OffsetNetwork(MLP(64, (5,), 3), SHAPE, mix=0.2, offset_rate=0.3)
    weights, rows, streams = images(network, counts=(6,))
    body, head = torch.nn.Linear(64, 5).double(), torch.nn.Linear(10, 3).double()
    for at, layer in enumerate((body, head)):
        state = {"weight": weights[f"dense{at}.weight"][0].T, "bias": weights[f"dense{at}.bias"][0]}
        layer.load_state_dict(state)
    offset = weights[OFFSET][0].clone().requires_grad_()
    steps = [theirs([*body.parameters(), *head.parameters()], 1), theirs([offset], 0.3)]
    for _ in range(4):
        mixes = [(1 - a) * rows.x[0] + a * offset for a in (0.2, -0.2)]
        both = torch.cat([torch.relu(body(x.flatten(1))) for x in mixes], 1)
        loss = torch.nn.functional.cross_entropy(head(both), rows.y[0])
        for step in steps:
            step.zero_grad()
        loss.backward()
        for step in steps:
            step.step()
    trained, *_ = train(network, weights, {}, rows, plan(ours, epochs=4, batch=6), streams)
    torch.testing.assert_close(trained[OFFSET][0], offset.detach(), rtol=0, atol=1e-6)  # Adam's 1 - beta is rounded
    torch.testing.assert_close(trained["dense1.weight"][0].T, head.weight.detach(), rtol=0, atol=1e-6)
    assert not torch.equal(trained[OFFSET], weights[OFFSET])


def test_with_offset_rate_0_the_offset_stays_to_the_bit_and_the_rest_learns(inner, images):
    network = OffsetNetwork(inner, SHAPE, offset_rate=0)
    weights, rows, streams = images(network)
    trained, *_ = train(network, weights, {}, rows, plan(Adam(0.01)), streams)
    assert torch.equal(trained[OFFSET], weights[OFFSET])
    assert not torch.equal(trained[f"{network.head}.weight"], weights[f"{network.head}.weight"])


def test_no_client_reads_another_clients_offset(inner, images):
    network = OffsetNetwork(inner, SHAPE)
    weights, rows, streams = images(network)
    expected, *_ = train(network, weights, {}, rows, plan(SGD(0.1)), streams)
    for client in range(3):
        poisoned = weights[OFFSET].clone()
        poisoned[torch.arange(3) != client] = torch.nan
        found, *_ = train(network, {**weights, OFFSET: poisoned}, {}, rows, plan(SGD(0.1)), streams)
        assert all(torch.equal(found[name][client], w[client]) for name, w in expected.items())


def test_a_stack_learns_what_each_client_learns_alone(inner, images):
    network = OffsetNetwork(replace(inner, dropout=0.3), SHAPE)
    weights, rows, streams = images(network)
    found, reference = (train(network, weights, {}, rows, plan(Adam(0.01), kind), streams)[0] for kind in KINDS)
    for name, w in reference.items():
        torch.testing.assert_close(found[name], w, rtol=0, atol=1e-8, msg=name)
    scored = [per_example_metrics(network, reference, {}, rows, CrossEntropy(), kind)["loss"] for kind in KINDS]
    torch.testing.assert_close(scored[0], scored[1], rtol=0, atol=1e-8)


def test_the_passes_of_dropout_share_what_is_before_it(inner, images):
    network = OffsetNetwork(replace(inner, dropout=0.3), SHAPE)
    weights, rows, streams = images(network)
    found = [predictive(network, weights, {}, rows.x, streams, 3, kind).p for kind in KINDS]
    assert found[0].shape == (3, 7, 3)
    torch.testing.assert_close(found[0], found[1])


def test_it_comes_back_from_its_json(inner):
    network = OffsetNetwork(inner, SHAPE, 0.3)
    assert from_json(json.loads(json.dumps(to_json(network)))) == network


KINDS = ("batched", "sequential")
