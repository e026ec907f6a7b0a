"""Networks as explicit functions of one client: no client axis, no module whose parameters are swapped.

Matrices are kept as (in, out): with torch's (out, in) the stacked gradient comes back transposed, which costs a copy a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, cast

from torch import Tensor

from ..method_networks.codebook import Quantised
from ..method_networks.conditional_network import Bilinear, Ensemble
from ..method_networks.distrans_network import Transformed
from ..method_networks.fedsr_network import Represented
from ..state import Weights
from ..streams import Sketch
from ..training.batch import Batch
from ..training.objectives import Objective
from .convolution import CNN
from .deep_ensemble import DeepEnsemble
from .dense import MLP, Descent
from .residual import Residual
from .resnet import ResNet18
from .vgg import VGG16


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


class Parted(Protocol):
    """A network in three parts, of which only the last is random: encoder, what follows up to the first dropout, the rest.

    `finish(settle(encode(x)))` is `apply_stack`. Words of a codebook stand in for what `encode` gives; the passes of
    Monte-Carlo dropout share everything before `finish`.
    """

    @property
    def encoded(self) -> tuple[int, int]:
        """Channels and places of what `encode` gives."""

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, whole: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """x: (clients, rows, *shape) to features (clients, rows, channels, places), and the buffers that training moved.

        With `used`, (clients, rows), it is training; `whole`: no row is padding.
        """

    def settle(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Features to (clients, rows, numbers)."""

    def finish(self, weights: Weights, settled: Tensor, streams: Tensor | None) -> Tensor:
        """To logits (clients, rows, outputs); streams (clients,) switch dropout on."""


class Ended(Parted, Protocol):
    """A network in parts whose third ends in one dense layer: `finish` is that layer between the two functions here."""

    @property
    def last(self) -> int:
        """The number of that layer."""

    def represent(self, weights: Weights, settled: Tensor, streams: Tensor | None) -> Tensor:
        """What the layer reads: (clients, rows, numbers)."""

    def conclude(self, scores: Tensor, streams: Tensor | None) -> Tensor:
        """What the layer gives, to logits."""


class Costed(Protocol):
    """A network whose training asks for more than an objective of its logits, or moves weights without a gradient."""

    @property
    def buffers(self) -> Sequence[str]:
        """Names of weights that no gradient moves, such as running statistics."""

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What each client minimises, (clients,), and the buffers as they are after the step."""


class Paced(Protocol):
    """A network some of whose weights learn faster or slower than the rest."""

    @property
    def rates(self) -> Mapping[str, float]:
        """Names of weights to their learning rate, in units of the optimiser's."""


KINDS: Mapping[str, Any] = {
    "mlp": MLP,
    "cnn": CNN,
    "residual": Residual,
    "vgg16_bn": VGG16,
    "resnet18": ResNet18,
    "bilinear": Bilinear,
    "ensemble": Ensemble,
    "quantised": Quantised,
    "transformed": Transformed,
    "represented": Represented,
    "deep_ensemble": DeepEnsemble,
}


def build(kind: str, shape: Sequence[int], outputs: int, options: Mapping[str, Any]) -> Network:
    """The network of this kind for rows of this shape."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    network: Network = KINDS[kind].for_rows(shape, outputs, **options)
    return network


def to_json(network: Any) -> dict[str, Any]:
    """Kind and sizes, from which `from_json` makes the same network (no pickle)."""
    inner = {"inner": to_json(network.inner)} if hasattr(network, "inner") else {}
    return {"kind": kind_of(network), **asdict(network), **inner}


def kind_of(network: Any) -> str:
    """The name of the network's kind, that of its class if it is not one of ours."""
    return next((k for k, cls in KINDS.items() if isinstance(network, cls)), type(network).__name__)


def from_json(spec: Mapping[str, Any]) -> Network:
    """The network that `to_json` described."""
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.items() if k != "kind"}
    if "inner" in options:
        options["inner"] = from_json(options["inner"])
    network: Network = KINDS[spec["kind"]](**options)
    return network


def learned(network: Network, weights: Weights) -> dict[str, Tensor]:
    """The weights that gradients move: without running statistics and the like, which are averaged and nothing else."""
    return {name: w for name, w in weights.items() if name not in getattr(network, "buffers", ())}


def size(network: Network) -> int:
    """How many numbers the network's weights hold, told from their shapes: nothing of that size is made."""
    if isinstance(network, DeepEnsemble):
        return network.members * size(network.inner)
    return parameters(network.init(cast(Tensor, Sketch())))


def to_learn(network: Network) -> int:
    """How many of them are learned."""
    if isinstance(network, DeepEnsemble):
        return network.members * to_learn(network.inner)
    return parameters(learned(network, network.init(cast(Tensor, Sketch()))))


def parameters(weights: Weights) -> int:
    """How many numbers the weights hold."""
    return sum(w.numel() for w in weights.values())
