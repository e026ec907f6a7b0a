"""Base class of convolutional encoders with the head of the codebook paper."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor
from torch.nn.functional import gelu

from ...prng import fold_in
from ...server_state import Weights
from ..mlp import DenseHead, dense, dense_weights, drop, hidden_layers
from ..network import Network
from ..protocols import EncoderHeadCostStack
from .grouped_layers import (
    BUFFERS,
    GroupedLayers,
    Layers,
    PlainLayers,
    fold_images,
    norm_weights,
    unfold_images,
)


@dataclass(frozen=True)
class EncoderHeadNetwork(EncoderHeadCostStack, DenseHead, Network):
    """An encoder, then dense layers with GELU and dropout between them, and dropout on the logits.

    The head follows the code of arXiv 2402.18888. Rows are images (height, width) or (height, width, channels).
    `logit_dropout` false switches dropout on the logits off.
    """

    shape: tuple[int, ...]
    outputs: int
    hidden: tuple[int, ...] = (512,)
    dropout: float = 0.1
    logit_dropout: bool = True

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 3):
            raise ValueError(f"got rows of shape {self.shape}, expected images for convolutions. Use the kind mlp.")
        if self.encoded[1] < 1:
            raise ValueError(
                f"got poolings that leave nothing of an image of {self.shape[0]} x {self.shape[1]}, "
                "expected a larger image."
            )

    @abstractmethod
    def trunk(self, layers: Layers, x: Tensor) -> Tensor:
        """Map images to features, both (rows, channels, height, width)."""

    @abstractmethod
    def trunk_weights(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the encoder's weights."""

    @property
    @abstractmethod
    def norms(self) -> tuple[str, ...]:
        """Return the names of the encoder's normalisation layers."""

    @property
    def normalising(self) -> tuple[str, ...]:
        """Return weight, bias and running statistics of every normalisation layer."""
        return tuple(weight for name in self.norms for weight in norm_weights(name, 0))

    @property
    def buffers(self) -> tuple[str, ...]:
        """Return the running statistics of every normalisation layer."""
        return tuple(f"{name}.{part}" for name in self.norms for part in BUFFERS)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the encoder's weights, and dense weights uniformly from ±1/√fan_in."""
        weights = self.trunk_weights(fold_in(stream, 0))
        for layer, sizes in enumerate(pairwise((math.prod(self.encoded), *self.hidden, self.outputs))):
            weights |= dense_weights(fold_in(stream, 1 + layer), layer, *sizes)
        return weights

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Encode one client's images: (rows, channels, positions)."""
        layers = PlainLayers(weights, used)
        images = x.reshape(x.shape[0], *self.shape[:2], -1).movedim(-1, 1)
        return self.trunk(layers, images).flatten(2), layers.updated

    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, unpadded: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run `encode` for a stack, clients folded into channels: (clients, rows, channels, positions)."""
        lead = x.shape[:2]
        layers = GroupedLayers(weights, used, unpadded)
        images = fold_images(x.reshape(*lead, *self.shape[:2], -1))
        return unfold_images(self.trunk(layers, images), lead[0]).flatten(3), layers.updated

    def pre_head(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Flatten the features, channel first, and apply the first hidden layer with its GELU, if there is one."""
        features = z.flatten(-2)
        return gelu(dense(weights, 0, features)) if self.hidden else features

    def represent(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> Tensor:
        """Apply the other hidden layers, each after dropout."""
        return hidden_layers(weights, self.last, embedding, self.dropout, stream, self.last > 0, gelu)

    def to_logits(self, scores: Tensor, stream: Tensor | None) -> Tensor:
        """Apply dropout to the logits."""
        return drop(scores, self.dropout, stream, self.last + 1) if self.logit_dropout else scores

    @property
    def image_channels(self) -> int:
        """Return the channels of a row."""
        return self.shape[2] if len(self.shape) == 3 else 1


def area(shape: Sequence[int], poolings: int) -> int:
    """Count the pixels that remain of an image after `poolings` poolings."""
    return math.prod(side // 2**poolings for side in shape[:2])
