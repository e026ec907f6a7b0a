"""Losses of one client, one number a row; every method accepts any of them."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Objective(Protocol):
    """logits (rows, classes) and y (rows,) int64 to a loss a row, in nats."""

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor: ...


def slopes(objective: Objective, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's loss (rows,), and its gradient in that row's logits (rows, outputs).

    In closed form where the objective offers one (`slopes`), which spares a fifth of a small network's step.
    """
    if hasattr(objective, "slopes"):
        closed: tuple[Tensor, Tensor] = objective.slopes(logits, y)
        return closed
    logits = logits.detach().requires_grad_()
    loss = objective(logits, y)
    return loss.detach(), torch.autograd.grad(loss.sum(), logits)[0]


@dataclass(frozen=True)
class CrossEntropy:
    """-log p(y | x)."""

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

    gamma: float = 2.0

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """(rows,) nats."""
        log_p = _log_likelihood(logits, y)
        # p = 1 would give 0 * inf in the gradient of the power for gamma < 1
        miss = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
        return -(miss**self.gamma) * log_p


def _log_likelihood(logits: Tensor, y: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
