"""VGG16 with batch normalisation (Simonyan and Zisserman 2015): the encoder of the codebook paper for colour images."""

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
    """Thirteen 3 x 3 convolutions in five stages, each normalised and rectified; 2 x 2 max pooling ends a stage.

    Only `features` of torchvision's vgg16_bn: of a 32 x 32 image 512 channels at one place.
    """

    stages: ClassVar[tuple[tuple[int, ...], ...]] = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)

    @property
    def encoded(self) -> tuple[int, int]:
        """The last width, and the places that the poolings leave."""
        return self.stages[-1][-1], area(self.shape, len(self.stages))

    @property
    def max_width(self) -> int:
        """Numbers of one row in its largest layer."""
        return max(width * area(self.shape, stage) for stage, widths in enumerate(self.stages) for width in widths)

    @property
    def norms(self) -> tuple[str, ...]:
        """One after every convolution."""
        return tuple(f"features.{at + 1}" for at, _ in self._convolutions())

    def trunk_weights(self, stream: Tensor) -> dict[str, Tensor]:
        """As torchvision starts: normal with variance 2 / fan_out (He et al. 2015), biases 0."""
        weights: dict[str, Tensor] = {}
        inside = self.taken
        for at, width in self._convolutions():
            kernel = normal(fold_in(stream, at), (width, inside, 3, 3)) * math.sqrt(2 / (9 * width))
            weights |= {f"features.{at}.weight": kernel, f"features.{at}.bias": torch.zeros(width)}
            weights |= norm_weights(f"features.{at + 1}", width)
            inside = width
        return weights

    def trunk(self, layers: Layers, x: Tensor) -> Tensor:
        """Each stage in turn."""
        x, places = self.taken_images(layers, x), self._convolutions()
        for widths in self.stages:
            for _ in widths:
                at, _ = next(places)
                x = layers.convolve(f"features.{at}", x, padding=1)
                x = torch.relu(layers.normalise(f"features.{at + 1}", x))
            x = max_pool2d(x, 2)
        return x

    def _convolutions(self) -> Iterator[tuple[int, int]]:
        """Number and width of each; normalising, rectifying and pooling layers are counted too, as torchvision does."""
        at = 0
        for widths in self.stages:
            for width in widths:
                yield at, width
                at += 3
            at += 1
