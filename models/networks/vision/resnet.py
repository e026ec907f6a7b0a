"""Residual encoders of the codebook paper: ResNet18 (He et al. 2016), and small residual stages with pooling."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from ...prng import fold_in, normal
from ..mlp import within
from ..network import register
from .encoder_head import EncoderHeadNetwork, area
from .grouped_layers import Layers, norm_weights
from .pretrained import Pretrained


class _Block(NamedTuple):
    name: str
    inside: int
    width: int
    stride: int

    @property
    def projects(self) -> bool:
        return self.stride > 1 or self.inside != self.width


@register("resnet18")
@dataclass(frozen=True)
class ResNet18(Pretrained):
    """A 7 x 7 convolution with stride 2 and 3 x 3 max pooling, four layers of two basic blocks, and the mean over places.

    torchvision's resnet18 without its last layer: 512 channels at one place, whatever the image's size.
    """

    widths: ClassVar[tuple[int, ...]] = (64, 128, 256, 512)

    @property
    def encoded(self) -> tuple[int, int]:
        """The last width, at one place."""
        return self.widths[-1], 1

    @property
    def max_width(self) -> int:
        """Numbers of one row in its largest layer."""
        layers = [width * _halved(self.shape, 2 + layer) for layer, width in enumerate(self.widths)]
        return max(self.widths[0] * _halved(self.shape, 1), *layers)

    @property
    def norms(self) -> tuple[str, ...]:
        """The stem's, two a block, and those of projections."""
        names = ["bn1"]
        for block in self._blocks():
            names += [f"{block.name}.bn1", f"{block.name}.bn2"]
            names += [f"{block.name}.downsample.1"] if block.projects else []
        return tuple(names)

    def trunk_weights(self, stream: Tensor) -> dict[str, Tensor]:
        """As torchvision starts: normal with variance 2 / fan_out (He et al. 2015), no biases."""
        weights = _kernel(fold_in(stream, 0), "conv1", (self.widths[0], self.taken, 7, 7))
        weights |= norm_weights("bn1", self.widths[0])
        for number, block in enumerate(self._blocks()):
            substream, name, width = fold_in(stream, 1 + number), block.name, block.width
            for at, inside in ((1, block.inside), (2, width)):
                weights |= _kernel(fold_in(substream, at), f"{name}.conv{at}", (width, inside, 3, 3))
                weights |= norm_weights(f"{name}.bn{at}", width)
            if block.projects:
                weights |= _kernel(fold_in(substream, 0), f"{name}.downsample.0", (width, block.inside, 1, 1))
                weights |= norm_weights(f"{name}.downsample.1", width)
        return weights

    def trunk(self, layers: Layers, x: Tensor) -> Tensor:
        """The stem, each block in turn, and the mean over places."""
        x = layers.convolve("conv1", self.taken_images(layers, x), padding=3, stride=2)
        x = torch.relu(layers.normalise("bn1", x))
        x = max_pool2d(x, 3, stride=2, padding=1)
        for block in self._blocks():
            name, past = block.name, x
            x = torch.relu(layers.normalise(f"{name}.bn1", layers.convolve(f"{name}.conv1", x, 1, block.stride)))
            x = layers.normalise(f"{name}.bn2", layers.convolve(f"{name}.conv2", x, padding=1))
            if block.projects:
                past = layers.convolve(f"{name}.downsample.0", past, stride=block.stride)
                past = layers.normalise(f"{name}.downsample.1", past)
            x = torch.relu(x + past)
        return x.mean((2, 3), keepdim=True)

    def _blocks(self) -> Iterator[_Block]:
        inside = self.widths[0]
        for layer, width in enumerate(self.widths):
            for place in range(2):
                yield _Block(f"layer{layer + 1}.{place}", inside, width, 2 if layer and not place else 1)
                inside = width


def _kernel(stream: Tensor, name: str, shape: tuple[int, int, int, int]) -> dict[str, Tensor]:
    fan_out = shape[0] * shape[2] * shape[3]
    return {f"{name}.weight": normal(stream, shape) * math.sqrt(2 / fan_out)}


def _halved(shape: tuple[int, ...], times: int) -> int:
    """Positions of an image after so many layers of stride 2, each of which rounds up."""
    return math.prod(-(-side // 2**times) for side in shape[:2])


@register("residual")
@dataclass(frozen=True)
class Residual(EncoderHeadNetwork):
    """A stage is a 3 x 3 convolution, a basic block (He et al. 2016) of the same width, and 2 x 2 max pooling.

    The paper's widths are 128, 256, 512 (arXiv 2402.18888, code).
    """

    widths: tuple[int, ...] = (16, 32, 64)

    @property
    def encoded(self) -> tuple[int, int]:
        """The last width, and the places that the poolings leave."""
        return self.widths[-1], area(self.shape, len(self.widths))

    @property
    def max_width(self) -> int:
        """Numbers of one row in its largest layer."""
        pixels = [area(self.shape, stage) for stage in range(len(self.widths))]
        return max(w * p for w, p in zip(self.widths, pixels, strict=True))

    @property
    def norms(self) -> tuple[str, ...]:
        """Two a stage."""
        return tuple(f"stage{stage}.norm{at}" for stage in range(len(self.widths)) for at in (1, 2))

    def trunk_weights(self, stream: Tensor) -> dict[str, Tensor]:
        """Uniform in ±1/√fan_in, weights and biases, as torch.nn starts."""
        weights: dict[str, Tensor] = {}
        inside = self.image_channels
        for stage, width in enumerate(self.widths):
            name, substream = f"stage{stage}", fold_in(stream, stage)
            shapes: dict[str, tuple[int, ...]] = {
                f"{name}.conv.weight": (width, inside, 3, 3),
                f"{name}.conv.bias": (width,),
            }
            weights |= within(fold_in(substream, 0), 1 / math.sqrt(9 * inside), shapes)
            for at in (1, 2):
                kernel: dict[str, tuple[int, ...]] = {f"{name}.conv{at}.weight": (width, width, 3, 3)}
                weights |= within(fold_in(substream, at), 1 / math.sqrt(9 * width), kernel)
                weights |= norm_weights(f"{name}.norm{at}", width)
            inside = width
        return weights

    def trunk(self, layers: Layers, x: Tensor) -> Tensor:
        """Each stage in turn."""
        for stage in range(len(self.widths)):
            name = f"stage{stage}"
            x = layers.convolve(f"{name}.conv", x, padding=1)
            inner = layers.convolve(f"{name}.conv1", x, padding=1)
            inner = torch.relu(layers.normalise(f"{name}.norm1", inner))
            inner = layers.normalise(f"{name}.norm2", layers.convolve(f"{name}.conv2", inner, padding=1))
            x = max_pool2d(torch.relu(inner + x), 2)
        return x
