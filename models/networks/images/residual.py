"""Three (or more) residual stages with pooling: the encoder of the codebook paper for small grey images."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from ...streams import fold
from ..dense import within
from ..network import register
from .headed import Headed, area
from .layers import Layers, norm_weights


@register("residual")
@dataclass(frozen=True)
class Residual(Headed):
    """A stage is a 3 x 3 convolution, a basic block (He et al. 2016) of the same width, and 2 x 2 max pooling.

    The paper's widths are 128, 256, 512 (arXiv 2402.18888, code).
    """

    widths: tuple[int, ...] = (16, 32, 64)

    @property
    def encoded(self) -> tuple[int, int]:
        """The last width, and the places that the poolings leave."""
        return self.widths[-1], area(self.shape, len(self.widths))

    @property
    def widest(self) -> int:
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
            name, substream = f"stage{stage}", fold(stream, stage)
            shapes: dict[str, tuple[int, ...]] = {
                f"{name}.conv.weight": (width, inside, 3, 3),
                f"{name}.conv.bias": (width,),
            }
            weights |= within(fold(substream, 0), 1 / math.sqrt(9 * inside), shapes)
            for at in (1, 2):
                kernel: dict[str, tuple[int, ...]] = {f"{name}.conv{at}.weight": (width, width, 3, 3)}
                weights |= within(fold(substream, at), 1 / math.sqrt(9 * width), kernel)
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
