"""A network that is a program of torch.export: what a module of a plugin is served as."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..server_state import Weights
from .network import Network, register


@register("exported")
@dataclass(frozen=True)
class ExportedNetwork(Network):
    """A module in evaluation mode as a program of its weights and rows; it answers, and is not trained."""

    program: str  # what torch.export.save writes, in base64
    names: tuple[str, ...]  # of its weights, in the program's order
    beside: tuple[str, ...] = ()  # of its context

    @classmethod
    def of(cls, network: Network, weights: Weights, context: Weights, shape: Sequence[int]) -> "ExportedNetwork":
        """The program of a network for rows of this shape; weights and context are one client's.

        Raises:
            ValueError: if torch cannot export it.
        """
        example = (list(weights.values()), list(context.values()), torch.zeros(2, *shape))
        dynamic = ([None] * len(weights), [None] * len(context), {0: torch.export.Dim("rows")})
        network.apply(weights, context, example[-1], None)  # modules are built now, not while torch traces
        applied = _Applied(network, tuple(weights), tuple(context))
        try:
            program = torch.export.export(applied, example, dynamic_shapes=dynamic)
        except Exception as error:
            raise ValueError(f"torch cannot export the network: {str(error).splitlines()[0]}") from error
        program._example_inputs = None  # weights, which would be saved with it
        file = io.BytesIO()
        torch.export.save(program, file)
        return cls(base64.b64encode(file.getvalue()).decode(), tuple(weights), tuple(context))

    @property
    def dropout(self) -> float:
        """None is left."""
        return 0.0

    @property
    def max_width(self) -> int:
        """Not known."""
        return 0

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Raise TypeError: it is not trained."""
        raise TypeError("an exported network is not trained")

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) to logits (rows, outputs)."""
        given = [weights[name] for name in self.names], [context[name] for name in self.beside]
        answer: Tensor = self._module(*given, x)
        return answer

    @cached_property
    def _module(self) -> Any:
        return torch.export.load(io.BytesIO(base64.b64decode(self.program))).module()


class _Applied(nn.Module):
    """A network as a module whose weights are arguments."""

    def __init__(self, network: Network, names: tuple[str, ...], context: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.names, self.beside = network, names, context

    def forward(self, weights: list[Tensor], context: list[Tensor], x: Tensor) -> Tensor:
        """The network's logits."""
        named = dict(zip(self.names, weights, strict=True))
        return self.network.apply(named, dict(zip(self.beside, context, strict=True)), x, None)
