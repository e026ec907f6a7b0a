"""VGG16 with batch normalisation (Simonyan and Zisserman 2015), the codebook paper's encoder for colour images."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from ...prng import fold_in, normal
from ..network import register
from .encoder_head import area
from .grouped_layers import Layers, norm_weights
from .pretrained import Pretrained


@register("vgg16_bn")
@dataclass(frozen=True)
class VGG16(Pretrained):
    """Thirteen 3 x 3 convolutions in five stages, each with normalisation and ReLU; 2 x 2 max pooling ends a stage.

    These are torchvision's vgg16_bn `features`: a 32 x 32 image gives 512 channels at one position.
    """

    stages: ClassVar[tuple[tuple[int, ...], ...]] = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)

    @property
    def encoded(self) -> tuple[int, int]:
        """Return the last width, and the positions that the poolings leave."""
        return self.stages[-1][-1], area(self.shape, len(self.stages))

    @property
    def max_width(self) -> int:
        return max(width * area(self.shape, stage) for stage, widths in enumerate(self.stages) for width in widths)

    @property
    def norms(self) -> tuple[str, ...]:
        """Return one normalisation layer per convolution."""
        return tuple(f"features.{index + 1}" for index, _ in self._convolutions())

    def trunk_weights(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw weights as torchvision does: normal with variance 2 / fan_out (He et al. 2015), and zero biases."""
        weights: dict[str, Tensor] = {}
        channels = self.input_channels
        for index, width in self._convolutions():
            kernel = normal(fold_in(stream, index), (width, channels, 3, 3)) * math.sqrt(2 / (9 * width))
            weights |= {f"features.{index}.weight": kernel, f"features.{index}.bias": torch.zeros(width)}
            weights |= norm_weights(f"features.{index + 1}", width)
            channels = width
        return weights

    def trunk(self, layers: Layers, x: Tensor) -> Tensor:
        """Apply the stages."""
        x, convolutions = self.match_channels(layers, x), self._convolutions()
        for widths in self.stages:
            for _ in widths:
                index, _ = next(convolutions)
                x = layers.convolve(f"features.{index}", x, padding=1)
                x = torch.relu(layers.normalise(f"features.{index + 1}", x))
            x = max_pool2d(x, 2)
        return x

    def _convolutions(self) -> Iterator[tuple[int, int]]:
        """Yield index and width of each convolution.

        As in torchvision, the index also counts normalisation, ReLU and pooling layers.
        """
        index = 0
        for widths in self.stages:
            for width in widths:
                yield index, width
                index += 3
            index += 1
