"""Dense layers of a client's own beside the shared ones, which they read from: a column (VIRTUAL's hierarchical form)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from ...prng import fold_in, uniform
from ...server_state import Weights
from ...training.batch import Batch, ClientBatch
from ...training.objectives import Objective
from ..mlp import MLP, dense, drop, linear, within
from ..network import register
from ..protocols import BatchedNetwork
from ..wrapper import NetworkWrapper
from .per_row_context import join

Lateral = Literal["beside", "within"]
"""How a column is tied to the shared layers. beside: it has an answer of its own, and reads what each shared layer gives
(the authors' code of 2019). within: it adds to what each shared layer gives, and has no answer (that of 2020)."""

_OWN, _READ, _ACROSS, _GATE = 2**18, 2**18 + 64, 2**18 + 128, 2**18 + 192  # of a stream; layers are fewer than 64
_WIDEST_GATE = 0.1


@register("columns")
@dataclass(frozen=True)
class ClientColumns(BatchedNetwork, NetworkWrapper):
    """`inner`, an MLP, with "own0.weight" and so on beside "dense0.weight".

    beside: h_c <- act(own h_c + gate * across act(read h_s)), h_s what the shared layer gives; the cost is that of both
    answers. within: h <- act(shared h + gate * own h). Gates are numbers, uniform in [0, 0.1) at first.
    """

    lateral: Lateral = "beside"

    def __post_init__(self) -> None:
        if not isinstance(self.inner, MLP):
            raise ValueError("columns of clients' own are made of dense layers; use the kind mlp.")

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Its functions take a stack as they take a client."""
        return self

    @property
    def layers(self) -> int:
        """Dense layers of the shared network."""
        return len(self.inner.hidden) + 1

    def own(self, stream: Tensor) -> dict[str, Tensor]:
        """A column's weights alone, layers as the shared ones start."""
        widths = (self.inner.inputs + self.inner.statistics, *self.inner.hidden, self.inner.outputs)
        weights: dict[str, Tensor] = {}
        for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
            weights |= _layer(fold_in(stream, _OWN + layer), f"own{layer}", fan_in, fan_out)
            weights[f"gate{layer}"] = uniform(fold_in(stream, _GATE + layer), (fan_out,)) * _WIDEST_GATE
            if self.lateral == "beside":
                weights |= _layer(fold_in(stream, _READ + layer), f"read{layer}", fan_out, fan_out)
                weights |= _layer(fold_in(stream, _ACROSS + layer), f"across{layer}", fan_out, fan_out)
        return weights

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The shared network's weights, and a column's."""
        return {**super().init(stream), **self.own(stream)}

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) to (rows, outputs): the column's answer."""
        return self._answers(weights, join(x.flatten(1), context, self.inner.statistics), stream)[0]

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """`apply` for a stack: x (clients, rows, *shape) to (clients, rows, outputs)."""
        return self._answers(weights, join(x.flatten(2), context, self.inner.statistics), streams)[0]

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of the column's answer, and beside it that of the shared layers', which the server answers with."""
        x = join(batch.x.flatten(1), context, self.inner.statistics)
        losses = [batch.loss(objective, answer) for answer in self._answers(weights, x, batch.stream)]
        return torch.stack(losses).sum(0), {}

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`cost` for a stack: (clients,)."""
        x = join(batch.x.flatten(2), context, self.inner.statistics)
        losses = [batch.loss(objective, answer) for answer in self._answers(weights, x, batch.streams)]
        return torch.stack(losses).sum(0), {}

    def _answers(self, weights: Weights, x: Tensor, stream: Tensor | None) -> list[Tensor]:
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
    """Of every unit, for all rows: (units,), or (clients, 1, units)."""
    gate = weights[f"gate{layer}"]
    return gate if gate.dim() == 1 else gate.unsqueeze(1)


def _layer(stream: Tensor, name: str, fan_in: int, fan_out: int) -> dict[str, Tensor]:
    return within(stream, fan_in**-0.5, {f"{name}.weight": (fan_in, fan_out), f"{name}.bias": (fan_out,)})
