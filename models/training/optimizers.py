"""Elementwise optimisers on stacked weights, which serve one client or a stack.

A client without batches left is frozen, weights and optimiser state alike, so stacking gives exact results.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..server_state import Weights

OptimiserState = Mapping[str, Tensor]

PARAMETER_BYTES = 16  # at most, in training: weight, gradient and two optimiser tensors in float32


class Optimizer(Protocol):
    """Updates stacked weights from stacked gradients, both (clients, ...)."""

    def init(self, weights: Weights, clients: int) -> OptimiserState:
        """Return the state before the first step."""

    def step(self, weights: Weights, grads: Weights, state: OptimiserState) -> tuple[dict[str, Tensor], OptimiserState]:
        """Take one step.

        Args:
            weights: Names to (clients, ...).
            grads: Gradients of the same names and shapes.
            state: The state before the step.

        Returns:
            The weights and the state after the step.
        """


@dataclass(frozen=True)
class SGD:
    """Updates v = momentum v + g + decay w, then w = w - lr v, as torch.optim.SGD without dampening."""

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def init(self, weights: Weights, clients: int) -> OptimiserState:
        """Return zero velocities, or none without momentum."""
        return {name: torch.zeros_like(w) for name, w in weights.items()} if self.momentum else {}

    def step(self, weights: Weights, grads: Weights, state: OptimiserState) -> tuple[dict[str, Tensor], OptimiserState]:
        """Take one step."""
        new, velocities = {}, {}
        for name, w in weights.items():
            g = grads[name] + self.weight_decay * w if self.weight_decay else grads[name]
            if self.momentum:
                g = velocities[name] = self.momentum * state[name] + g
            new[name] = w - self.learning_rate * g
        return new, velocities


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015); with `decoupled` the decay acts on the weights (AdamW, Loshchilov and Hutter 2019)."""

    learning_rate: float
    weight_decay: float = 0.0
    decoupled: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def init(self, weights: Weights, clients: int) -> OptimiserState:
        """Return zero moments of every weight, and each client's step count."""
        device = next(iter(weights.values())).device
        state = {f"{m}:{name}": torch.zeros_like(w) for name, w in weights.items() for m in ("mean", "square")}
        return {**state, "steps": torch.zeros(clients, device=device)}

    def step(self, weights: Weights, grads: Weights, state: OptimiserState) -> tuple[dict[str, Tensor], OptimiserState]:
        """Take one step."""
        steps = state["steps"] + 1
        new, moments = {}, {"steps": steps}
        for name, w in weights.items():
            g = grads[name]
            if self.weight_decay and not self.decoupled:
                g = g + self.weight_decay * w
            mean = moments[f"mean:{name}"] = state[f"mean:{name}"].lerp(g, 1 - self.beta1)
            square = moments[f"square:{name}"] = state[f"square:{name}"].lerp(g * g, 1 - self.beta2)
            count = expand_clients(steps, w)
            denominator = (square / _bias_correction(self.beta2, count)).sqrt() + self.epsilon
            decayed = w * (1 - self.learning_rate * self.weight_decay) if self.decoupled else w
            new[name] = decayed - self.learning_rate / _bias_correction(self.beta1, count) * mean / denominator
        return new, moments


def _bias_correction(beta: float, count: Tensor) -> Tensor:
    """Return 1 - beta^count to float32's last digits; direct subtraction loses four digits in the first steps."""
    return -torch.expm1(count * math.log(beta))


def expand_clients(per_client: Tensor, like: Tensor) -> Tensor:
    """Reshape (clients,) to broadcast against (clients, ...)."""
    return per_client.view(-1, *[1] * (like.dim() - 1))


def freeze(active: Tensor, new: Weights, old: Weights) -> dict[str, Tensor]:
    """Select new tensors for active clients and old tensors for the others.

    Args:
        active: (clients,) bool.
        new: Names to (clients, ...).
        old: At least the names of `new`, with the same shapes.
    """
    return {name: torch.where(expand_clients(active, t), t, old[name]) for name, t in new.items()}
