"""Convolutions and dense layers that are normalised by their batch: CR3R3 of selective averaging."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from ...prng import fold_in
from ...server_state import Weights
from ...training.batch import Batch, ClientBatch
from ...training.objectives import Objective
from ..mlp import dense, dense_weights, drop, within
from ..network import Network, register
from ..protocols import BatchedNetwork
from .grouped_layers import BUFFERS, GroupedLayers, Layers, PlainLayers, fold_images, norm_weights


@register("cnn_bn")
@dataclass(frozen=True)
class BatchNormCNN(BatchedNetwork, Network):
    """3 x 3 convolutions that keep the image's size, then dense layers; all but the last are normalised, then rectified.

    `pooled` says after which convolutions 2 x 2 max pooling follows. Dropout acts on what each dense layer reads. Rows are
    images (height, width) or (height, width, channels). Dense layers read the batch as a whole, so there are no parts.
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
            raise ValueError(f"convolutions need images, and rows have the shape {self.shape}; use the kind mlp.")
        if len(self.pooled) != len(self.channels):
            raise ValueError(
                f"pooled says of {len(self.pooled)} convolutions whether pooling follows, and channels has "
                f"{len(self.channels)}; give both as many."
            )
        if not math.prod(self._sides[-1]):
            raise ValueError(f"its poolings leave nothing of an image of {self.shape[0]} x {self.shape[1]}.")

    @property
    def max_width(self) -> int:
        """Numbers of one row in its largest layer."""
        sizes = (c * math.prod(side) for c, side in zip(self.channels, self._sides, strict=False))
        return max(math.prod(self.shape), *sizes, *self.hidden, self.outputs)

    @property
    def normalising(self) -> tuple[str, ...]:
        """Of every layer but the last: weight, bias and running statistics."""
        return tuple(name for layer in range(self._layers) for name in norm_weights(f"norm{layer}", 0))

    @property
    def buffers(self) -> tuple[str, ...]:
        """The running statistics of every normalising layer."""
        return tuple(f"norm{layer}.{part}" for layer in range(self._layers) for part in BUFFERS)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Uniform in ±1/√fan_in, weights and biases, as torch.nn starts."""
        weights: dict[str, Tensor] = {}
        inside = self.shape[2] if len(self.shape) == 3 else 1
        for layer, (fan, outside) in enumerate(pairwise((inside, *self.channels))):
            shapes = {f"conv{layer}.weight": (outside, fan, 3, 3), f"conv{layer}.bias": (outside,)}
            weights |= within(fold_in(stream, layer), 1 / math.sqrt(9 * fan), shapes)
        features = self.channels[-1] * math.prod(self._sides[-1])
        for layer, sizes in enumerate(pairwise((features, *self.hidden, self.outputs))):
            weights |= dense_weights(fold_in(stream, len(self.channels) + layer), layer, *sizes)
        for layer, width in enumerate((*self.channels, *self.hidden)):
            weights |= norm_weights(f"norm{layer}", width)
        return weights

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) to logits (rows, outputs), normalised by the running statistics."""
        return self._answer(PlainLayers(weights), weights, x, stream)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """`apply` for a stack: x (clients, rows, *shape) to logits (clients, rows, outputs)."""
        return self._answer_stack(GroupedLayers(weights), weights, x, streams)

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of rows that are normalised by their batch, and the running statistics after it."""
        layers = PlainLayers(weights, batch.used)
        return batch.loss(objective, self._answer(layers, weights, batch.x, batch.stream)), layers.moved

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`cost` for a stack."""
        layers = GroupedLayers(weights, batch.used, batch.whole)
        return batch.loss(objective, self._answer_stack(layers, weights, batch.x, batch.streams)), layers.moved

    def _answer(self, layers: PlainLayers, weights: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        images = x.reshape(x.shape[0], *self.shape[:2], -1).movedim(-1, 1)
        return self._decide(layers, weights, self._convolve(layers, images).flatten(1), stream)

    def _answer_stack(self, layers: GroupedLayers, weights: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        lead = x.shape[:2]
        folded = self._convolve(layers, fold_images(x.reshape(*lead, *self.shape[:2], -1)))
        return self._decide(layers, weights, folded.reshape(lead[1], lead[0], -1).transpose(0, 1), streams)

    def _convolve(self, layers: Layers, x: Tensor) -> Tensor:
        """Images to what the last pooling leaves of them."""
        for layer, pooled in enumerate(self.pooled):
            x = torch.relu(layers.normalise(f"norm{layer}", layers.convolve(f"conv{layer}", x, padding=1)))
            x = max_pool2d(x, 2) if pooled else x
        return x

    def _decide(self, layers: Layers, weights: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Features to logits, of one client (rows, numbers) or of a stack (clients, rows, numbers)."""
        for layer in range(len(self.hidden)):
            x = dense(weights, layer, drop(x, self.dropout, stream, layer + 1))
            x = torch.relu(layers.normalise_rows(f"norm{len(self.channels) + layer}", x))
        last = len(self.hidden)
        return dense(weights, last, drop(x, self.dropout, stream, last + 1))

    @property
    def _layers(self) -> int:
        """Those that are normalised."""
        return len(self.channels) + len(self.hidden)

    @property
    def _sides(self) -> list[tuple[int, ...]]:
        """Height and width before each convolution, and after the last one's pooling."""
        sides = [tuple(self.shape[:2])]
        for pooled in self.pooled:
            sides.append(tuple(side // 2 for side in sides[-1]) if pooled else sides[-1])
        return sides
