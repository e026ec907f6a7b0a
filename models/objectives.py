"""Losses of one client, one number a row; every method accepts any of them."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Objective(Protocol):
    """logits (rows, classes) and y (rows,) int64 to a loss a row, in nats."""

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class CrossEntropy:
    """-log p(y | x)."""

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """(rows,) nats."""
        return -_log_likelihood(logits, y)


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
