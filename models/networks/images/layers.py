"""The layers that a convolutional encoder is written in, once for both of its forms.

`client_layers` computes them of one client and `folded` of a whole stack: two short texts that share nothing, so that one
tests the other. Between these layers an encoder uses what takes images of either: rectifying, pooling, adding.
"""

from typing import Protocol

import torch
from torch import Tensor

BUFFERS = ("mean", "variance")
"""The running statistics of a normalising layer: they travel and are averaged, and no gradient moves them."""

MOMENTUM = 0.1  # of the running statistics, as torch.nn.BatchNorm2d has it
EPSILON = 1e-5

CHANNEL_MASKS = 0
"""Of a stream, which channels of an image are dropped; dense layers draw theirs from higher numbers."""


class Layers(Protocol):
    """One pass through an encoder, on images (rows, channels, height, width); of a stack the channels are every client's.

    `moved` collects the running statistics as they are after the pass, in training only.
    """

    moved: dict[str, Tensor]

    def convolve(self, name: str, x: Tensor, padding: int = 0, stride: int = 1) -> Tensor:
        """The convolution `name`: a client's weight (out, in, kernel, kernel), and bias (out,) if any."""

    def normalise(self, name: str, x: Tensor) -> Tensor:
        """Batch normalisation `name` (Ioffe and Szegedy 2015): a client's weight, bias and running statistics (channels,).

        In training rows are normalised by their batch, in evaluation by the running statistics. A client of whom one
        number a channel is there keeps them: their variance is not known.
        """

    def normalise_rows(self, name: str, x: Tensor) -> Tensor:
        """`normalise` of what a dense layer gives: (rows, channels), of a stack (clients, rows, channels)."""

    def drop_channels(self, x: Tensor, rate: float, stream: Tensor | None) -> Tensor:
        """Whole channels of single rows become 0, the others are scaled by 1 / (1 - rate); none without a stream.

        The stream is one client's, (), or of a stack (clients,).
        """

    def repeat(self, x: Tensor, times: int) -> Tensor:
        """Every channel so many times, side by side."""


def norm_weights(name: str, channels: int) -> dict[str, Tensor]:
    """Weight 1 and bias 0, running mean 0 and variance 1."""
    ones, zeros = torch.ones(channels), torch.zeros(channels)
    return {
        f"{name}.weight": ones,
        f"{name}.bias": zeros,
        f"{name}.mean": zeros.clone(),
        f"{name}.variance": ones.clone(),
    }
