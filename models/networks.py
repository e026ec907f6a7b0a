"""Networks as explicit functions of one client: no client axis, no module whose parameters are swapped.

Matrices are kept as (in, out): with torch's (out, in) the stacked gradient comes back transposed, which costs a copy a step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from models.state import Weights
from models.streams import fold, uniform


class Network(Protocol):
    """A network of one client, as a frozen record of its sizes."""

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Fresh weights, names to float32 tensors."""

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) float32 to logits (rows, outputs); a stream switches dropout on."""


@dataclass(frozen=True)
class MLP:
    """Flatten, then dense layers with ReLU between them; no hidden layer is multinomial logistic or linear regression.

    `outputs` is the number of classes; a regression has 1.
    """

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    dropout: float = 0.0

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Uniform in ±1/√fan_in, weights and biases, as torch.nn.Linear starts."""
        weights = {}
        for layer, (fan_in, fan_out) in enumerate(self._sizes()):
            bound = 1 / math.sqrt(fan_in)
            for part, (name, shape) in enumerate((("weight", (fan_in, fan_out)), ("bias", (fan_out,)))):
                draw = uniform(fold(fold(stream, layer), part), shape)
                weights[f"dense{layer}.{name}"] = (2 * draw - 1) * bound
        return weights

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Dropout acts on the hidden activations, each kept value scaled by 1 / (1 - rate)."""
        x = x.flatten(1)
        for layer in range(len(self.hidden) + 1):
            if layer:
                x = torch.relu(x)
                if self.dropout and stream is not None:
                    kept = uniform(fold(stream, layer), x.shape) >= self.dropout
                    x = x * kept / (1 - self.dropout)
            x = x @ weights[f"dense{layer}.weight"] + weights[f"dense{layer}.bias"]
        return x

    def _sizes(self) -> list[tuple[int, int]]:
        widths = (self.inputs, *self.hidden, self.outputs)
        return list(pairwise(widths))


KINDS: Mapping[str, type] = {"mlp": MLP}


def build(kind: str, shape: Sequence[int], outputs: int, options: Mapping[str, Any]) -> Network:
    """The network of this kind for rows of this shape."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    network: Network = KINDS[kind](inputs=math.prod(shape), outputs=outputs, **options)
    return network


def to_json(network: Any) -> dict[str, Any]:
    """Kind and sizes, from which `from_json` makes the same network (no pickle)."""
    kind = next(k for k, cls in KINDS.items() if isinstance(network, cls))
    return {"kind": kind, **asdict(network)}


def from_json(spec: Mapping[str, Any]) -> Network:
    """The network that `to_json` described."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.items() if k != "kind"}
    network: Network = KINDS[spec["kind"]](**options)
    return network


def parameters(weights: Weights) -> int:
    """How many numbers the weights hold."""
    return sum(w.numel() for w in weights.values())
