"""Models of a row and of its client's statistics, as *Conditioning on Local Statistics* writes them (arXiv 2503.00378).

x is a row of n features, m the q statistics of its client; both come for one client and for a stack.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...prng import fold_in
from ...server_state import Weights
from ..mlp import within
from ..network import Network, register
from ..protocols import BatchedNetwork
from .per_row_context import of_client


@register("bilinear")
@dataclass(frozen=True)
class Bilinear(BatchedNetwork, Network):
    """The paper's conditional linear model: [x, 1]ᵀ W m, with W (n + 1, q, outputs).

    With `constant` m has a 1 at its end, which lowers the floor that noisy statistics set; it is not in the paper.
    """

    inputs: int
    outputs: int
    statistics: int
    constant: bool = False
    dropout: float = 0.0

    @property
    def max_width(self) -> int:
        """Numbers of one row in its largest layer."""
        return (self.statistics + self.constant) * self.outputs

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Uniform in ±1/√((n + 1) q)."""
        shape = (self.inputs + 1, self.statistics + self.constant, self.outputs)
        return within(fold_in(stream, 0), 1 / math.sqrt(shape[0] * shape[1]), {"product.weight": shape})

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) to (rows, outputs)."""
        return self._product(weights["product.weight"], context, x.flatten(1))

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """`apply` for a stack: x (clients, rows, *shape) to (clients, rows, outputs)."""
        return self._product(weights["product.weight"], context, x.flatten(2))

    def _product(self, weight: Tensor, context: Weights, x: Tensor) -> Tensor:
        """x: (..., rows, n), weight: (..., n + 1, q, outputs); W m first, where a client's rows share m."""
        statistics = of_client(x, context, self.statistics)
        if self.constant:
            statistics = torch.cat([statistics, torch.ones_like(statistics[..., :1])], -1)
        x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        if statistics.shape[-2] == 1:
            coefficients: Tensor = (weight * statistics.squeeze(-2)[..., None, :, None]).sum(-2)
            return x @ coefficients
        of_each = (x @ weight.flatten(-2)).unflatten(-1, (-1, self.outputs))
        answer: Tensor = (of_each * statistics.unsqueeze(-1)).sum(-2)
        return answer


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
        """Numbers of one row in its largest layer."""
        return max(self.inputs, self.experts * self.outputs)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Uniform in ±1/√fan_in, weights and biases, as torch.nn.Linear starts."""
        gate = {"gate.weight": (self.statistics, self.experts), "gate.bias": (self.experts,)}
        wide = self.experts * self.outputs
        expert = {"expert.weight": (self.inputs, wide), "expert.bias": (wide,)}
        return {
            **within(fold_in(stream, 0), 1 / math.sqrt(self.statistics), gate),
            **within(fold_in(stream, 1), 1 / math.sqrt(self.inputs), expert),
        }

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) to (rows, outputs)."""
        x = x.flatten(1)
        gate = of_client(x, context, self.statistics) @ weights["gate.weight"] + weights["gate.bias"]
        return self._mix(gate, x @ weights["expert.weight"] + weights["expert.bias"])

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """`apply` for a stack: x (clients, rows, *shape) to (clients, rows, outputs)."""
        x = x.flatten(2)
        statistics = of_client(x, context, self.statistics)
        gate = torch.baddbmm(weights["gate.bias"].unsqueeze(1), statistics, weights["gate.weight"])
        return self._mix(gate, torch.baddbmm(weights["expert.bias"].unsqueeze(1), x, weights["expert.weight"]))

    def _mix(self, gate: Tensor, answers: Tensor) -> Tensor:
        """gate: (..., rows or 1, experts); answers: (..., rows, experts x outputs)."""
        share = torch.softmax(gate, -1).unsqueeze(-1)
        return (answers.unflatten(-1, (self.experts, self.outputs)) * share).sum(-2)
