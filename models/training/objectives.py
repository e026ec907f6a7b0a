"""Losses of one client, one number a row; every method accepts any of them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..assessment.quantities import Task


class Objective(Protocol):
    """logits (rows, classes) and y (rows,) int64 to a loss a row, in nats.

    Of a regression: predictions (rows, 1) and y (rows,) float32, to a loss in units of its own.
    """

    task: ClassVar[Task]

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor: ...


class Sloped(ABC):
    """An objective whose gradient has a closed form."""

    @abstractmethod
    def slopes(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each row (rows,), and its gradient in that row's logits (rows, outputs)."""


def slopes(objective: Objective, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's loss (rows,), and its gradient in that row's logits (rows, outputs).

    In closed form where the objective offers one, else by autograd.
    """
    if isinstance(objective, Sloped):
        return objective.slopes(logits, y)
    logits = logits.detach().requires_grad_()
    loss = objective(logits, y)
    return loss.detach(), torch.autograd.grad(loss.sum(), logits)[0]


@dataclass(frozen=True)
class CrossEntropy(Sloped):
    """-log p(y | x)."""

    task: ClassVar[Task] = "classification"

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """(rows,) nats."""
        return -_log_likelihood(logits, y)

    def slopes(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each row, and softmax less one-hot."""
        log_p = torch.log_softmax(logits, -1)
        at = y.unsqueeze(-1)
        loss = -log_p.gather(-1, at).squeeze(-1)
        return loss, log_p.exp_().scatter_add_(-1, at, torch.full_like(at, -1.0, dtype=log_p.dtype))


@dataclass(frozen=True)
class Focal:
    """-(1 - p)^gamma log p, p = p(y | x) (Lin et al. 2017, equation 4); gamma 0 is cross-entropy."""

    task: ClassVar[Task] = "classification"
    gamma: float = 2.0

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """(rows,) nats."""
        log_p = _log_likelihood(logits, y)
        # p = 1 would give 0 * inf in the gradient of the power for gamma < 1
        miss = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
        return -(miss**self.gamma) * log_p


@dataclass(frozen=True)
class SquaredError:
    """(prediction - y)^2, the one objective of a regression."""

    task: ClassVar[Task] = "regression"

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """(rows,) squared units of y; logits: (rows, 1), the predictions."""
        return (logits.squeeze(-1) - y) ** 2


def measures(objective: Objective, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What evaluation takes down of each row, (rows,): the loss, and what the task's quantity is made of.

    Of a classification `correct` (0/1; numbers that are not finite are wrong) and `entropy` in nats, of a regression
    `squared_error`.
    """
    loss = objective(logits, y)
    if objective.task == "regression":
        return {"squared_error": SquaredError()(logits, y), "loss": loss}
    log_p = torch.log_softmax(logits, -1)
    correct = (logits.argmax(-1) == y) & torch.isfinite(logits).all(-1)
    return {"correct": correct, "loss": loss, "entropy": -(log_p.exp() * log_p).sum(-1)}


def _log_likelihood(logits: Tensor, y: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
