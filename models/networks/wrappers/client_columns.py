"""Dense layers of each client next to the shared ones, which they read: a column (VIRTUAL's hierarchical form)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from ...prng import fold_in, uniform
from ...server_state import Weights
from ...training.objectives import Batch, ClientBatch, Objective
from ..mlp import MLP, dense, drop, linear, linear_weights
from ..network import register
from ..network_abilities import BatchedNetwork
from ..statistics_context import append_statistics
from ..wrapper import NetworkWrapper

Lateral = Literal["beside", "within"]
"""How a column is connected to the shared layers.

`beside`: the column has its own output and reads the output of each shared layer (the authors' code of 2019). `within`:
it is added to the output of each shared layer and has no output of its own (their code of 2020).
"""

_OWN, _READ, _ACROSS, _GATE = (
    2**18,
    2**18 + 64,
    2**18 + 128,
    2**18 + 192,
)  # stream numbers; there are fewer than 64 layers
_MAX_GATE = 0.1


@register("columns")
@dataclass(frozen=True)
class ClientColumns(BatchedNetwork, NetworkWrapper):
    """`inner`, an MLP with "dense0.weight", and a column with "own0.weight" and so on.

    `beside`: h_c <- act(own h_c + gate * across act(read h_s)), where h_s is the shared layer's output; the cost sums
    the losses of both outputs. `within`: h <- act(shared h + gate * own h). Gates are initially uniform in [0, 0.1).
    """

    lateral: Lateral = "beside"

    def __post_init__(self) -> None:
        if not isinstance(self.inner, MLP):
            raise ValueError(
                "got another network, expected dense layers, which private columns extend. Use the kind mlp."
            )

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Return itself, because its functions accept a stack."""
        return self

    @property
    def layers(self) -> int:
        """Return the number of dense layers in the shared network."""
        return len(self.inner.hidden) + 1

    def init_column(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw only a column's weights, initialised like the shared layers."""
        widths = (self.inner.inputs + self.inner.statistics, *self.inner.hidden, self.inner.outputs)
        weights: dict[str, Tensor] = {}
        for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
            weights |= linear_weights(fold_in(stream, _OWN + layer), f"own{layer}", fan_in, fan_out)
            weights[f"gate{layer}"] = uniform(fold_in(stream, _GATE + layer), (fan_out,)) * _MAX_GATE
            if self.lateral == "beside":
                weights |= linear_weights(fold_in(stream, _READ + layer), f"read{layer}", fan_out, fan_out)
                weights |= linear_weights(fold_in(stream, _ACROSS + layer), f"across{layer}", fan_out, fan_out)
        return weights

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the shared network's weights and a column's."""
        return {**super().init(stream), **self.init_column(stream)}

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Map x (rows, *shape) to the column's output (rows, outputs)."""
        return self._outputs(weights, append_statistics(x.flatten(1), context, self.inner.statistics), stream)[0]

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        return self._outputs(weights, append_statistics(x.flatten(2), context, self.inner.statistics), streams)[0]

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the objective of the column's output plus that of the shared layers' output.

        The server predicts with the latter.
        """
        x = append_statistics(batch.x.flatten(1), context, self.inner.statistics)
        losses = [batch.loss(objective, output) for output in self._outputs(weights, x, batch.stream)]
        return torch.stack(losses).sum(0), {}

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        x = append_statistics(batch.x.flatten(2), context, self.inner.statistics)
        losses = [batch.loss(objective, output) for output in self._outputs(weights, x, batch.streams)]
        return torch.stack(losses).sum(0), {}

    def _outputs(self, weights: Weights, x: Tensor, stream: Tensor | None) -> list[Tensor]:
        return self._beside(weights, x, stream) if self.lateral == "beside" else [self._within(weights, x, stream)]

    def _beside(self, weights: Weights, x: Tensor, stream: Tensor | None) -> list[Tensor]:
        own = shared = x
        for layer in range(self.layers):
            last = layer == self.layers - 1
            shared = dense(weights, layer, shared)
            shared = shared if last else drop(torch.relu(shared), self.dropout, stream, layer + 1)
            read = linear(weights, f"across{layer}", torch.relu(linear(weights, f"read{layer}", shared)))
            own = linear(weights, f"own{layer}", own) + _gate(weights, layer) * read
            own = own if last else drop(torch.relu(own), self.dropout, stream, layer + 1)
        return [own, shared]

    def _within(self, weights: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        for layer in range(self.layers):
            own = linear(weights, f"own{layer}", x)
            x = dense(weights, layer, x) + _gate(weights, layer) * own
            if layer < self.layers - 1:
                x = drop(torch.relu(x), self.dropout, stream, layer + 1)
        return x


def _gate(weights: Weights, layer: int) -> Tensor:
    """Return every unit's gate, broadcast over rows: (units,), or (clients, 1, units)."""
    gate = weights[f"gate{layer}"]
    return gate if gate.dim() == 1 else gate.unsqueeze(1)
