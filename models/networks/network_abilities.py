"""Base classes by which a network declares abilities besides its functions of one client (see network)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from torch import Tensor

from ..server_state import Weights
from ..training.objectives import Batch, ClientBatch, Objective


class BatchedNetwork(ABC):
    """A hand-written form for a whole stack, equal to the function of each client."""

    pays_alone: ClassVar[bool] = False  # whether it is also faster for a single client

    @abstractmethod
    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """Map the rows of a stack to logits.

        Args:
            weights: Names to (clients, ...).
            context: Names to (clients, ...); it may be empty.
            x: (clients, rows, *shape) float32.
            streams: Random streams, (clients,); None switches dropout off.

        Returns:
            (clients, rows, outputs), equal to `apply` of each client.
        """

    def apply_to_common(self, weights: Weights, context: Weights, x: Tensor) -> Tensor:
        """Map rows that all clients have in common, (rows, *shape), to the logits of each client, without dropout.

        A network overrides it if one product over the rows is faster than a product for each client.
        """
        clients = len(next(iter(weights.values())))
        return self.apply_stack(weights, context, x.expand(clients, *x.shape), None)

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each client's training loss, (clients,), and the buffers after the step.

        Args:
            weights: Names to (clients, ...).
            context: Names to (clients, ...); it may be empty.
            batch: A padded batch of the stack.
            objective: The loss of a row.
        """
        return batch.loss(objective, self.apply_stack(weights, context, batch.x, batch.streams)), {}


class SGDStep(NamedTuple):
    """A step of plain gradient descent, w <- keep w - rate dL/dw.

    `logit_gradient` maps logits to dL/dlogits, both (clients, rows, outputs).
    """

    streams: Tensor
    logit_gradient: Callable[[Tensor], Tensor]
    rate: float
    keep: float


class FusedSGD(ABC):
    """A step of plain gradient descent that does not store the gradient."""

    @abstractmethod
    def sgd_step(self, weights: Weights, context: Weights, x: Tensor, step: SGDStep) -> None:
        """Update the weights of a stack in place.

        Args:
            weights: Names to (clients, ...), which are changed.
            context: Names to (clients, ...); it may be empty.
            x: (clients, rows, *shape) float32.
            step: The rate, the decay, and the gradient with respect to the logits.
        """


class ClippedGradients(ABC):
    """Per-row clipping in one backward pass: a layer's gradient of a row is its inputs times its deltas."""

    @property
    @abstractmethod
    def clipped_width(self) -> int:
        """Return the numbers of the largest tensor that the pass holds for one row."""

    @abstractmethod
    def clipped_gradients(self, weights: Weights, context: Weights, x: Tensor, rows: "RowScale") -> dict[str, Tensor]:
        """Sum each client's row gradients, each scaled by what `rows.scale` returns for its norm.

        Args:
            weights: Names to (clients, ...).
            context: Names to (clients, ...); it may be empty.
            x: (clients, rows, *shape) float32.
            rows: The gradient with respect to the logits, and the scale of a row.

        Returns:
            Names of the weights to (clients, ...).
        """


class RowScale(NamedTuple):
    """What `ClippedGradients` needs of each row.

    `logit_gradient` maps logits to dL/dlogits of each row, both (clients, rows, outputs). `scale` maps squared gradient
    norms to factors, both (clients, rows).
    """

    logit_gradient: Callable[[Tensor], Tensor]
    scale: Callable[[Tensor], Tensor]


