"""Models of a row and of its client's statistics, as *Conditioning on Local Statistics* writes them (arXiv 2503.00378).

x is a row of n features, m the q statistics of its client; both forms are written for one client.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from models.dense import within
from models.join import of_rows
from models.state import Weights
from models.streams import fold


@dataclass(frozen=True)
class Bilinear:
    """The paper's conditional linear model: [x, 1]ᵀ W m, with W (n + 1, q, outputs).

    With `constant` m has a 1 at its end, which lowers the floor that noisy statistics set; it is not in the paper.
    """

    inputs: int
    outputs: int
    statistics: int
    constant: bool = False
    dropout: float = 0.0

    @classmethod
    def for_rows(cls, shape: Sequence[int], outputs: int, **options: Any) -> Self:
        """For rows of this shape."""
        return cls(inputs=math.prod(shape), outputs=outputs, **options)

    @property
    def widest(self) -> int:
        """Numbers of one row in its largest layer."""
        return (self.statistics + self.constant) * self.outputs

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Uniform in ±1/√((n + 1) q)."""
        shape = (self.inputs + 1, self.statistics + self.constant, self.outputs)
        return within(fold(stream, 0), 1 / math.sqrt(shape[0] * shape[1]), {"product.weight": shape})

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) to (rows, outputs)."""
        x = x.flatten(1)
        own = of_rows(x, context, self.statistics)
        one = torch.ones_like(x[:, :1])
        if self.constant:
            own = torch.cat([own, one], 1)
        of_each = torch.cat([x, one], 1) @ weights["product.weight"].flatten(1)
        return (of_each.view(len(x), -1, self.outputs) * own.unsqueeze(-1)).sum(1)


@dataclass(frozen=True)
class Ensemble:
    """The paper's ensemble: linear experts of x, mixed by softmax(mᵀ W + b)."""

    inputs: int
    outputs: int
    statistics: int
    experts: int
    dropout: float = 0.0

    @classmethod
    def for_rows(cls, shape: Sequence[int], outputs: int, **options: Any) -> Self:
        """For rows of this shape."""
        return cls(inputs=math.prod(shape), outputs=outputs, **options)

    @property
    def widest(self) -> int:
        """Numbers of one row in its largest layer."""
        return max(self.inputs, self.experts * self.outputs)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Uniform in ±1/√fan_in, weights and biases, as torch.nn.Linear starts."""
        gate = {"gate.weight": (self.statistics, self.experts), "gate.bias": (self.experts,)}
        wide = self.experts * self.outputs
        expert = {"expert.weight": (self.inputs, wide), "expert.bias": (wide,)}
        return {
            **within(fold(stream, 0), 1 / math.sqrt(self.statistics), gate),
            **within(fold(stream, 1), 1 / math.sqrt(self.inputs), expert),
        }

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) to (rows, outputs)."""
        x = x.flatten(1)
        own = of_rows(x, context, self.statistics)
        share = torch.softmax(own @ weights["gate.weight"] + weights["gate.bias"], -1)
        answers = x @ weights["expert.weight"] + weights["expert.bias"]
        return (answers.view(len(x), self.experts, self.outputs) * share.unsqueeze(-1)).sum(1)
