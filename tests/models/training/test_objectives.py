"""Objectives against torch's own, and against the formula by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.training.objectives import CrossEntropy, Focal, SquaredError, measures

LOGITS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
LABELS = torch.arange(40) % 6


def test_cross_entropy_is_torchs():
    ours = CrossEntropy()(LOGITS, LABELS)
    torch.testing.assert_close(ours, torch.nn.functional.cross_entropy(LOGITS, LABELS, reduction="none"))


def test_focal_with_gamma_0_is_cross_entropy():
    torch.testing.assert_close(Focal(0.0)(LOGITS, LABELS), CrossEntropy()(LOGITS, LABELS))


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


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_losses_and_gradients_are_finite_for_certain_and_for_hopeless_logits(gamma):
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0], [0.0, 0.0]], requires_grad=True)
    loss = Focal(gamma)(logits, torch.zeros(3, dtype=torch.int64))
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(logits.grad).all()
    assert float(loss[0].detach()) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("objective", [CrossEntropy(), Focal(2.0)])
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
