"""Statistics that never leave are in the updates all the same: a server that sees one client's update reads them off."""

import pytest
import torch

from models.statistics.feature_vector import compute, make

ROWS, FEATURES, EXPERTS = 40, 6, 3


@pytest.fixture
def client():
    """x, y and their statistics, float64."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, FEATURES, generator=draw, dtype=torch.float64)
    y = x @ torch.randn(FEATURES, generator=draw, dtype=torch.float64)
    return x, y, compute([make({"kind": "covariance_xy"})], x, y, 0).vector


def ensemble(x, statistics, gate, gate_bias, experts):
    """sum_e (x V)_e softmax(mu U + b)_e"""
    return (x @ experts * torch.softmax(statistics @ gate + gate_bias, -1)).sum(-1)


def test_the_server_recovers_the_statistics_from_the_gates_of_an_ensemble(client):
    """The change of U is mu aᵀ and that of b is a, after any number of plain steps."""
    x, y, statistics = client
    draw = torch.Generator().manual_seed(1)
    shapes = ((FEATURES, EXPERTS), (EXPERTS,), (FEATURES, EXPERTS))
    start = [0.1 * torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    weights = start
    for _ in range(5):
        weights = [w.detach().requires_grad_() for w in weights]
        loss = ((ensemble(x, statistics, *weights) - y) ** 2).mean()
        weights = [w - 0.05 * g for w, g in zip(weights, torch.autograd.grad(loss, weights), strict=True)]
    gate, bias = (new.detach() - old for new, old in zip(weights[:2], start[:2], strict=True))
    recovered = gate[:, bias.abs().argmax()] / bias[bias.abs().argmax()]
    torch.testing.assert_close(recovered, statistics, rtol=1e-10, atol=1e-10)


def test_one_step_of_the_linear_model_tells_the_statistics_up_to_a_factor(client):
    """The gradient of W in x W mu is g muᵀ."""
    x, y, statistics = client
    weights = torch.zeros(FEATURES, FEATURES, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(((x @ weights @ statistics - y) ** 2).mean(), weights)
    row = gradient[gradient.norm(dim=1).argmax()]
    assert torch.cosine_similarity(row, statistics, 0).abs() == pytest.approx(1.0, abs=1e-12)
