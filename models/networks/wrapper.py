"""Base classes of networks that wrap another network."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from ..server_state import Weights
from ..training.objectives import ClientBatch, Objective
from .network import Network
from .network_abilities import BatchedNetwork, EncoderHeadCostStack, EncoderHeadStack


@dataclass(frozen=True)
class NetworkWrapper(Network):
    """Wraps any network and forwards to it; subclasses override what differs, such as `cost`."""

    inner: Any

    @property
    def dropout(self) -> float:
        return float(self.inner.dropout)

    @property
    def max_width(self) -> int:
        return int(self.inner.max_width)

    @property
    def buffers(self) -> tuple[str, ...]:
        return tuple(self.inner.buffers)

    @property
    def normalising(self) -> tuple[str, ...]:
        return tuple(self.inner.normalising)

    @property
    def lr_multipliers(self) -> Mapping[str, float]:
        return dict(self.inner.lr_multipliers)

    @property
    def random(self) -> bool:
        return bool(self.inner.random)

    @property
    def num_losses(self) -> int:
        return int(self.inner.num_losses)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        return cast(dict[str, Tensor], self.inner.init(stream))

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        return cast(Tensor, self.inner.apply(weights, context, x, stream))

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return cast(tuple[Tensor, dict[str, Tensor]], self.inner.cost(weights, context, batch, objective))


@dataclass(frozen=True)
class EncoderHeadWrapper(EncoderHeadCostStack, NetworkWrapper):
    """Wraps a network of encoder and linear head, and builds each of its forms from the inner network's form."""

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Return itself if each of the inner network's parts has a batched form."""
        return self if isinstance(self.inner.stacked, EncoderHeadStack) else None

    @property
    def personal(self) -> tuple[str, ...]:
        """Return the names of weights that stay with the client."""
        return ()

    @property
    def head(self) -> str:
        """Return the name of the last dense layer."""
        return f"dense{self.inner.last}"

    @property
    def encoded(self) -> tuple[int, int]:
        """Return the channels and positions of the inner network's features."""
        channels, positions = self.inner.encoded
        return channels, positions

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return cast(tuple[Tensor, dict[str, Tensor]], self.inner.encode(weights, context, x, used))

    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, unpadded: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return cast(tuple[Tensor, dict[str, Tensor]], self.inner.encode_stack(weights, context, x, used, unpadded))

    def pre_head(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        return cast(Tensor, self.inner.pre_head(weights, context, z))

    def pre_head_stack(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        return cast(Tensor, self.inner.pre_head_stack(weights, context, z))

    def apply_head(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> Tensor:
        return cast(Tensor, self.inner.apply_head(weights, embedding, stream))
