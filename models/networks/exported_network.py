"""A client's model as one torch module, to be exported: rows as they were partitioned to what a program wants to know.

A network that is a program of torch.export: what a module of a plugin is served as.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..preprocessing import RawInputModel
from ..server_state import Weights
from .network import Network, register


class ExportedModel(nn.Module):
    """(rows, *shape) in the type of the data to probabilities (rows, classes) float32; to (rows,) of a regression.

    Pixels, uint8, are divided by 255 inside, and other numbers scaled, as in training; `raw` does so. Weights and context
    are one client's, without a client axis, and become constants. Dropout is off.
    """

    def __init__(
        self, network: Network, weights: Weights, context: Weights, classes: int, raw: RawInputModel | None = None
    ) -> None:
        super().__init__()
        self.network, self.classes, self.raw = network, classes, raw or RawInputModel(None, None)
        self.parts = self._hold("weight", weights), self._hold("context", context)

    def forward(self, rows: Tensor) -> Tensor:
        """See the class."""
        weights, context = ({name: getattr(self, held) for name, held in part.items()} for part in self.parts)
        output = self.network.apply(weights, context, self.raw(rows), None)
        return torch.softmax(output, -1) if self.classes else self.raw.predictions(output)

    def traced(self, example: Tensor) -> Any:
        """Its torch.export program for any number of rows; the example has two or more."""
        return torch.export.export(self.eval(), (example,), dynamic_shapes=any_rows())

    def _hold(self, part: str, tensors: Weights) -> dict[str, str]:
        """Names to those of buffers, in which torch takes no point; the number tells apart what would be one name."""
        names = {n: f"{part}{at}_{n.replace('.', '_').replace('/', '_')}" for at, n in enumerate(tensors)}
        for name, held in names.items():
            self.register_buffer(held, tensors[name].detach().clone())
        return names


def any_rows() -> dict[str, dict[int, Any]]:
    """What torch is told of the input's shape: its first axis may have any length."""
    return {"rows": {0: torch.export.Dim("rows")}}


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
