"""Modules for export: a client's model as one torch module, and a network stored as a torch.export program.

Networks that a plugin defines are logged as such a program, because their code is not part of `models/`.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from ..preprocessing import RawInputModel
from ..server_state import Weights
from .network import Network, register


class ExportedModel(nn.Module):
    """Maps raw rows (rows, *shape) to probabilities (rows, classes) float32, or to predictions (rows,) for regression.

    `raw` divides uint8 pixels by 255 and scales other numbers, as in training. Weights and context are one client's,
    without a client axis, and become constants. Dropout is off.
    """

    def __init__(
        self, network: Network, weights: Weights, context: Weights, classes: int, raw: RawInputModel | None = None
    ) -> None:
        super().__init__()
        self.network, self.classes, self.raw = network, classes, raw or RawInputModel(None, None)
        self.parts = self._register("weight", weights), self._register("context", context)

    def forward(self, rows: Tensor) -> Tensor:
        """Compute the probabilities or predictions."""
        weights, context = ({name: getattr(self, buffer) for name, buffer in part.items()} for part in self.parts)
        output = self.network.apply(weights, context, self.raw(rows), None)
        return torch.softmax(output, -1) if self.classes else self.raw.predictions(output)

    def export(self, example: Tensor) -> torch.export.ExportedProgram:
        """Return the torch.export program for any number of rows; the example needs two or more."""
        return torch.export.export(self.eval(), (example,), dynamic_shapes=any_rows())

    def _register(self, part: str, tensors: Weights) -> dict[str, str]:
        """Register tensors as buffers and return the buffers' names.

        Buffer names contain no dots, so an index keeps them distinct.
        """
        names = {n: f"{part}{index}_{n.replace('.', '_').replace('/', '_')}" for index, n in enumerate(tensors)}
        for name, buffer in names.items():
            self.register_buffer(buffer, tensors[name].detach().clone())
        return names


def any_rows() -> dict[str, dict[int, torch.export.Dim]]:
    """Declare that the input's first axis may have any length."""
    return {"rows": {0: torch.export.Dim("rows")}}


@register("exported")
@dataclass(frozen=True)
class ExportedNetwork(Network):
    """A module in evaluation mode, stored as a program of its weights and rows; it predicts but cannot be trained."""

    program: str  # the output of torch.export.save in base64
    names: tuple[str, ...]  # names of the weights, in the program's order
    beside: tuple[str, ...] = ()  # names of the context

    @classmethod
    def of(cls, network: Network, weights: Weights, context: Weights, shape: Sequence[int]) -> "ExportedNetwork":
        """Export a network for rows of this shape; weights and context are one client's.

        Raises:
            ValueError: If torch cannot export it.
        """
        example = (list(weights.values()), list(context.values()), torch.zeros(2, *shape))
        dynamic = ([None] * len(weights), [None] * len(context), {0: torch.export.Dim("rows")})
        network.apply(weights, context, example[-1], None)  # builds modules now instead of during tracing
        module = _NetworkModule(network, tuple(weights), tuple(context))
        try:
            program = torch.export.export(module, example, dynamic_shapes=dynamic)
        except Exception as error:
            raise ValueError(f"export: torch cannot export the network: {str(error).splitlines()[0]}") from error
        program._example_inputs = None  # contains weights, which would be saved too
        file = io.BytesIO()
        torch.export.save(program, file)
        return cls(base64.b64encode(file.getvalue()).decode(), tuple(weights), tuple(context))

    @property
    def dropout(self) -> float:
        """Return 0: no dropout is left."""
        return 0.0

    @property
    def max_width(self) -> int:
        """Return 0: the width is unknown."""
        return 0

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Raise TypeError, because it is not trained."""
        raise TypeError("an exported network cannot be trained")

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        arguments = [weights[name] for name in self.names], [context[name] for name in self.beside]
        return cast(Tensor, self._module(*arguments, x))

    @cached_property
    def _module(self) -> nn.Module:
        return torch.export.load(io.BytesIO(base64.b64decode(self.program))).module()


class _NetworkModule(nn.Module):
    """A network as a module that takes its weights as arguments."""

    def __init__(self, network: Network, names: tuple[str, ...], context: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.names, self.beside = network, names, context

    def forward(self, weights: list[Tensor], context: list[Tensor], x: Tensor) -> Tensor:
        """Return the network's logits."""
        named_weights = dict(zip(self.names, weights, strict=True))
        return self.network.apply(named_weights, dict(zip(self.beside, context, strict=True)), x, None)
