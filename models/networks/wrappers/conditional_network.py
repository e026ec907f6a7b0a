"""Models of a row and its client's statistics, from *Conditioning on Local Statistics* (arXiv 2503.00378).

x is a row of n features, m the q statistics of its client. Both are given for one client or for a stack.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...prng import fold_in
from ...server_state import Weights
from ..mlp import uniform_weights
from ..network import Network, register
from ..network_abilities import BatchedNetwork
from ..statistics_context import client_statistics


@register("bilinear")
@dataclass(frozen=True)
class Bilinear(BatchedNetwork, Network):
    """The paper's conditional linear model: [x, 1]ᵀ W m, with W (n + 1, q, outputs).

    With `constant`, m ends in a 1, which lowers the error floor that noisy statistics set; this is not in the paper.
    """

    inputs: int
    outputs: int
    statistics: int
    constant: bool = False
    dropout: float = 0.0

    @property
    def max_width(self) -> int:
        return (self.statistics + self.constant) * self.outputs

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw weights uniformly from ±1/√((n + 1) q)."""
        shape = (self.inputs + 1, self.statistics + self.constant, self.outputs)
        return uniform_weights(fold_in(stream, 0), 1 / math.sqrt(shape[0] * shape[1]), {"product.weight": shape})

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        return self._product(weights["product.weight"], context, x.flatten(1))

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        return self._product(weights["product.weight"], context, x.flatten(2))

    def _product(self, weight: Tensor, context: Weights, x: Tensor) -> Tensor:
        """Multiply x (..., rows, n) by weight (..., n + 1, q, outputs) and statistics.

        W m is computed first if a client's rows share m.
        """
        statistics = client_statistics(x, context, self.statistics)
        if self.constant:
            statistics = torch.cat([statistics, torch.ones_like(statistics[..., :1])], -1)
        x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        if statistics.shape[-2] == 1:
            coefficients: Tensor = (weight * statistics.squeeze(-2)[..., None, :, None]).sum(-2)
            return x @ coefficients
        products = (x @ weight.flatten(-2)).unflatten(-1, (-1, self.outputs))
        logits: Tensor = (products * statistics.unsqueeze(-1)).sum(-2)
        return logits


@register("ensemble")
@dataclass(frozen=True)
class Ensemble(BatchedNetwork, Network):
    """The paper's ensemble: linear experts of x, mixed by softmax(mᵀ W + b)."""

    inputs: int
    outputs: int
    statistics: int
    experts: int
    dropout: float = 0.0

    @property
    def max_width(self) -> int:
        return max(self.inputs, self.experts * self.outputs)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw weights and biases uniformly from ±1/√fan_in, as torch.nn.Linear does."""
        gate = {"gate.weight": (self.statistics, self.experts), "gate.bias": (self.experts,)}
        width = self.experts * self.outputs
        expert = {"expert.weight": (self.inputs, width), "expert.bias": (width,)}
        return {
            **uniform_weights(fold_in(stream, 0), 1 / math.sqrt(self.statistics), gate),
            **uniform_weights(fold_in(stream, 1), 1 / math.sqrt(self.inputs), expert),
        }

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        x = x.flatten(1)
        gate = client_statistics(x, context, self.statistics) @ weights["gate.weight"] + weights["gate.bias"]
        return self._mix(gate, x @ weights["expert.weight"] + weights["expert.bias"])

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        x = x.flatten(2)
        statistics = client_statistics(x, context, self.statistics)
        gate = torch.baddbmm(weights["gate.bias"].unsqueeze(1), statistics, weights["gate.weight"])
        return self._mix(gate, torch.baddbmm(weights["expert.bias"].unsqueeze(1), x, weights["expert.weight"]))

    def _mix(self, gate: Tensor, expert_outputs: Tensor) -> Tensor:
        """Mix expert outputs (..., rows, experts x outputs) by gates (..., rows or 1, experts)."""
        share = torch.softmax(gate, -1).unsqueeze(-1)
        return (expert_outputs.unflatten(-1, (self.experts, self.outputs)) * share).sum(-2)
