"""Optimisers on stacked weights: elementwise, so one text serves one client or a stack.

A client that has run out of batches is frozen, weights and optimiser state alike: that is exact, not an approximation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..server_state import Weights

OptimiserState = Mapping[str, Tensor]

PARAMETER_BYTES = 16  # in training, at most: weight, gradient and two of an optimiser, in float32


class Optimizer(Protocol):
    """Stacked weights and gradients, both (clients, ...), to stacked weights."""

    def init(self, weights: Weights, clients: int) -> OptimiserState:
        """State before the first step."""

    def step(self, weights: Weights, grads: Weights, state: OptimiserState) -> tuple[dict[str, Tensor], OptimiserState]:
        """One step for every client of the stack."""


@dataclass(frozen=True)
class SGD:
    """v = momentum v + g + decay w; w = w - lr v, as torch.optim.SGD without dampening."""

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def init(self, weights: Weights, clients: int) -> OptimiserState:
        """Velocities, none without momentum."""
        return {name: torch.zeros_like(w) for name, w in weights.items()} if self.momentum else {}

    def step(self, weights: Weights, grads: Weights, state: OptimiserState) -> tuple[dict[str, Tensor], OptimiserState]:
        """One step."""
        new, velocities = {}, {}
        for name, w in weights.items():
            g = grads[name] + self.weight_decay * w if self.weight_decay else grads[name]
            if self.momentum:
                g = velocities[name] = self.momentum * state[name] + g
            new[name] = w - self.learning_rate * g
        return new, velocities


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba 2015; with `decoupled` the decay acts on the weights (AdamW, Loshchilov and Hutter 2019)."""

    learning_rate: float
    weight_decay: float = 0.0
    decoupled: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def init(self, weights: Weights, clients: int) -> OptimiserState:
        """Both moments of every weight, and each client's count of steps."""
        device = next(iter(weights.values())).device
        state = {f"{m}:{name}": torch.zeros_like(w) for name, w in weights.items() for m in ("mean", "square")}
        return {**state, "steps": torch.zeros(clients, device=device)}

    def step(self, weights: Weights, grads: Weights, state: OptimiserState) -> tuple[dict[str, Tensor], OptimiserState]:
        """One step."""
        steps = state["steps"] + 1
        new, moments = {}, {"steps": steps}
        for name, w in weights.items():
            g = grads[name]
            if self.weight_decay and not self.decoupled:
                g = g + self.weight_decay * w
            mean = moments[f"mean:{name}"] = state[f"mean:{name}"].lerp(g, 1 - self.beta1)
            square = moments[f"square:{name}"] = state[f"square:{name}"].lerp(g * g, 1 - self.beta2)
            count = along(steps, w)
            denominator = (square / _short_of_1(self.beta2, count)).sqrt() + self.epsilon
            shrunk = w * (1 - self.learning_rate * self.weight_decay) if self.decoupled else w
            new[name] = shrunk - self.learning_rate / _short_of_1(self.beta1, count) * mean / denominator
        return new, moments


def _short_of_1(beta: float, count: Tensor) -> Tensor:
    """1 - beta^count, to float32's last digits: in the first steps the difference itself has lost four."""
    return -torch.expm1(count * math.log(beta))


def along(per_client: Tensor, like: Tensor) -> Tensor:
    """(clients,) shaped to broadcast against (clients, ...)."""
    return per_client.view(-1, *[1] * (like.dim() - 1))


def freeze(active: Tensor, new: Weights, old: Weights) -> dict[str, Tensor]:
    """The new tensors of active clients, the old ones of the others; active: (clients,) bool."""
    return {name: torch.where(along(active, t), t, old[name]) for name, t in new.items()}
