"""Per-row losses and evaluation metrics of one client, and the batches of a training step that they are computed on.

Every method accepts any of these objectives. A batch is of one client or of a stack of clients.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from ..model_card import Task


class Objective(Protocol):
    """Maps logits (rows, classes) and y (rows,) int64 to a loss per row in nats.

    A regression objective maps predictions (rows, 1) and y (rows,) float32 to a loss in its own units.
    """

    task: ClassVar[Task]

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor: ...


class ClosedFormGradient(ABC):
    """An objective whose gradient has a closed form."""

    @abstractmethod
    def loss_and_gradient(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's loss (rows,) and the gradient with respect to its logits (rows, outputs)."""


def loss_and_gradient(objective: Objective, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Compute each row's loss and its gradient with respect to the logits.

    Uses the objective's closed form if there is one, else autograd.

    Args:
        objective: The loss of a row.
        logits: (rows, outputs).
        y: (rows,) int64, or float32 for a regression.

    Returns:
        The loss, (rows,), and the gradient, (rows, outputs).
    """
    if isinstance(objective, ClosedFormGradient):
        return objective.loss_and_gradient(logits, y)
    logits = logits.detach().requires_grad_()
    loss = objective(logits, y)
    return loss.detach(), torch.autograd.grad(loss.sum(), logits)[0]


@dataclass(frozen=True)
class CrossEntropy(ClosedFormGradient):
    """Cross-entropy, -log p(y | x)."""

    task: ClassVar[Task] = "classification"

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return (rows,) nats."""
        return -torch.log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def loss_and_gradient(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's loss, and softmax minus one-hot."""
        log_p = torch.log_softmax(logits, -1)
        label = y.unsqueeze(-1)
        loss = -log_p.gather(-1, label).squeeze(-1)
        return loss, log_p.exp_().scatter_add_(-1, label, torch.full_like(label, -1.0, dtype=log_p.dtype))


@dataclass(frozen=True)
class Focal(ClosedFormGradient):
    """Focal loss -alpha (1 - p)^gamma log p, p = p(y | x) (Lin et al. 2017, equation 5).

    With gamma 0 it is alpha times cross-entropy. `alpha` is one number, or one per class, selected by the row's label.
    It needs two or more classes: with one class, 1 - p does not exist.
    """

    task: ClassVar[Task] = "classification"
    gamma: float = 2.0
    alpha: float | tuple[float, ...] = 1.0

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return (rows,) nats."""
        log_p = torch.log_softmax(logits, -1)
        label = y.unsqueeze(-1)
        loss = -self._alpha(log_p, label) * log_p.gather(-1, label)
        if self.gamma:
            loss = loss * (self.gamma * _log_miss(log_p, label)).exp()
        return loss.squeeze(-1)

    def loss_and_gradient(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's loss, and its gradient with respect to the logits.

        The gradient is alpha (1 - p)^gamma (1 - p - gamma p log p) times (softmax of the other classes - one-hot).
        """
        log_p = torch.log_softmax(logits, -1)
        label = y.unsqueeze(-1)
        alpha, log_pt = self._alpha(log_p, label), log_p.gather(-1, label)
        if not self.gamma:  # the general form below rounds differently from cross-entropy
            loss, gradient = CrossEntropy().loss_and_gradient(logits, y)
            return alpha.squeeze(-1) * loss, alpha * gradient
        miss = _log_miss(log_p, label)
        scale = alpha * (self.gamma * miss).exp()
        factor = scale * (miss.exp() - self.gamma * log_pt.exp() * log_pt)
        return (-scale * log_pt).squeeze(-1), factor * (log_p - miss).exp_().scatter_(
            -1, label, torch.full_like(log_pt, -1.0)
        )

    def _alpha(self, log_p: Tensor, label: Tensor) -> Tensor:
        """Return each row's alpha, (rows, 1)."""
        alpha = log_p.new_tensor(self.alpha)
        return alpha[label] if alpha.ndim else alpha.expand(label.shape)


@dataclass(frozen=True)
class SquaredError:
    """Squared error (prediction - y)^2, the only regression objective."""

    task: ClassVar[Task] = "regression"

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return (rows,) squared units of y; logits: (rows, 1), the predictions."""
        return (logits.squeeze(-1) - y) ** 2


def measures(objective: Objective, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Compute the per-row evaluation metrics, (rows,): the loss and the inputs of the task's metric.

    Args:
        objective: The loss of a row, whose task decides the measures.
        logits: (rows, outputs).
        y: (rows,) int64, or float32 for a regression.

    Returns:
        `loss`, and for a classification `correct` (0/1; 0 if a logit is not finite) and `entropy` in nats; for a
        regression `squared_error`.
    """
    loss = objective(logits, y)
    if objective.task == "regression":
        return {"squared_error": SquaredError()(logits, y), "loss": loss}
    log_p = torch.log_softmax(logits, -1)
    correct = (logits.argmax(-1) == y) & torch.isfinite(logits).all(-1)
    return {"correct": correct, "loss": loss, "entropy": -(log_p.exp() * log_p).sum(-1)}


def _log_miss(log_p: Tensor, label: Tensor) -> Tensor:
    """Return log(1 - p) of each row's label class, (rows, 1).

    It sums the other classes' probabilities, because 1 - p itself is 0 where p rounds to 1.
    """
    return log_p.scatter(-1, label, -math.inf).logsumexp(-1, keepdim=True)


class ClientBatch(NamedTuple):
    """One client's padded batch: x (rows, *shape), y (rows,); `used` (rows,) is 1 for rows and 0 for padding."""

    x: Tensor
    y: Tensor
    used: Tensor
    rows: Tensor  # (), the count of used rows
    stream: Tensor  # ()

    def loss(self, objective: Objective, logits: Tensor) -> Tensor:
        """Compute the mean loss over the used rows, (); logits (rows, outputs)."""
        return self.mean(objective(logits, self.y))

    def mean(self, per_row: Tensor) -> Tensor:
        """Average per-row values (rows,) over the used rows."""
        return (per_row * self.used).sum() / self.rows.clamp_min(1)


class Batch(NamedTuple):
    """A stack's padded batch: x (clients, rows, *shape), y (clients, rows).

    `used` (clients, rows) is 1 for rows and 0 for padding.
    """

    x: Tensor
    y: Tensor
    used: Tensor
    rows: Tensor  # (clients,), the counts of used rows
    streams: Tensor  # (clients,)
    all_active: bool  # whether every client has rows left
    unpadded: bool  # whether no row is padding

    def loss(self, objective: Objective, logits: Tensor) -> Tensor:
        """Compute each client's mean loss over its used rows, (clients,); logits (clients, rows, outputs)."""
        return self.mean(objective(logits.flatten(0, 1), self.y.flatten()).view(self.y.shape))

    def mean(self, per_row: Tensor) -> Tensor:
        """Average per-row values (clients, rows) over each client's used rows, (clients,)."""
        return (per_row * self.used).sum(1) / self.rows.clamp_min(1)

    @property
    def each(self) -> ClientBatch:
        """Return the same batch as a ClientBatch, where every field has a leading client axis to map over."""
        return ClientBatch(self.x, self.y, self.used, self.rows, self.streams)
