"""Convolutions with max pooling, then dense layers."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from ...prng import fold_in
from ...server_state import Weights
from ..mlp import DenseHead, dense, dense_weights, uniform_weights
from ..network import Network, register
from ..protocols import EncoderHead, EncoderHeadStack, LinearHead
from ..wrappers.per_row_context import append_statistics, row_statistics
from .grouped_layers import GroupedLayers, Layers, PlainLayers, fold_images


@register("cnn")
@dataclass(frozen=True)
class CNN(DenseHead, EncoderHeadStack, Network):
    """Square convolutions, each followed by 2 x 2 max pooling and ReLU, then dense layers with ReLU between them.

    Rows are images (height, width) or (height, width, channels). With `padding` a convolution keeps the image's size.
    `statistics` client statistics are appended to the features before the dense layers. With `planes` they are instead
    that many images, joined as input channels: loadings of pixels and labels, of which the pixels are used.
    `channel_dropout` is the probability of dropping a whole channel of the last convolution in training. The encoder is
    then random, so the network has no encoder and head.
    """

    shape: tuple[int, ...]
    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    outputs: int
    kernel: int = 5
    padding: bool = False
    dropout: float = 0.0
    statistics: int = 0
    planes: int = 0
    channel_dropout: float = 0.0

    def with_statistics(self, statistics: int, planes: int = 0) -> "CNN | None":
        """Append the statistics to the features, or join them as images to an image of one channel."""
        return None if planes and len(self.shape) != 2 else replace(self, statistics=statistics, planes=planes)

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 3):
            raise ValueError(f"got rows of shape {self.shape}, expected images for convolutions. Use the kind mlp.")
        if min(self._sides()[-1]) < 1:
            raise ValueError(
                f"got {len(self.channels)} convolutions of {self.kernel} x {self.kernel}, each with pooling, "
                f"expected fewer, since nothing is left of an image of {self.shape[0]} x {self.shape[1]}. Use "
                "fewer, a smaller kernel, or padding."
            )

    @property
    def random(self) -> bool:
        return self.dropout > 0 or self.channel_dropout > 0

    @property
    def encoder_head(self) -> EncoderHead | None:
        """Return itself unless the encoder is random."""
        return None if self.channel_dropout else self

    @property
    def linear_head(self) -> LinearHead | None:
        """Return itself unless the encoder is random."""
        return None if self.channel_dropout else self

    @property
    def max_width(self) -> int:
        return max(
            math.prod(self.shape), *(c * math.prod(s) for c, s in zip(self.channels, self._convolved(), strict=True))
        )

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw weights and biases uniformly from ±1/√fan_in, as torch.nn does."""
        weights: dict[str, Tensor] = {}
        for layer, (in_channels, out_channels) in enumerate(
            pairwise((self._image_channels + self.planes, *self.channels))
        ):
            kernel_shape = (out_channels, in_channels, self.kernel, self.kernel)
            shapes = {f"conv{layer}.weight": kernel_shape, f"conv{layer}.bias": (out_channels,)}
            weights |= uniform_weights(fold_in(stream, layer), 1 / math.sqrt(in_channels * self.kernel**2), shapes)
        for layer, sizes in enumerate(pairwise((self.features + self._appended, *self.hidden, self.outputs))):
            weights |= dense_weights(fold_in(stream, len(self.channels) + layer), layer, *sizes)
        return weights

    @property
    def features(self) -> int:
        """Return the number of values of one row after the convolutions."""
        return self.channels[-1] * math.prod(self._sides()[-1])

    @property
    def encoded(self) -> tuple[int, int]:
        return self.channels[-1], math.prod(self._sides()[-1])

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Map x (rows, *shape) to logits (rows, outputs); a stream switches both kinds of dropout on."""
        z = self._features(weights, context, x, stream)
        return self.apply_head(weights, self.pre_head(weights, context, z), stream)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        z = self._features_stack(weights, context, x, streams)
        return self.apply_head(weights, self.pre_head_stack(weights, context, z), streams)

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Apply the convolutions: (rows, channels, positions)."""
        return self._features(weights, context, x, None), {}

    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, unpadded: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run `encode` for a stack, clients folded into channels: (clients, rows, channels, positions)."""
        return self._features_stack(weights, context, x, None), {}

    def pre_head(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Apply the first dense layer with its ReLU, if there is a hidden one."""
        features = append_statistics(z.flatten(-2), context, self._appended)
        return torch.relu(dense(weights, 0, features)) if self.hidden else features

    def _features(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        image = self._image(x, context).movedim(-1, 1)
        return self._convolve(PlainLayers(weights), image, stream).flatten(2)

    def _features_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        clients, rows = x.shape[:2]
        features = self._convolve(GroupedLayers(weights), fold_images(self._image(x, context)), streams)
        return features.reshape(rows, clients, self.channels[-1], -1).transpose(0, 1)

    def _convolve(self, layers: Layers, x: Tensor, stream: Tensor | None) -> Tensor:
        """Apply the convolutions and poolings to images."""
        for layer in range(len(self.channels)):
            x = layers.convolve(f"conv{layer}", x, self._margin)
            if layer == len(self.channels) - 1:
                x = layers.drop_channels(x, self.channel_dropout, stream)
            x = torch.relu(max_pool2d(x, 2))
        return x

    @property
    def _appended(self) -> int:
        """Return the number of statistics appended to the features."""
        return 0 if self.planes else self.statistics

    def _image(self, x: Tensor, context: Weights) -> Tensor:
        """Arrange rows as (..., rows, height, width, channels), with the client's images as the last channels."""
        lead = x.shape[: x.dim() - len(self.shape)]
        image = x.reshape(*lead, *self.shape[:2], -1)
        if not self.planes:
            return image
        pixels = math.prod(self.shape[:2])
        planes = row_statistics(x.reshape(*lead, -1), context, self.statistics).unflatten(-1, (self.planes, -1))
        client_images = planes[..., :pixels].unflatten(-1, self.shape[:2]).movedim(-3, -1)
        return torch.cat([image, client_images], -1)

    @property
    def _image_channels(self) -> int:
        return self.shape[2] if len(self.shape) == 3 else 1

    @property
    def _margin(self) -> int:
        return self.kernel // 2 if self.padding else 0

    def _convolved(self) -> list[tuple[int, ...]]:
        """Return height and width after each convolution, before pooling."""
        lost = self.kernel - 1 - 2 * self._margin
        sides, sizes = self.shape[:2], []
        for _ in self.channels:
            sizes.append(tuple(side - lost for side in sides))
            sides = tuple(side // 2 for side in sizes[-1])
        return sizes

    def _sides(self) -> list[tuple[int, ...]]:
        """Return height and width after each pooling."""
        return [tuple(side // 2 for side in sides) for sides in self._convolved()]
