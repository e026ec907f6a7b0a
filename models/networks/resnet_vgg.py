"""The codebook paper's encoders: ResNet18 (He et al. 2016), small residual stages, and VGG16 for colour images.

VGG16 has batch normalisation (Simonyan and Zisserman 2015).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from ..prng import fold_in, normal
from .grouped_layers import Layers, norm_weights
from .mlp import uniform_weights
from .network import register
from .pretrained_encoder import EncoderHeadNetwork, Pretrained, area


class _Block(NamedTuple):
    name: str
    channels: int
    width: int
    stride: int

    @property
    def projects(self) -> bool:
        return self.stride > 1 or self.channels != self.width


@register("resnet18")
@dataclass(frozen=True)
class ResNet18(Pretrained):
    """A 7 x 7 convolution of stride 2, 3 x 3 max pooling, four layers of two basic blocks, and the mean over positions.

    It is torchvision's resnet18 without its last layer: 512 channels at one position for any image size.
    """

    widths: ClassVar[tuple[int, ...]] = (64, 128, 256, 512)

    @property
    def encoded(self) -> tuple[int, int]:
        """Return the last width, at one position."""
        return self.widths[-1], 1

    @property
    def max_width(self) -> int:
        layers = [width * _pixels(self.shape, 2 + layer) for layer, width in enumerate(self.widths)]
        return max(self.widths[0] * _pixels(self.shape, 1), *layers)

    @property
    def norms(self) -> tuple[str, ...]:
        """Return the normalisation layers of the stem, two per block, and those of projections."""
        names = ["bn1"]
        for block in self._blocks():
            names += [f"{block.name}.bn1", f"{block.name}.bn2"]
            names += [f"{block.name}.downsample.1"] if block.projects else []
        return tuple(names)

    def trunk_weights(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw weights as torchvision does: normal with variance 2 / fan_out (He et al. 2015), without biases."""
        weights = _draw_kernel(fold_in(stream, 0), "conv1", (self.widths[0], self.input_channels, 7, 7))
        weights |= norm_weights("bn1", self.widths[0])
        for index, block in enumerate(self._blocks()):
            substream, name, width = fold_in(stream, 1 + index), block.name, block.width
            for conv, channels in ((1, block.channels), (2, width)):
                weights |= _draw_kernel(fold_in(substream, conv), f"{name}.conv{conv}", (width, channels, 3, 3))
                weights |= norm_weights(f"{name}.bn{conv}", width)
            if block.projects:
                weights |= _draw_kernel(fold_in(substream, 0), f"{name}.downsample.0", (width, block.channels, 1, 1))
                weights |= norm_weights(f"{name}.downsample.1", width)
        return weights

    def trunk(self, layers: Layers, x: Tensor) -> Tensor:
        """Apply the stem and the blocks, and average over positions."""
        x = layers.convolve("conv1", self.match_channels(layers, x), padding=3, stride=2)
        x = torch.relu(layers.normalise("bn1", x))
        x = max_pool2d(x, 3, stride=2, padding=1)
        for block in self._blocks():
            name, shortcut = block.name, x
            x = torch.relu(layers.normalise(f"{name}.bn1", layers.convolve(f"{name}.conv1", x, 1, block.stride)))
            x = layers.normalise(f"{name}.bn2", layers.convolve(f"{name}.conv2", x, padding=1))
            if block.projects:
                shortcut = layers.convolve(f"{name}.downsample.0", shortcut, stride=block.stride)
                shortcut = layers.normalise(f"{name}.downsample.1", shortcut)
            x = torch.relu(x + shortcut)
        return x.mean((2, 3), keepdim=True)

    def _blocks(self) -> Iterator[_Block]:
        channels = self.widths[0]
        for layer, width in enumerate(self.widths):
            for index in range(2):
                yield _Block(f"layer{layer + 1}.{index}", channels, width, 2 if layer and not index else 1)
                channels = width


def _draw_kernel(stream: Tensor, name: str, shape: tuple[int, int, int, int]) -> dict[str, Tensor]:
    fan_out = shape[0] * shape[2] * shape[3]
    return {f"{name}.weight": normal(stream, shape) * math.sqrt(2 / fan_out)}


def _pixels(shape: tuple[int, ...], times: int) -> int:
    """Count the pixels after `times` layers of stride 2, each rounding up."""
    return math.prod(-(-side // 2**times) for side in shape[:2])


@register("residual")
@dataclass(frozen=True)
class Residual(EncoderHeadNetwork):
    """Stages of a 3 x 3 convolution, a basic block (He et al. 2016) of the same width, and 2 x 2 max pooling.

    The paper's widths are 128, 256, 512 (code of arXiv 2402.18888).
    """

    widths: tuple[int, ...] = (16, 32, 64)

    @property
    def encoded(self) -> tuple[int, int]:
        """Return the last width, and the positions that the poolings leave."""
        return self.widths[-1], area(self.shape, len(self.widths))

    @property
    def max_width(self) -> int:
        pixels = [area(self.shape, stage) for stage in range(len(self.widths))]
        return max(w * p for w, p in zip(self.widths, pixels, strict=True))

    @property
    def norms(self) -> tuple[str, ...]:
        """Return two normalisation layers per stage."""
        return tuple(f"stage{stage}.norm{conv}" for stage in range(len(self.widths)) for conv in (1, 2))

    def trunk_weights(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw weights and biases uniformly from ±1/√fan_in, as torch.nn does."""
        weights: dict[str, Tensor] = {}
        channels = self.image_channels
        for stage, width in enumerate(self.widths):
            name, substream = f"stage{stage}", fold_in(stream, stage)
            shapes: dict[str, tuple[int, ...]] = {
                f"{name}.conv.weight": (width, channels, 3, 3),
                f"{name}.conv.bias": (width,),
            }
            weights |= uniform_weights(fold_in(substream, 0), 1 / math.sqrt(9 * channels), shapes)
            for conv in (1, 2):
                kernel: dict[str, tuple[int, ...]] = {f"{name}.conv{conv}.weight": (width, width, 3, 3)}
                weights |= uniform_weights(fold_in(substream, conv), 1 / math.sqrt(9 * width), kernel)
                weights |= norm_weights(f"{name}.norm{conv}", width)
            channels = width
        return weights

    def trunk(self, layers: Layers, x: Tensor) -> Tensor:
        """Apply the stages."""
        for stage in range(len(self.widths)):
            name = f"stage{stage}"
            x = layers.convolve(f"{name}.conv", x, padding=1)
            residual = layers.convolve(f"{name}.conv1", x, padding=1)
            residual = torch.relu(layers.normalise(f"{name}.norm1", residual))
            residual = layers.normalise(f"{name}.norm2", layers.convolve(f"{name}.conv2", residual, padding=1))
            x = max_pool2d(torch.relu(residual + x), 2)
        return x


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
