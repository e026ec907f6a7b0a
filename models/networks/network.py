"""What a network is: functions of one client. What it has besides it says by the classes that it extends.

The engine maps the functions of one client over a stack, or runs them client after client; forms for a whole stack are
written by hand where they pay, and tested against both (see models.training.plan). Every kind registers itself under a name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast

from torch import Tensor

from ..state import Weights
from ..streams import fold
from ..training.batch import Batch, ClientBatch
from ..training.objectives import Objective

_MEMBERS = 2**21  # of a stream; layers and wrapped networks have smaller numbers


class Stacked(ABC):
    """A form for a whole stack, written by hand where it pays; equal to the function of each client by itself."""

    pays_alone: ClassVar[bool] = False  # whether it is also the faster one for a single client

    @abstractmethod
    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """x: (clients, rows, *shape) to logits (clients, rows, outputs)."""

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What each client minimises, (clients,), and the buffers as they are after the step."""
        return batch.loss(objective, self.apply_stack(weights, context, batch.x, batch.streams)), {}


class Costed(ABC):
    """Training asks for more than an objective of the logits, or moves weights without a gradient."""

    @abstractmethod
    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What one client minimises, (), and the buffers as they are after the step."""


class Descent(NamedTuple):
    """A step of plain gradient descent, w <- keep w - rate dL/dw; slopes: logits to dL/dlogits, (clients, rows, outputs)."""

    streams: Tensor
    slopes: Callable[[Tensor], Tensor]
    rate: float
    keep: float


class Fused(ABC):
    """A step of plain gradient descent that never writes the gradient."""

    @abstractmethod
    def descend(self, weights: Weights, context: Weights, x: Tensor, step: Descent) -> None:
        """The step in place, on weights (clients, ...) and x (clients, rows, *shape)."""


class Parted(ABC):
    """Three parts, of which only the last is random: encoder, what follows up to the first dropout, the rest.

    `finish(settle(encode(x)))` is `apply`. Words of a codebook stand in for what `encode` gives; the passes of Monte-Carlo
    dropout share everything before `finish`, which is dense layers, and serves a client and a stack alike.
    """

    @property
    @abstractmethod
    def encoded(self) -> tuple[int, int]:
        """Channels and places of what `encode` gives."""

    @abstractmethod
    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """x: (rows, *shape) to features (rows, channels, places), and the buffers that training moved.

        With `used`, (rows,) of 1 and 0 for padding, it is training.
        """

    @abstractmethod
    def settle(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Features to (rows, numbers)."""

    @abstractmethod
    def finish(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> Tensor:
        """(..., rows, numbers) to logits (..., rows, outputs); a stream, or one a client, switches dropout on."""

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) to logits (rows, outputs), one part after another."""
        z, _ = self.encode(weights, context, x)
        return self.finish(weights, self.settle(weights, context, z), stream)


class PartedStack(Parted, Stacked):
    """Parts with a form for a whole stack each."""

    @abstractmethod
    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, whole: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """x: (clients, rows, *shape) to (clients, rows, channels, places); `used`: (clients, rows).

        `whole`: no row is padding.
        """

    @abstractmethod
    def settle_stack(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Features to (clients, rows, numbers)."""

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """`apply` for a stack: x (clients, rows, *shape) to logits (clients, rows, outputs)."""
        z, _ = self.encode_stack(weights, context, x)
        return self.finish(weights, self.settle_stack(weights, context, z), streams)


