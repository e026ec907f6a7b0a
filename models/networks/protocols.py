"""What a network may have besides its functions of one client: it says so by extending these (see network)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from torch import Tensor

from ..server_state import Weights
from ..training.batch import Batch, ClientBatch
from ..training.objectives import Objective


class BatchedNetwork(ABC):
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


class Descent(NamedTuple):
    """A step of plain gradient descent, w <- keep w - rate dL/dw; slopes: logits to dL/dlogits, (clients, rows, outputs)."""

    streams: Tensor
    slopes: Callable[[Tensor], Tensor]
    rate: float
    keep: float


class FusedSGD(ABC):
    """A step of plain gradient descent that never writes the gradient."""

    @abstractmethod
    def descend(self, weights: Weights, context: Weights, x: Tensor, step: Descent) -> None:
        """The step in place, on weights (clients, ...) and x (clients, rows, *shape)."""


class EncoderHead(ABC):
    """Three parts, of which only the last is random: encoder, what follows up to the first dropout, the rest.

    `finish(settle(encode(x)))` is `apply`, and each is of one client. Words of a codebook stand in for what `encode` gives;
    the passes of Monte-Carlo dropout share everything before `finish`.
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
        """(rows, numbers) to logits (rows, outputs); a stream switches dropout on."""

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) to logits (rows, outputs), one part after another."""
        z, _ = self.encode(weights, context, x)
        return self.finish(weights, self.settle(weights, context, z), stream)


class EncoderHeadCost(EncoderHead):
    """Parts whose encoder may read the batch as a whole, such as one that normalises by it."""

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of what the parts make of one client's batch."""
        z, moved = self.encode(weights, context, batch.x, batch.used)
        logits = self.finish(weights, self.settle(weights, context, z), batch.stream)
        return batch.loss(objective, logits), moved


class LinearHead(EncoderHead):
    """Parts whose third ends in one dense layer: `finish` is that layer between the two functions here.

    Its weights are `dense{last}.weight` (in, out) and `dense{last}.bias` (out,).
    """

    @property
    @abstractmethod
    def last(self) -> int:
        """The number of that layer."""

    @abstractmethod
    def represent(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> Tensor:
        """What the layer reads: (rows, numbers)."""

    @abstractmethod
    def conclude(self, scores: Tensor, stream: Tensor | None) -> Tensor:
        """What the layer gives, to logits."""


class EncoderHeadStack(EncoderHead, BatchedNetwork):
    """Parts with a form for a whole stack each.

    `finish`, and what it is made of where the parts are `LinearHead`, is dense layers: it takes a stack as it takes a
    client, (clients, rows, numbers) with streams (clients,).
    """

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


class EncoderHeadCostStack(EncoderHeadCost, EncoderHeadStack):
    """Such parts with a form for a whole stack each."""

    pays_alone = True

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`cost` for a stack: (clients,)."""
        z, moved = self.encode_stack(weights, context, batch.x, batch.used, batch.whole)
        logits = self.finish(weights, self.settle_stack(weights, context, z), batch.streams)
        return batch.loss(objective, logits), moved
