"""Convolutions with max pooling, then dense layers."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from ..state import Weights
from ..streams import fold
from .beside_rows import join, of_rows
from .client_layers import Plain
from .dense import Ending, dense, dense_weights, within
from .folded import Folded, fold_images
from .layers import Layers
from .network import Network, register
from .offers import PartedStack


@register("cnn")
@dataclass(frozen=True)
class CNN(Ending, PartedStack, Network):
    """Square convolutions, each followed by 2 x 2 max pooling and ReLU, then dense layers with ReLU between them.

    Rows are images (height, width) or (height, width, channels). With `padding` a convolution keeps the image's size.
    `statistics` numbers of the client join the features before the dense layers; with `planes` they are that many pictures
    of the image's size instead (loadings of pixels and labels, of which the pixels are taken), joined as input channels.
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

    def reading(self, statistics: int, planes: int = 0) -> "CNN | None":
        """Beside the features, or as pictures beside an image of one channel."""
        return None if planes and len(self.shape) != 2 else replace(self, statistics=statistics, planes=planes)

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 3):
            raise ValueError(f"convolutions need images, and rows have the shape {self.shape}; use the kind mlp.")
        if min(self._sides()[-1]) < 1:
            raise ValueError(
                f"{len(self.channels)} convolutions of {self.kernel} x {self.kernel}, each with pooling, leave nothing of "
                f"an image of {self.shape[0]} x {self.shape[1]}; use fewer, a smaller kernel, or padding."
            )

    @property
    def widest(self) -> int:
        """Numbers of one row in its largest layer."""
        return max(
            math.prod(self.shape), *(c * math.prod(s) for c, s in zip(self.channels, self._convolved(), strict=True))
        )

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Uniform in ±1/√fan_in, weights and biases, as torch.nn starts."""
        weights: dict[str, Tensor] = {}
        for layer, (inside, outside) in enumerate(pairwise((self._image_channels + self.planes, *self.channels))):
            area = (outside, inside, self.kernel, self.kernel)
            shapes = {f"conv{layer}.weight": area, f"conv{layer}.bias": (outside,)}
            weights |= within(fold(stream, layer), 1 / math.sqrt(inside * self.kernel**2), shapes)
        for layer, sizes in enumerate(pairwise((self.features + self._joined, *self.hidden, self.outputs))):
            weights |= dense_weights(fold(stream, len(self.channels) + layer), layer, *sizes)
        return weights

    @property
    def features(self) -> int:
        """Numbers of one row after the convolutions."""
        return self.channels[-1] * math.prod(self._sides()[-1])

    @property
    def encoded(self) -> tuple[int, int]:
        """Channels and places of what `encode` gives."""
        return self.channels[-1], math.prod(self._sides()[-1])

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The convolutions: (rows, channels, places)."""
        return self._convolve(Plain(weights), self._image(x, context).movedim(-1, 1)).flatten(2), {}

    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, whole: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`encode` for a stack, clients folded into channels: (clients, rows, channels, places)."""
        clients, rows = x.shape[:2]
        features = self._convolve(Folded(weights), fold_images(self._image(x, context)))
        return features.reshape(rows, clients, self.channels[-1], -1).transpose(0, 1), {}

    def settle(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """The first dense layer with its ReLU, if there is a hidden one."""
        return self._settled(weights, join(z.flatten(1), context, self._joined))

    def settle_stack(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """`settle` for a stack."""
        return self._settled(weights, join(z.flatten(2), context, self._joined))

    def _convolve(self, layers: Layers, x: Tensor) -> Tensor:
        """Images to what the last pooling leaves of them."""
        for layer in range(len(self.channels)):
            x = torch.relu(max_pool2d(layers.convolve(f"conv{layer}", x, self._margin), 2))
        return x

    def _settled(self, weights: Weights, features: Tensor) -> Tensor:
        return torch.relu(dense(weights, 0, features)) if self.hidden else features

    @property
    def _joined(self) -> int:
        """Statistics that join the features."""
        return 0 if self.planes else self.statistics

    def _image(self, x: Tensor, context: Weights) -> Tensor:
        """(..., rows, height, width, channels), the client's pictures being the last ones."""
        lead = x.shape[: x.dim() - len(self.shape)]
        image = x.reshape(*lead, *self.shape[:2], -1)
        if not self.planes:
            return image
        pixels = math.prod(self.shape[:2])
        planes = of_rows(x.reshape(*lead, -1), context, self.statistics).unflatten(-1, (self.planes, -1))
        pictures = planes[..., :pixels].unflatten(-1, self.shape[:2]).movedim(-3, -1)
        return torch.cat([image, pictures], -1)

    @property
    def _image_channels(self) -> int:
        return self.shape[2] if len(self.shape) == 3 else 1

    @property
    def _margin(self) -> int:
        return self.kernel // 2 if self.padding else 0

    def _convolved(self) -> list[tuple[int, ...]]:
        """Height and width after each convolution, before pooling."""
        lost = self.kernel - 1 - 2 * self._margin
        sides, sizes = self.shape[:2], []
        for _ in self.channels:
            sizes.append(tuple(side - lost for side in sides))
            sides = tuple(side // 2 for side in sizes[-1])
        return sizes

    def _sides(self) -> list[tuple[int, ...]]:
        """Height and width after each pooling."""
        return [tuple(side // 2 for side in sides) for sides in self._convolved()]
