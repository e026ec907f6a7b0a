"""Losses of one client, one number a row; every method accepts any of them."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..metrics.task_metrics import Task


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
class Focal(Sloped):
    """-alpha (1 - p)^gamma log p, p = p(y | x) (Lin et al. 2017, equation 5); gamma 0 is cross-entropy times alpha.

    `alpha` is one number, or one for each class, which a row takes by its label. Of two classes or more: of a single one
    there is no 1 - p.
    """

    task: ClassVar[Task] = "classification"
    gamma: float = 2.0
    alpha: float | tuple[float, ...] = 1.0

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """(rows,) nats."""
        log_p = torch.log_softmax(logits, -1)
        at = y.unsqueeze(-1)
        loss = -self._alpha(log_p, at) * log_p.gather(-1, at)
        if self.gamma:
            loss = loss * (self.gamma * _log_miss(log_p, at)).exp()
        return loss.squeeze(-1)

    def slopes(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and alpha (1 - p)^gamma (1 - p - gamma p log p) times the other classes' softmax less one-hot."""
        log_p = torch.log_softmax(logits, -1)
        at = y.unsqueeze(-1)
        alpha, own = self._alpha(log_p, at), log_p.gather(-1, at)
        if not self.gamma:  # the bits of cross-entropy, which the others' softmax times 1 - p rounds away from
            loss, slope = CrossEntropy().slopes(logits, y)
            return alpha.squeeze(-1) * loss, alpha * slope
        miss = _log_miss(log_p, at)
        scale = alpha * (self.gamma * miss).exp()
        pull = scale * (miss.exp() - self.gamma * own.exp() * own)
        return (-scale * own).squeeze(-1), pull * (log_p - miss).exp_().scatter_(-1, at, torch.full_like(own, -1.0))

    def _alpha(self, log_p: Tensor, at: Tensor) -> Tensor:
        """Each row's, (rows, 1)."""
        alpha = log_p.new_tensor(self.alpha)
        return alpha[at] if alpha.ndim else alpha.expand(at.shape)


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


def _log_miss(log_p: Tensor, at: Tensor) -> Tensor:
    """log(1 - p) of the class at each place, (rows, 1), from the others: 1 - p itself is 0 where p rounds to 1."""
    return log_p.scatter(-1, at, -math.inf).logsumexp(-1, keepdim=True)