class CostedParts(PartedStack, Costed):
    """Parts whose encoder may read the batch as a whole, such as one that normalises by it."""

    pays_alone = True

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of what the parts make of one client's batch."""
        z, moved = self.encode(weights, context, batch.x, batch.used)
        logits = self.finish(weights, self.settle(weights, context, z), batch.stream)
        return batch.loss(objective, logits), moved

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`cost` for a stack: (clients,)."""
        z, moved = self.encode_stack(weights, context, batch.x, batch.used, batch.whole)
        logits = self.finish(weights, self.settle_stack(weights, context, z), batch.streams)
        return batch.loss(objective, logits), moved


class Ended(PartedStack):
    """Parts whose third ends in one dense layer: `finish` is that layer between the two functions here."""

    @property
    @abstractmethod
    def last(self) -> int:
        """The number of that layer."""

    @abstractmethod
    def represent(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> Tensor:
        """What the layer reads: (..., rows, numbers)."""

    @abstractmethod
    def conclude(self, scores: Tensor, stream: Tensor | None) -> Tensor:
        """What the layer gives, to logits."""


class Network(ABC):
    """A network of one client, as a frozen record of its sizes."""

    kind: ClassVar[str] = ""  # the name under which it is registered

    @property
    @abstractmethod
    def dropout(self) -> float:
        """The chance of a hidden activation to be dropped in training."""

    @property
    @abstractmethod
    def widest(self) -> int:
        """Numbers of one row in its largest layer."""

    @abstractmethod
    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Fresh weights, names to float32 tensors."""

    @abstractmethod
    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) float32 to logits (rows, outputs); a stream switches dropout on."""

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What one client minimises, (), and the buffers as they are after the step: the objective, and none."""
        return batch.loss(objective, self.apply(weights, context, batch.x, batch.stream)), {}

    @classmethod
    def for_rows(cls, shape: Sequence[int], outputs: int, **options: Any) -> Self:
        """For rows of this shape."""
        made: Self = cast(Any, cls)(shape=tuple(shape), outputs=outputs, **options)
        return made

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of weights that no gradient moves, such as running statistics."""
        return ()

    @property
    def rates(self) -> Mapping[str, float]:
        """Names of weights that learn faster or slower to their learning rate, in units of the optimiser's."""
        return {}

    @property
    def random(self) -> bool:
        """Whether a stream changes the logits."""
        return self.dropout > 0

    @property
    def singles(self) -> "tuple[Member, ...]":
        """The networks that learn side by side in it; one that stands alone is its own only one."""
        return (Member(self),)

    @property
    def stacked(self) -> Stacked | None:
        """The form for a whole stack, if there is one."""
        return self if isinstance(self, Stacked) else None

    @property
    def costed(self) -> Costed | None:
        """What it minimises, if that is more than an objective of its logits."""
        return self if isinstance(self, Costed) else None

    @property
    def fused(self) -> Fused | None:
        """The step of plain gradient descent in place, if there is one."""
        return self if isinstance(self, Fused) else None

    @property
    def parted(self) -> PartedStack | None:
        """Its parts, if it has any."""
        return self if isinstance(self, PartedStack) else None

    @property
    def ended(self) -> Ended | None:
        """Its parts, if they end in a dense layer."""
        return self if isinstance(self, Ended) else None


@dataclass(frozen=True)
class Member:
    """One network of an ensemble; or, with an empty prefix, a network that stands alone."""

    network: Any
    number: int = 0
    prefix: str = ""

    def of(self, named: Weights) -> Weights:
        """Its own, under the names that they have alone; what has no member's prefix is for every member."""
        if not self.prefix:
            return named
        return {n.removeprefix(self.prefix): t for n, t in named.items() if "/" not in n or n.startswith(self.prefix)}

    def named(self, own: Weights) -> dict[str, Tensor]:
        """The inverse of `of`."""
        return {self.prefix + name: t for name, t in own.items()}

    def stream(self, stream: Tensor) -> Tensor:
        """A stream of its own for every stream; the first member's is the stream itself."""
        return fold(stream, _MEMBERS + self.number) if self.number else stream


Kind = TypeVar("Kind", bound=type[Network])

_KINDS: dict[str, type[Network]] = {}


def register(kind: str) -> Callable[[Kind], Kind]:
    """Makes a class known under this name, to JSON and to the tests of every kind; ValueError if it is another's."""

    def known(cls: Kind) -> Kind:
        other = _KINDS.get(kind, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"the networks {other.__qualname__} and {cls.__qualname__} both register as {kind}.")
        cls.kind = kind
        _KINDS[kind] = cls
        return cls

    return known


def registered() -> Mapping[str, type[Network]]:
    """Every kind that has registered, by name."""
    return MappingProxyType(_KINDS)


def learned(network: Network, weights: Weights) -> dict[str, Tensor]:
    """The weights that gradients move: without running statistics and the like, which are averaged and nothing else."""
    buffers = network.buffers
    return {name: w for name, w in weights.items() if name not in buffers}
