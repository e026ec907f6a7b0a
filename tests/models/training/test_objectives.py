"""Objectives against torch's own, and against the formula by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.training.objectives import CrossEntropy, Focal, SquaredError, loss_and_gradient, measures
from silos.sources.torchvision_datasets import torchvision

LOGITS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
LABELS = torch.arange(40) % 6


def test_cross_entropy_is_torchs():
    ours = CrossEntropy()(LOGITS, LABELS)
    torch.testing.assert_close(ours, torch.nn.functional.cross_entropy(LOGITS, LABELS, reduction="none"))


GAMMAS = [0.0, 0.5, 1.0, 2.0, 5.0]
ALPHAS = [1.0, 0.25, (0.2, 1.0, 0.0, 3.0, 0.5, 1.5)]


def by_autograd(objective, logits, y):
    """Its losses, and the gradient of their sum."""
    leaves = logits.clone().requires_grad_()
    loss = objective(leaves, y)
    return loss.detach(), torch.autograd.grad(loss.sum(), leaves)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_focal_with_gamma_0_and_alpha_1_is_cross_entropy_to_the_bit_its_gradient_too(dtype):
    logits = LOGITS.to(dtype)
    for of in (by_autograd, loss_and_gradient):
        for ours, theirs in zip(of(Focal(0.0), logits, LABELS), of(CrossEntropy(), logits, LABELS), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("of", [by_autograd, loss_and_gradient])
def test_focal_with_gamma_0_and_a_vector_is_torchs_weighted_cross_entropy_summed_over_rows(of):
    alpha = ALPHAS[-1]

    def torchs(logits, y):
        return torch.nn.functional.cross_entropy(logits, y, torch.tensor(alpha, dtype=logits.dtype), reduction="none")

    for ours, theirs in zip(of(Focal(0.0, alpha), LOGITS, LABELS), by_autograd(torchs, LOGITS, LABELS), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("alpha", [0.25, -1])
def test_of_two_classes_with_logits_0_and_x_focal_is_torchvisions(gamma, alpha):
    """Their alpha of -1 is no weight at all."""
    x, y = LOGITS[:, 0], LABELS % 2
    two = torch.stack([torch.zeros_like(x), x], 1)
    ours = Focal(gamma, 1.0 if alpha < 0 else (1 - alpha, alpha))
    theirs = torchvision().ops.sigmoid_focal_loss

    def binary(x, y):
        return theirs(x, y.to(x.dtype), alpha=alpha, gamma=gamma)

    loss, slope = by_autograd(binary, x, y)
    for of in (by_autograd, loss_and_gradient):
        found, gradient = of(ours, two, y)
        torch.testing.assert_close(found, loss, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(gradient, torch.stack([-slope, slope], 1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_closed_slope_of_focal_is_its_autograd_gradient_and_the_papers_formula(gamma, alpha):
    focal = Focal(gamma, alpha)
    loss, slope = loss_and_gradient(focal, LOGITS, LABELS)
    expected = by_autograd(focal, LOGITS, LABELS)
    torch.testing.assert_close(loss, expected[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(slope, expected[1], rtol=1e-9, atol=1e-12)
    p = torch.softmax(LOGITS, -1)
    own = p.gather(1, LABELS[:, None])
    factor = (1 - own) ** (gamma - 1) * (gamma * own * own.log() - (1 - own))
    weight = torch.tensor(alpha, dtype=p.dtype).expand(6)[LABELS][:, None]
    by_hand = weight * factor * (torch.nn.functional.one_hot(LABELS, 6) - p)
    torch.testing.assert_close(slope, by_hand, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_finite_differences_agree_with_the_gradient_of_focal_and_with_its_own_gradient(gamma, alpha):
    logits = LOGITS[:12].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: Focal(gamma, alpha)(z, LABELS[:12]), logits)
    assert torch.autograd.gradgradcheck(lambda z: Focal(gamma, alpha)(z, LABELS[:12]), logits)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=6), st.floats(0, 5), st.floats(0.01, 5))
def test_focal_falls_as_gamma_grows(logits, gamma, more):
    z, y = torch.tensor([logits], dtype=torch.float64), torch.tensor([0])
    assert float(Focal(gamma + more)(z, y)) <= float(Focal(gamma)(z, y)) * (1 + 1e-12)


@given(st.floats(0.01, 0.99), st.floats(0, 5))
def test_focal_is_the_formula_by_hand_on_two_classes(p, gamma):
    logits = torch.tensor([[math.log(p), math.log(1 - p)]], dtype=torch.float64)
    by_hand = -((1 - p) ** gamma) * math.log(p)
    assert float(Focal(gamma)(logits, torch.tensor([0]))) == pytest.approx(by_hand, rel=1e-9, abs=1e-12)


def test_focal_is_the_binary_loss_written_with_sigmoids():
    """Lin et al.'s own binary form: a sigmoid's two outcomes are a softmax over (0, z)."""
    z = torch.linspace(-6, 6, 25, dtype=torch.float64)
    for y in (0, 1):
        p = torch.sigmoid(z) if y else torch.sigmoid(-z)
        two = torch.stack([torch.zeros_like(z), z], 1)
        torch.testing.assert_close(Focal(2.0)(two, torch.full((25,), y)), -((1 - p) ** 2) * p.log())


@pytest.mark.parametrize("of", [by_autograd, loss_and_gradient])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_losses_and_gradients_are_finite_for_certain_and_for_hopeless_logits(gamma, of):
    """In float32, where 1 - p is 0 and p is 0."""
    ten, y = 1e4, torch.zeros(4, dtype=torch.int64)
    logits = torch.tensor([[ten, -ten, 0.0], [-ten, ten, 0.0], [0.0, 0.0, 0.0], [ten, ten, ten]])
    loss, slope = of(Focal(gamma), logits, y)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(slope).all()
    assert loss.tolist() == pytest.approx([0, 2 * ten, *[(2 / 3) ** gamma * math.log(3)] * 2])
    assert slope[0].tolist() == [0, 0, 0]
    assert slope[1].tolist() == pytest.approx([-1, 1, 0])


@pytest.mark.parametrize("objective", [CrossEntropy(), Focal(2.0), Focal(2.0, ALPHAS[-1]), Focal(0.0, 0.5)])
def test_an_objective_is_the_same_inside_vmap(objective):
    x, y = LOGITS.reshape(4, 10, 6), LABELS.reshape(4, 10)
    alone = torch.stack([objective(a, b) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(torch.func.vmap(objective)(x, y), alone)


def test_squared_error_is_torchs_also_inside_vmap():
    predictions, y = LOGITS[:, :1], LOGITS[:, 1]
    expected = torch.nn.functional.mse_loss(predictions[:, 0], y, reduction="none")
    torch.testing.assert_close(SquaredError()(predictions, y), expected)
    mapped = torch.func.vmap(SquaredError())(predictions.reshape(4, 10, 1), y.reshape(4, 10))
    torch.testing.assert_close(mapped.ravel(), expected)


@pytest.mark.parametrize("objective", [CrossEntropy(), Focal(2.0)])
def test_of_a_classification_right_answers_and_entropy_are_taken_down(objective):
    found = measures(objective, LOGITS, LABELS)
    assert set(found) == {"correct", "loss", "entropy"}
    assert torch.equal(found["correct"], LOGITS.argmax(-1) == LABELS)


def test_of_a_regression_the_squared_error_is_taken_down_and_nothing_of_classes():
    found = measures(SquaredError(), LOGITS[:, :1], LOGITS[:, 1])
    assert set(found) == {"squared_error", "loss"}
    torch.testing.assert_close(found["squared_error"], (LOGITS[:, 0] - LOGITS[:, 1]) ** 2)
