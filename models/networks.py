"""Networks as explicit functions of one client: no client axis, no module whose parameters are swapped.

Matrices are kept as (in, out): with torch's (out, in) the stacked gradient comes back transposed, which costs a copy a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from torch import Tensor

from models.conditional import Bilinear, Ensemble
from models.convolution import CNN
from models.dense import MLP, Descent
from models.state import Weights
from models.streams import server_stream


class Network(Protocol):
    """A network of one client, as a frozen record of its sizes."""

    @property
    def dropout(self) -> float:
        """The chance of a hidden activation to be dropped in training."""

    @property
    def widest(self) -> int:
        """Numbers of one row in its largest layer."""

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Fresh weights, names to float32 tensors."""

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) float32 to logits (rows, outputs); a stream switches dropout on."""


class Stacked(Protocol):
    """What a network may offer where it pays: a whole stack at once, written by hand; equal to `apply` of each client."""

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """x: (clients, rows, *shape) to (clients, rows, outputs)."""


class Fused(Protocol):
    """What a network may offer besides: a step of plain gradient descent that never writes the gradient."""

    def descend(self, weights: Weights, context: Weights, x: Tensor, step: Descent) -> None:
        """The step in place, on weights (clients, ...) and x (clients, rows, *shape)."""


KINDS: Mapping[str, Any] = {"mlp": MLP, "cnn": CNN, "bilinear": Bilinear, "ensemble": Ensemble}


def build(kind: str, shape: Sequence[int], outputs: int, options: Mapping[str, Any]) -> Network:
    """The network of this kind for rows of this shape."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    network: Network = KINDS[kind].for_rows(shape, outputs, **options)
    return network


def to_json(network: Any) -> dict[str, Any]:
    """Kind and sizes, from which `from_json` makes the same network (no pickle)."""
    return {"kind": kind_of(network), **asdict(network)}


def kind_of(network: Any) -> str:
    """The name of the network's kind, that of its class if it is not one of ours."""
    return next((k for k, cls in KINDS.items() if isinstance(network, cls)), type(network).__name__)


def from_json(spec: Mapping[str, Any]) -> Network:
    """The network that `to_json` described."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.items() if k != "kind"}
    network: Network = KINDS[spec["kind"]](**options)
    return network


def size(network: Network) -> int:
    """How many numbers the network's weights hold."""
    return parameters(network.init(server_stream(0, 0, "init")))


def parameters(weights: Weights) -> int:
    """How many numbers the weights hold."""
    return sum(w.numel() for w in weights.values())
