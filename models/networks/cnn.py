"""Convolutions with max pooling, then dense layers: `cnn`, and `cnn_bn` with batch normalisation.

`cnn_bn` is the network CR3R3 of selective averaging.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from ..prng import fold_in
from ..server_state import Weights
from ..training.objectives import Batch, ClientBatch, Objective
from .grouped_layers import BUFFERS, GroupedLayers, Layers, PlainLayers, fold_images, norm_weights, unfold_images
from .mlp import DenseHead, delta_below, dense, dense_weights, drop, uniform_weights
from .network import Network, register
from .network_abilities import BatchedNetwork, ClippedGradients, EncoderHead, EncoderHeadStack, LinearHead, RowScale
from .row_gradients import KernelRows, RecordedLayers, scaled_sums
from .statistics_context import append_statistics, row_statistics


@register("cnn")
@dataclass(frozen=True)
class CNN(DenseHead, EncoderHeadStack, ClippedGradients, Network):
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

    @property
    def clipped_width(self) -> int:
        channels = pairwise((self._image_channels + self.planes, *self.channels))
        return max(self.max_width, *(below * above * self.kernel**2 for below, above in channels))

    def clipped_gradients(self, weights: Weights, context: Weights, x: Tensor, rows: RowScale) -> dict[str, Tensor]:
        """Autograd propagates deltas from the features to each convolution, but computes no gradient of a weight."""
        clients = len(x)
        layers = RecordedLayers({name: w.detach() for name, w in weights.items()})
        with torch.enable_grad():
            folded = self._convolve(layers, fold_images(self._image(x, context)), None)
        features = unfold_images(folded.detach(), clients).flatten(2)
        dense_rows = self.dense_rows(weights, append_statistics(features, context, self._appended), rows.logit_gradient)
        deltas = delta_below(weights["dense0.weight"], dense_rows[0].deltas)[..., : self.features]
        below = fold_images(deltas.unflatten(-1, (self.channels[-1], *self._sides()[-1])).movedim(2, -1))
        outputs = [output for _, _, output in layers.passed]
        found = zip(layers.passed, torch.autograd.grad(folded, outputs, below), strict=True)
        kernel_rows = [
            KernelRows.from_images(name, inputs, changes, weights[f"{name}.weight"], self._margin)
            for (name, inputs, _), changes in found
        ]
        return scaled_sums([*kernel_rows, *dense_rows], rows.scale)

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


@register("cnn_bn")
@dataclass(frozen=True)
class BatchNormCNN(BatchedNetwork, Network):
    """3 x 3 convolutions that keep the image's size, then dense layers.

    All layers but the last have normalisation and ReLU. `pooled` states after which convolutions 2 x 2 max pooling
    follows. Dropout acts on the inputs of dense layers. Rows are images (height, width) or (height, width, channels).
    Dense layers read the batch as a whole, so the network has no encoder and head.
    """

    pays_alone = True

    shape: tuple[int, ...]
    outputs: int
    channels: tuple[int, ...] = (32, 64, 128)
    pooled: tuple[bool, ...] = (False, True, True)
    hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.5

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 3):
            raise ValueError(f"got rows of shape {self.shape}, expected images for convolutions. Use the kind mlp.")
        if len(self.pooled) != len(self.channels):
            raise ValueError(
                f"pooled: got {len(self.pooled)} entries, expected {len(self.channels)}, one for each convolution "
                "in channels. Make both lists equally long."
            )
        if not math.prod(self._sides[-1]):
            raise ValueError(
                "pooled: got too many poolings, expected fewer, since nothing is left of an image "
                f"of {self.shape[0]} x {self.shape[1]}."
            )

    @property
    def max_width(self) -> int:
        sizes = (c * math.prod(side) for c, side in zip(self.channels, self._sides, strict=False))
        return max(math.prod(self.shape), *sizes, *self.hidden, self.outputs)

    @property
    def normalising(self) -> tuple[str, ...]:
        """Return weight, bias and running statistics of every layer but the last."""
        return tuple(name for layer in range(self._num_normalised) for name in norm_weights(f"norm{layer}", 0))

    @property
    def buffers(self) -> tuple[str, ...]:
        """Return the running statistics of every normalisation layer."""
        return tuple(f"norm{layer}.{part}" for layer in range(self._num_normalised) for part in BUFFERS)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw weights and biases uniformly from ±1/√fan_in, as torch.nn does."""
        weights: dict[str, Tensor] = {}
        image_channels = self.shape[2] if len(self.shape) == 3 else 1
        for layer, (in_channels, out_channels) in enumerate(pairwise((image_channels, *self.channels))):
            shapes = {f"conv{layer}.weight": (out_channels, in_channels, 3, 3), f"conv{layer}.bias": (out_channels,)}
            weights |= uniform_weights(fold_in(stream, layer), 1 / math.sqrt(9 * in_channels), shapes)
        features = self.channels[-1] * math.prod(self._sides[-1])
        for layer, sizes in enumerate(pairwise((features, *self.hidden, self.outputs))):
            weights |= dense_weights(fold_in(stream, len(self.channels) + layer), layer, *sizes)
        for layer, width in enumerate((*self.channels, *self.hidden)):
            weights |= norm_weights(f"norm{layer}", width)
        return weights

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Map x (rows, *shape) to logits (rows, outputs), normalised by running statistics."""
        return self._forward(PlainLayers(weights), weights, x, stream)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        return self._forward_stack(GroupedLayers(weights), weights, x, streams)

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the objective of rows normalised by their batch, and the new running statistics."""
        layers = PlainLayers(weights, batch.used)
        return batch.loss(objective, self._forward(layers, weights, batch.x, batch.stream)), layers.updated

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        layers = GroupedLayers(weights, batch.used, batch.unpadded)
        return batch.loss(objective, self._forward_stack(layers, weights, batch.x, batch.streams)), layers.updated

    def _forward(self, layers: PlainLayers, weights: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        images = x.reshape(x.shape[0], *self.shape[:2], -1).movedim(-1, 1)
        return self._dense_layers(layers, weights, self._convolve(layers, images).flatten(1), stream)

    def _forward_stack(self, layers: GroupedLayers, weights: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        lead = x.shape[:2]
        folded = self._convolve(layers, fold_images(x.reshape(*lead, *self.shape[:2], -1)))
        return self._dense_layers(layers, weights, folded.reshape(lead[1], lead[0], -1).transpose(0, 1), streams)

    def _convolve(self, layers: Layers, x: Tensor) -> Tensor:
        """Apply the convolutions and poolings to images."""
        for layer, pooled in enumerate(self.pooled):
            x = torch.relu(layers.normalise(f"norm{layer}", layers.convolve(f"conv{layer}", x, padding=1)))
            x = max_pool2d(x, 2) if pooled else x
        return x

    def _dense_layers(self, layers: Layers, weights: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Map features to logits, of one client (rows, numbers) or of a stack (clients, rows, numbers)."""
        for layer in range(len(self.hidden)):
            x = dense(weights, layer, drop(x, self.dropout, stream, layer + 1))
            x = torch.relu(layers.normalise_rows(f"norm{len(self.channels) + layer}", x))
        last = len(self.hidden)
        return dense(weights, last, drop(x, self.dropout, stream, last + 1))

    @property
    def _num_normalised(self) -> int:
        """Count the normalised layers."""
        return len(self.channels) + len(self.hidden)

    @property
    def _sides(self) -> list[tuple[int, ...]]:
        """Return height and width before each convolution, and after the last one's pooling."""
        sides = [tuple(self.shape[:2])]
        for pooled in self.pooled:
            sides.append(tuple(side // 2 for side in sides[-1]) if pooled else sides[-1])
        return sides
