"""What a network is: functions of one client. What it has besides it says by the classes that it extends.

The engine maps the functions of one client over a stack, or runs them client after client; forms for a whole stack are
written by hand where they pay, and tested against both (see models.training.execution_plan). Every kind registers
itself under a name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, cast

from torch import Tensor

from ..prng import fold_in
from ..server_state import Weights
from ..training.batch import ClientBatch
from ..training.objectives import Objective
from .protocols import BatchedNetwork, EncoderHead, FusedSGD, LinearHead

_MEMBERS = 2**21  # of a stream; layers and wrapped networks have smaller numbers


class Network(ABC):
    """A network of one client, as a frozen record of its sizes."""

    kind: ClassVar[str] = ""  # the name under which it is registered

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if (
            issubclass(cls, BatchedNetwork)
            and cls.cost is not Network.cost
            and cls.cost_stack is BatchedNetwork.cost_stack
        ):
            raise TypeError(
                f"{cls.__name__} has a cost of its own for one client and none for a stack; write cost_stack."
            )

    @property
    @abstractmethod
    def dropout(self) -> float:
        """The chance of a hidden activation to be dropped in training."""

    @property
    @abstractmethod
    def max_width(self) -> int:
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
    def normalising(self) -> tuple[str, ...]:
        """Names of the weights of its normalising layers: scales, shifts and running statistics.

        Of these the running statistics are buffers too. A batch moves them by layers.MOMENTUM.
        """
        return ()

    @property
    def rates(self) -> Mapping[str, float]:
        """Names of weights that learn faster or slower to their learning rate, in units of the optimiser's."""
        return {}

    @property
    def starts_from(self) -> str:
        """The hash of the file that its first weights are from; empty where they are drawn."""
        return ""

    def reading(self, statistics: int, planes: int = 0) -> "Network | None":
        """Itself with room for so many statistics of a client beside its rows, or as so many pictures beside an image.

        None if it has no such form.
        """
        return None

    @property
    def served(self) -> "Network":
        """What answers when the model is logged: itself, unless what it adds is for training only."""
        return self

    @property
    def coded(self) -> "Network | None":
        """Itself, if it reads features as codewords, whose use can be counted; see models.networks.wrappers."""
        return None

    @property
    def maps(self) -> bool:
        """Whether torch can map it over clients; else they are computed one after another."""
        return all(one.maps for one in vars(self).values() if isinstance(one, Network))

    @property
    def portable(self) -> bool:
        """Whether its kind and sizes say all that is needed to make it again."""
        return all(one.portable for one in vars(self).values() if isinstance(one, Network))

    @property
    def random(self) -> bool:
        """Whether a stream changes the logits."""
        return self.dropout > 0

    @property
    def single_networks(self) -> "tuple[Member, ...]":
        """The networks that learn side by side in it; one that stands alone is its own only one."""
        return (Member(self),)

    @property
    def costs(self) -> int:
        """Of how many networks' costs its own is the sum: a loss that is told is their mean."""
        return len(self.single_networks)

    @property
    def stacked(self) -> BatchedNetwork | None:
        """The form for a whole stack, if there is one."""
        return self if isinstance(self, BatchedNetwork) else None

    @property
    def costed(self) -> bool:
        """Whether it minimises more than an objective of its logits, or moves weights without a gradient."""
        return type(self).cost is not Network.cost

    @property
    def fused_sgd(self) -> FusedSGD | None:
        """The step of plain gradient descent in place, if there is one."""
        return self if isinstance(self, FusedSGD) else None

    @property
    def encoder_head(self) -> EncoderHead | None:
        """Its parts, if it has any."""
        return self if isinstance(self, EncoderHead) else None

    @property
    def linear_head(self) -> LinearHead | None:
        """Its parts, if they end in a dense layer."""
        return self if isinstance(self, LinearHead) else None


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
        return fold_in(stream, _MEMBERS + self.number) if self.number else stream


Kind = TypeVar("Kind", bound=type[Network])

_KINDS: dict[str, type[Network]] = {}


def register(kind: str) -> Callable[[Kind], Kind]:
    """Makes a class known under this name, to JSON and to the tests of every kind; ValueError if it is another's."""

    def known(cls: Kind) -> Kind:
        other = _KINDS.get(kind, cls)
        first, second = (f"{one.__module__}.{one.__qualname__}" for one in (other, cls))
        if first != second:
            raise ValueError(f"the networks {first} and {second} both register as {kind}; give one another name.")
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
