"""The base class of networks, whose functions are those of one client, and the registry of kinds.

The engine maps these functions over a stack, or runs them client by client. Batched forms are written by hand where
they pay, and are tested against both (see models.training.execution_plan). Networks declare further abilities by their
base classes (see protocols).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, cast

from torch import Tensor

from ..prng import fold_in
from ..server_state import Weights
from ..training.objectives import ClientBatch, Objective
from .network_abilities import BatchedNetwork, EncoderHead, FusedSGD, LinearHead

_MEMBER_STREAMS = 2**21  # first stream number of ensemble members; layers and wrappers use smaller numbers


class Network(ABC):
    """A network of one client, as a frozen record of its sizes."""

    kind: ClassVar[str] = ""  # the name in the registry

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if (
            issubclass(cls, BatchedNetwork)
            and cls.cost is not Network.cost
            and cls.cost_stack is BatchedNetwork.cost_stack
        ):
            raise TypeError(
                f"{cls.__name__}: got a cost for one client and none for a stack, expected both. Write cost_stack."
            )

    @property
    @abstractmethod
    def dropout(self) -> float:
        """Return the dropout probability of hidden activations in training."""

    @property
    @abstractmethod
    def max_width(self) -> int:
        """Return the number of values of one row in the largest layer."""

    @abstractmethod
    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw initial weights, names to float32 tensors."""

    @abstractmethod
    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Map the rows of one client to logits.

        Args:
            weights: The client's weights by name, without a client axis.
            context: What is not trained, by name, without a client axis; it may be empty.
            x: (rows, *shape) float32.
            stream: The random stream of dropout, (); None switches dropout off.

        Returns:
            (rows, outputs).
        """

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return one client's training loss, (), and the buffers after the step.

        By default this is the objective, without buffers.

        Args:
            weights: The client's weights by name, without a client axis.
            context: What is not trained, by name, without a client axis; it may be empty.
            batch: A padded batch. Use `batch.loss` and `batch.mean`, which leave padding out.
            objective: The loss of a row.
        """
        return batch.loss(objective, self.apply(weights, context, batch.x, batch.stream)), {}

    @classmethod
    def for_rows(cls, shape: Sequence[int], outputs: int, **options: Any) -> Self:
        """Build the network for rows of this shape."""
        return cast(Self, cast(Any, cls)(shape=tuple(shape), outputs=outputs, **options))

    @property
    def buffers(self) -> tuple[str, ...]:
        """Return the names of weights without gradients, such as running statistics."""
        return ()

    @property
    def normalising(self) -> tuple[str, ...]:
        """Return the names of the normalisation layers' weights: scales, shifts and running statistics.

        The running statistics are also buffers. A batch moves them by grouped_layers.MOMENTUM.
        """
        return ()

    @property
    def lr_multipliers(self) -> Mapping[str, float]:
        """Return learning rates relative to the optimiser's, for the weights that have one."""
        return {}

    @property
    def starts_from(self) -> str:
        """Return the hash of the file with the initial weights, or an empty string if they are drawn."""
        return ""

    def with_statistics(self, statistics: int, planes: int = 0) -> "Network | None":
        """Return the network with `statistics` client statistics as further inputs, or None if it has no such form.

        With `planes`, the statistics are that many images, joined to the image as input channels.
        """
        return None

    @property
    def served(self) -> "Network":
        """Return the network to log for predictions: itself, unless it contains parts used only in training."""
        return self

    @property
    def quantized(self) -> "Network | None":
        """Return itself if it replaces features by codewords, whose usage can be counted.

        See models.networks.wrappers.
        """
        return None

    @property
    def maps(self) -> bool:
        """Whether torch.vmap can map it over clients; else clients are computed one after another."""
        return all(part.maps for part in vars(self).values() if isinstance(part, Network))

    @property
    def portable(self) -> bool:
        """Whether its kind and sizes are enough to rebuild it."""
        return all(part.portable for part in vars(self).values() if isinstance(part, Network))

    @property
    def random(self) -> bool:
        """Whether a stream changes the logits."""
        return self.dropout > 0

    @property
    def single_networks(self) -> "tuple[Member, ...]":
        """Return the networks that are trained side by side in it; for a single network only itself."""
        return (Member(self),)

    @property
    def num_losses(self) -> int:
        """Return how many networks' losses its cost sums; the reported loss is their mean."""
        return len(self.single_networks)

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Return the batched form, if there is one."""
        return self if isinstance(self, BatchedNetwork) else None

    @property
    def has_custom_cost(self) -> bool:
        """Whether its cost adds terms to the objective, or updates buffers."""
        return type(self).cost is not Network.cost

    @property
    def fused_sgd(self) -> FusedSGD | None:
        """Return the in-place step of plain gradient descent, if there is one."""
        return self if isinstance(self, FusedSGD) else None

    @property
    def encoder_head(self) -> EncoderHead | None:
        """Return itself if it consists of an encoder and a head."""
        return self if isinstance(self, EncoderHead) else None

    @property
    def linear_head(self) -> LinearHead | None:
        """Return itself if its head ends in a dense layer."""
        return self if isinstance(self, LinearHead) else None


@dataclass(frozen=True)
class Member:
    """A network of an ensemble; a single network has an empty prefix."""

    network: Any
    number: int = 0
    prefix: str = ""

    def of(self, named: Weights) -> Weights:
        """Select the member's tensors and remove its prefix.

        Names without any member's prefix belong to every member.
        """
        if not self.prefix:
            return named
        return {n.removeprefix(self.prefix): t for n, t in named.items() if "/" not in n or n.startswith(self.prefix)}

    def named(self, weights: Weights) -> dict[str, Tensor]:
        """Add the member's prefix, the inverse of `of`."""
        return {self.prefix + name: t for name, t in weights.items()}

    def stream(self, stream: Tensor) -> Tensor:
        """Derive the member's stream; the first member uses the stream itself."""
        return fold_in(stream, _MEMBER_STREAMS + self.number) if self.number else stream


NetworkClass = TypeVar("NetworkClass", bound=type[Network])

_KINDS: dict[str, type[Network]] = {}


def register(kind: str) -> Callable[[NetworkClass], NetworkClass]:
    """Register a network class under a name, for JSON and for the tests of every kind.

    Raises:
        ValueError: If another class has the name.
    """

    def decorate(cls: NetworkClass) -> NetworkClass:
        other = _KINDS.get(kind, cls)
        first, second = (f"{network_class.__module__}.{network_class.__qualname__}" for network_class in (other, cls))
        if first != second:
            raise ValueError(
                f"network {kind}: got this name from {first} and {second}, expected one. Rename one of them."
            )
        cls.kind = kind
        _KINDS[kind] = cls
        return cls

    return decorate


def registered() -> Mapping[str, type[Network]]:
    """Return the registered kinds by name."""
    return MappingProxyType(_KINDS)


def learned(network: Network, weights: Weights) -> dict[str, Tensor]:
    """Select the weights that gradients move, without buffers such as running statistics, which are only averaged."""
    buffers = network.buffers
    return {name: w for name, w in weights.items() if name not in buffers}
