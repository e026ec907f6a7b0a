"""The codebook paper's residual encoders: ResNet18 (He et al. 2016), and small residual stages with pooling."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from ...prng import fold_in, normal
from ..mlp import uniform_weights
from ..network import register
from .encoder_head import EncoderHeadNetwork, area
from .grouped_layers import Layers, norm_weights
from .pretrained import Pretrained


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
