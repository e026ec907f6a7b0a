"""What networks share that are made around another one."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..server_state import Weights
from ..training.batch import ClientBatch
from ..training.objectives import Objective
from .network import Network
from .protocols import BatchedNetwork, EncoderHeadCostStack, EncoderHeadStack


@dataclass(frozen=True)
class NetworkWrapper(Network):
    """A network around any other, whose functions it has; what differs, such as `cost`, is written beside it."""

    inner: Any

    @property
    def dropout(self) -> float:
        """The inner network's."""
        return float(self.inner.dropout)

    @property
    def max_width(self) -> int:
        """The inner network's."""
        return int(self.inner.max_width)

    @property
    def buffers(self) -> tuple[str, ...]:
        """The inner network's."""
        return tuple(self.inner.buffers)

    @property
    def normalising(self) -> tuple[str, ...]:
        """The inner network's."""
        return tuple(self.inner.normalising)

    @property
    def rates(self) -> Mapping[str, float]:
        """The inner network's."""
        return dict(self.inner.rates)

    @property
    def random(self) -> bool:
        """The inner network's."""
        return bool(self.inner.random)

    @property
    def costs(self) -> int:
        """The inner network's."""
        return int(self.inner.costs)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The inner network's."""
        weights: dict[str, Tensor] = self.inner.init(stream)
        return weights

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """The inner network's."""
        logits: Tensor = self.inner.apply(weights, context, x, stream)
        return logits

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The inner network's."""
        outcome: tuple[Tensor, dict[str, Tensor]] = self.inner.cost(weights, context, batch, objective)
        return outcome


@dataclass(frozen=True)
class EncoderHeadWrapper(EncoderHeadCostStack, NetworkWrapper):
    """One around a network in parts that ends in a dense layer: each of its forms is made of the inner network's own."""

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Its own form, if the inner network's parts have one each."""
        return self if isinstance(self.inner.stacked, EncoderHeadStack) else None

    @property
    def personal(self) -> tuple[str, ...]:
        """Names of weights that stay with the client."""
        return ()

    @property
    def head(self) -> str:
        """The name of the last dense layer."""
        return f"dense{self.inner.last}"

    @abstractmethod
    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Fresh weights, the inner network's as it draws them."""

    @property
    def encoded(self) -> tuple[int, int]:
        """The inner network's."""
        channels, places = self.inner.encoded
        return channels, places

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The inner network's features."""
        features: tuple[Tensor, dict[str, Tensor]] = self.inner.encode(weights, context, x, used)
        return features

    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, whole: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The inner network's features."""
        features: tuple[Tensor, dict[str, Tensor]] = self.inner.encode_stack(weights, context, x, used, whole)
        return features

    def settle(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """The inner network's."""
        settled: Tensor = self.inner.settle(weights, context, z)
        return settled

    def settle_stack(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """The inner network's."""
        settled: Tensor = self.inner.settle_stack(weights, context, z)
        return settled

    def finish(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> Tensor:
        """The inner network's."""
        logits: Tensor = self.inner.finish(weights, settled, stream)
        return logits
