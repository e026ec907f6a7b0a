"""The last layer's gradient in closed form, and its distance from a target, against autograd through autograd."""

from dataclasses import replace

import pytest
import torch

from models.networks.cnn import CNN
from models.networks.mlp import MLP
from models.networks.resnet_vgg import Residual
from models.networks.wrappers import domain_generalisation
from models.networks.wrappers.domain_generalisation import GradientMatching, gradients
from models.training.engine import Rows, Training, train
from models.training.objectives import CrossEntropy, Focal, SquaredError
from models.training.optimizers import SGD, Adam

OBJECTIVES = {"cross-entropy": CrossEntropy(), "focal": Focal(2.0), "squared error": SquaredError()}
NETWORKS = {
    "linear": lambda outputs: MLP(64, (), outputs),
    "mlp": lambda outputs: MLP(64, (8, 6), outputs, 0.3),
    "cnn": lambda outputs: CNN((8, 8), (3,), (6,), outputs, kernel=3, padding=True, dropout=0.3),
    "residual": lambda outputs: Residual((8, 8), outputs, (6,), 0.3, True, (4,)),
}


def plan(optimiser, engine="batched", batch=4) -> Training:
    return Training(CrossEntropy(), optimiser, 2, batch, engine)


def target_of(network, weights, scale=0.1):
    draw = torch.Generator().manual_seed(5)
    return {n: scale * torch.randn(weights[n].shape, generator=draw, dtype=weights[n].dtype) for n in network.parts}


def mean_losses(network, weights, batch, objective):
    """Each client's mean loss as training sees it, by the plain network."""
    return network.cost_stack(weights, {}, batch, objective)[0]


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_the_penalty_and_its_gradient_are_those_of_autograd_through_autograd(make, objective, images, batch_of):
    regression = objective.task == "regression"
    inner = make(1 if regression else 3)
    network = GradientMatching(inner, penalty=0.7)
    weights, rows, streams = images(network)
    rows = Rows(rows.x, rows.y.double() if regression else rows.y, rows.counts)
    batch, target = batch_of(rows, streams), target_of(network, weights)
    leaves = {n: w.requires_grad_(n not in network.buffers) for n, w in weights.items()}
    trained = [w for n, w in leaves.items() if n not in network.buffers]
    cost, _ = network.cost_stack(leaves, target, batch, objective)
    found = torch.autograd.grad(cost.sum(), trained)
    losses = mean_losses(inner, leaves, batch, objective)
    inside = torch.autograd.grad(losses.sum(), [leaves[n] for n in network.parts], create_graph=True)
    apart = sum(((g - t) ** 2).flatten(1).sum(1) for g, t in zip(inside, target.values(), strict=True))
    expected = losses + 0.7 * apart
    torch.testing.assert_close(cost, expected)
    for ours, theirs in zip(found, torch.autograd.grad(expected.sum(), trained), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)


def test_where_the_target_is_the_batchs_own_gradient_the_penalty_and_its_gradient_are_0(inner, images, batch_of):
    network = GradientMatching(inner, penalty=100.0)
    weights, rows, streams = images(network)
    batch = batch_of(rows, streams)
    leaves = {n: w.requires_grad_(n not in network.buffers) for n, w in weights.items()}
    trained = [w for n, w in leaves.items() if n not in network.buffers]
    losses = mean_losses(inner, leaves, batch, CrossEntropy())
    plain = torch.autograd.grad(losses.sum(), trained, retain_graph=True)
    own = torch.autograd.grad(losses.sum(), [leaves[n] for n in network.parts])
    cost, _ = network.cost_stack(leaves, dict(zip(network.parts, own, strict=True)), batch, CrossEntropy())
    torch.testing.assert_close(cost, losses)
    for ours, theirs in zip(torch.autograd.grad(cost.sum(), trained), plain, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_gradients_are_sums_over_a_clients_rows_by_autograd_and_in_pieces(objective, engine, images, monkeypatch):
    regression = objective.task == "regression"
    network = GradientMatching(NETWORKS["residual"](1 if regression else 3))
    weights, rows, _ = images(network, counts=(150, 0, 70))
    rows = Rows(rows.x, rows.y.double() if regression else rows.y, rows.counts)
    monkeypatch.setattr(domain_generalisation, "_VALUES_PER_CHUNK", 1)
    found = gradients(network, weights, {}, rows, objective, engine)
    leaves = {n: w.clone().requires_grad_(n in network.parts) for n, w in weights.items()}
    logits = network.inner.apply_stack(leaves, {}, rows.x, None)
    used = torch.arange(150) < rows.counts[:, None]
    total = (objective(logits.flatten(0, 1), rows.y.flatten()).view(used.shape) * used).sum()
    for name, expected in zip(
        network.parts, torch.autograd.grad(total, [leaves[n] for n in network.parts]), strict=True
    ):
        torch.testing.assert_close(found[name], expected)
        assert not found[name][1].any()


def test_with_penalty_0_it_learns_as_the_inner_network_bit_for_bit(inner, images):
    network = GradientMatching(inner, penalty=0)
    weights, rows, streams = images(network, dtype=torch.float32)
    for optimiser in (SGD(0.1, 0.9), Adam(0.01)):
        ours, *_ = train(network, weights, target_of(network, weights), rows, plan(optimiser), streams)
        theirs, *_ = train(inner, weights, {}, rows, plan(optimiser), streams)
        assert all(torch.equal(ours[name], w) for name, w in theirs.items())


def test_a_stack_learns_what_each_client_learns_alone(inner, images):
    network = GradientMatching(replace(inner, dropout=0.3), penalty=0.5)
    weights, rows, streams = images(network)
    target = target_of(network, weights)
    kinds = ("batched", "sequential")
    found, reference = (train(network, weights, target, rows, plan(Adam(0.01), kind), streams)[0] for kind in kinds)
    for name, w in reference.items():
        torch.testing.assert_close(found[name], w, rtol=0, atol=1e-8, msg=name)
