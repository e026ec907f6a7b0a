"""A convolutional encoder with the head of the codebook paper: what encoders on images share."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor
from torch.nn.functional import gelu

from ...prng import fold_in
from ...server_state import Weights
from ..mlp import Ending, before_last, dense, dense_weights, drop
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
class EncoderHeadNetwork(EncoderHeadCostStack, Ending, Network):
    """Encoder, then dense layers with GELU and dropout between them, and dropout on the logits (arXiv 2402.18888, code).

    Rows are images (height, width) or (height, width, channels). `logit_dropout` false leaves the logits alone.
    """

    shape: tuple[int, ...]
    outputs: int
    hidden: tuple[int, ...] = (512,)
    dropout: float = 0.1
    logit_dropout: bool = True

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 3):
            raise ValueError(f"convolutions need images, and rows have the shape {self.shape}; use the kind mlp.")
        if self.encoded[1] < 1:
            raise ValueError(f"its poolings leave nothing of an image of {self.shape[0]} x {self.shape[1]}.")

    @property
    @abstractmethod
    def encoded(self) -> tuple[int, int]:
        """Channels and places of what `encode` gives."""

    @abstractmethod
    def trunk(self, layers: Layers, x: Tensor) -> Tensor:
        """Images to features, both (rows, channels, height, width)."""

    @abstractmethod
    def trunk_weights(self, stream: Tensor) -> dict[str, Tensor]:
        """Fresh weights of the encoder."""

    @property
    @abstractmethod
    def max_width(self) -> int:
        """Numbers of one row in its largest layer."""

    @property
    @abstractmethod
    def norms(self) -> tuple[str, ...]:
        """The encoder's normalising layers."""

    @property
    def normalising(self) -> tuple[str, ...]:
        """Weight, bias and running statistics of every normalising layer."""
        return tuple(weight for name in self.norms for weight in norm_weights(name, 0))

    @property
    def buffers(self) -> tuple[str, ...]:
        """The running statistics of every normalising layer."""
        return tuple(f"{name}.{part}" for name in self.norms for part in BUFFERS)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The encoder's weights, and dense ones uniform in ±1/√fan_in."""
        weights = self.trunk_weights(fold_in(stream, 0))
        for layer, sizes in enumerate(pairwise((math.prod(self.encoded), *self.hidden, self.outputs))):
            weights |= dense_weights(fold_in(stream, 1 + layer), layer, *sizes)
        return weights

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(rows, channels, places)."""
        layers = PlainLayers(weights, used)
        images = x.reshape(x.shape[0], *self.shape[:2], -1).movedim(-1, 1)
        return self.trunk(layers, images).flatten(2), layers.moved

    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, whole: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`encode` for a stack, clients folded into channels: (clients, rows, channels, places)."""
        lead = x.shape[:2]
        layers = GroupedLayers(weights, used, whole)
        images = fold_images(x.reshape(*lead, *self.shape[:2], -1))
        return unfold_images(self.trunk(layers, images), lead[0]).flatten(3), layers.moved

    def settle(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Flattened, channel first, and the first dense layer with its GELU if there is a hidden one."""
        return self._settled(weights, z.flatten(1))

    def settle_stack(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """`settle` for a stack."""
        return self._settled(weights, z.flatten(2))

    def _settled(self, weights: Weights, features: Tensor) -> Tensor:
        return gelu(dense(weights, 0, features)) if self.hidden else features

    def represent(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> Tensor:
        """The other hidden layers, each after dropout."""
        return before_last(weights, self.last, settled, self.dropout, stream, self.last > 0, gelu)

    def conclude(self, scores: Tensor, stream: Tensor | None) -> Tensor:
        """Dropout on the logits."""
        return drop(scores, self.dropout, stream, self.last + 1) if self.logit_dropout else scores

    @property
    def image_channels(self) -> int:
        """Of a row."""
        return self.shape[2] if len(self.shape) == 3 else 1


def area(shape: Sequence[int], poolings: int) -> int:
    """Positions that so many poolings leave of an image."""
    return math.prod(side // 2**poolings for side in shape[:2])