class EncoderHead(ABC):
    """Three parts of one client's network, of which only the last is random.

    `apply_head(pre_head(encode(x)))` is `apply`. `encode` gives features, which codewords may replace. `pre_head`
    continues to the first dropout, and `apply_head` computes the rest. The passes of Monte-Carlo dropout share
    everything before `apply_head`.
    """

    @property
    @abstractmethod
    def encoded(self) -> tuple[int, int]:
        """Return the channels and positions of the features."""

    @abstractmethod
    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Map the rows of one client to features, and return the buffers updated by training.

        Args:
            weights: The client's weights by name.
            context: What is not trained, by name; it may be empty.
            x: (rows, *shape) float32.
            used: (rows,), 1 for rows and 0 for padding; given in training only.

        Returns:
            Features, (rows, channels, positions), and buffers by name.
        """

    @abstractmethod
    def pre_head(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Map features to the embedding that the head starts from; nothing random happens here.

        Args:
            weights: The client's weights by name.
            context: What is not trained, by name; it may be empty.
            z: (rows, channels, positions).

        Returns:
            (rows, numbers).
        """

    @abstractmethod
    def apply_head(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> Tensor:
        """Map the embedding to logits.

        Args:
            weights: The client's weights by name.
            embedding: (rows, numbers).
            stream: The random stream of dropout, (); None switches dropout off.

        Returns:
            (rows, outputs).
        """

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Map x (rows, *shape) to logits (rows, outputs), one part after another."""
        z, _ = self.encode(weights, context, x)
        return self.apply_head(weights, self.pre_head(weights, context, z), stream)


class EncoderHeadCost(EncoderHead):
    """Encoder and head, where the encoder may read the batch as a whole, as batch normalisation does."""

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the objective of one client's batch, and the updated buffers."""
        z, buffers = self.encode(weights, context, batch.x, batch.used)
        logits = self.apply_head(weights, self.pre_head(weights, context, z), batch.stream)
        return batch.loss(objective, logits), buffers


class LinearHead(EncoderHead):
    """Encoder and head, where the head ends in one dense layer.

    `apply_head` is `represent`, this layer, then `to_logits`. The layer's weights are `dense{last}.weight` (in, out)
    and `dense{last}.bias` (out,).
    """

    @property
    @abstractmethod
    def last(self) -> int:
        """Return the index of the last dense layer."""

    @abstractmethod
    def represent(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> Tensor:
        """Compute the last layer's inputs.

        Args:
            weights: The client's weights by name.
            embedding: (rows, numbers).
            stream: The random stream of dropout, (); None switches dropout off.

        Returns:
            (rows, inputs of the last layer).
        """

    @abstractmethod
    def to_logits(self, scores: Tensor, stream: Tensor | None) -> Tensor:
        """Convert the last layer's outputs to logits."""


class EncoderHeadStack(EncoderHead, BatchedNetwork):
    """Encoder and head with a batched form of each part.

    `apply_head`, `represent` and `to_logits` consist of dense layers: they take a stack like a client, (clients, rows,
    numbers) with streams (clients,).
    """

    @abstractmethod
    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, unpadded: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run `encode` for a stack.

        Args:
            weights: Names to (clients, ...).
            context: Names to (clients, ...); it may be empty.
            x: (clients, rows, *shape) float32.
            used: (clients, rows), 1 for rows and 0 for padding; given in training only.
            unpadded: Whether no row is padding.

        Returns:
            Features, (clients, rows, channels, positions), and buffers by name.
        """

    def pre_head_stack(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Map features to (clients, rows, numbers); by default `pre_head` takes a stack like a client."""
        return self.pre_head(weights, context, z)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """Run `apply` for a stack: x (clients, rows, *shape) to logits (clients, rows, outputs)."""
        z, _ = self.encode_stack(weights, context, x)
        return self.apply_head(weights, self.pre_head_stack(weights, context, z), streams)


class EncoderHeadCostStack(EncoderHeadCost, EncoderHeadStack):
    """Encoder and head with batched forms, where the encoder may read the batch as a whole."""

    pays_alone = True

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run `cost` for a stack: (clients,)."""
        z, buffers = self.encode_stack(weights, context, batch.x, batch.used, batch.unpadded)
        logits = self.apply_head(weights, self.pre_head_stack(weights, context, z), batch.streams)
        return batch.loss(objective, logits), buffers
