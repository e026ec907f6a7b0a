"""The proposition of the paper's appendix: given each client's least squares, W = I has nothing left to learn.

The loss is L = 1/2 sum_i sum_j (x_ij W mu_i - y_ij)^2 over clients i and rows j, with x = [features, 1]. What it says is
that conditioning on least squares is local regression; so it is no better than local regression either.
"""

import pytest
import torch
from torch import Tensor

from models.statistics.feature_vector import compute, make

CLIENTS, ROWS, FEATURES = 5, 30, 4
IDENTITY = torch.eye(FEATURES + 1, dtype=torch.float64)


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    """x: (clients, rows, features + 1) with a last column of ones; y: (clients, rows), of a law of its own each."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, ROWS, FEATURES, generator=draw, dtype=torch.float64)
    x = torch.cat([x, torch.ones(CLIENTS, ROWS, 1, dtype=torch.float64)], 2)
    laws = 10 * torch.rand(CLIENTS, FEATURES + 1, generator=draw, dtype=torch.float64) - 5
    noise = torch.randn(CLIENTS, ROWS, generator=draw, dtype=torch.float64)
    return x, torch.einsum("ijd,id->ij", x, laws) + noise


@pytest.fixture
def least_squares(data) -> Tensor:
    """(clients, features + 1)"""
    return described("least_squares", *data)


def test_the_loss_has_no_slope_in_the_weights_nor_in_any_clients_statistics(data, least_squares):
    for gradient in gradients(IDENTITY, least_squares, *data):
        assert gradient.abs().max() < 1e-8 * scale(*data)


def test_it_is_not_the_only_solution(data, least_squares):
    """For every invertible A, W = A with mu = A^-1 least squares predicts the same, and has no slope either."""
    expected = predictions(IDENTITY, least_squares, data[0])
    for seed in range(5):
        a = torch.randn(FEATURES + 1, FEATURES + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        other = torch.linalg.solve(a, least_squares.T).T
        torch.testing.assert_close(predictions(a, other, data[0]), expected, rtol=1e-8, atol=1e-8)
        assert (other - least_squares).abs().max() > 0.1
        largest = max(1.0, float(a.abs().max()), float(other.abs().max()))
        assert all(g.abs().max() < 1e-8 * scale(*data) * largest for g in gradients(a, other, *data))


def test_its_predictions_are_each_clients_own_regression(data, least_squares):
    x, y = data
    fitted = torch.linalg.lstsq(x, y[..., None]).solution
    torch.testing.assert_close(predictions(IDENTITY, least_squares, x), (x @ fitted)[..., 0], rtol=0, atol=1e-8)


def test_no_other_weights_have_a_lower_training_loss(data, least_squares):
    lowest = loss(IDENTITY, least_squares, *data)
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        step = torch.randn(IDENTITY.shape, generator=draw, dtype=torch.float64) * 10.0 ** -(seed % 5)
        assert loss(IDENTITY + step, least_squares, *data) > lowest


def test_of_other_statistics_it_is_not_true(data):
    """A guard: with cov(x, y) for statistics there is a slope."""
    covariance = described("covariance_xy", *data)
    covariance = torch.cat([covariance, torch.ones(CLIENTS, 1, dtype=torch.float64)], 1)
    for gradient in gradients(IDENTITY, covariance, *data):
        assert gradient.abs().max() > 1e-3 * scale(*data)


def described(kind: str, x: Tensor, y: Tensor) -> Tensor:
    """The statistic of each client, without the column of ones: (clients, length)."""
    return torch.stack([compute([make({"kind": kind})], rows[:, :-1], y[i], 0).vector for i, rows in enumerate(x)])


def predictions(weights: Tensor, statistics: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("ijd,de,ie->ij", x, weights, statistics)


def loss(weights: Tensor, statistics: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return ((predictions(weights, statistics, x) - y) ** 2).sum() / 2


def gradients(weights: Tensor, statistics: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    weights, statistics = weights.clone().requires_grad_(), statistics.clone().requires_grad_()
    return torch.autograd.grad(loss(weights, statistics, x, y), (weights, statistics))


def scale(x: Tensor, y: Tensor) -> float:
    """The size of the sums in a gradient."""
    return float(torch.einsum("ijd,ij->id", x.abs(), y.abs()).max())
