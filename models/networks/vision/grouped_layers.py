"""The layers that convolutional encoders are written in, for one client (`PlainLayers`) and for a stack (`GroupedLayers`).

The two share no code, so one tests the other. For a stack, clients are folded into channels: (rows, clients * channels,
height, width). One grouped convolution then serves all clients, and each client's channels are normalised separately.
Channels last is the fast layout on a CPU; a tensor of one channel has both layouts at once, so it is forced.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d

from ...gaussians import Draw, Layout, Noisy
from ...prng import fold_in, uniform
from ...server_state import Weights

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


class PlainLayers:
    """One client's pass, on images (rows, channels, height, width).

    With `used`, (rows,) of 1 and 0 for padding, it is training. See layers.Layers.
    """

    def __init__(self, weights: Weights, used: Tensor | None = None) -> None:
        self.weights, self.used = weights, used
        self.moved: dict[str, Tensor] = {}

    def convolve(self, name: str, x: Tensor, padding: int = 0, stride: int = 1) -> Tensor:
        """See Layers."""
        if isinstance(self.weights, Noisy):
            return self.weights.layer(
                name, x, lambda w, x: PlainLayers(w).convolve(name, x, padding, stride), _OF_IMAGES
            )
        return conv2d(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"), stride, padding)

    def normalise(self, name: str, x: Tensor) -> Tensor:
        """(x - mean) / √(variance + epsilon) weight + bias, channel by channel."""
        weight, bias, mean, variance = (self.weights[f"{name}.{p}"] for p in ("weight", "bias", "mean", "variance"))
        if self.used is not None:
            mean, variance = self._of_batch(name, x, self.used)
        scale = weight / (variance + EPSILON).sqrt()
        return (x - mean[:, None, None]) * scale[:, None, None] + bias[:, None, None]

    def normalise_rows(self, name: str, x: Tensor) -> Tensor:
        """See Layers: every row is an image of one place."""
        return self.normalise(name, x[:, :, None, None])[:, :, 0, 0]

    def drop_channels(self, x: Tensor, rate: float, stream: Tensor | None) -> Tensor:
        """See Layers."""
        if not rate or stream is None:
            return x
        kept = uniform(fold_in(stream, CHANNEL_MASKS), x.shape[:2]) >= rate
        return x * kept[:, :, None, None] / (1 - rate)

    def repeat(self, x: Tensor, times: int) -> Tensor:
        """See Layers."""
        return x.repeat_interleave(times, 1)

    def _of_batch(self, name: str, x: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the rows that are used, and how they move the running ones."""
        share, count = used.to(x.dtype), used.to(x.dtype).sum() * x.shape[2] * x.shape[3]
        mean = torch.einsum("r,rchw->c", share, x) / count.clamp_min(1)
        variance = torch.einsum("r,rchw->c", share, (x - mean[:, None, None]) ** 2) / count.clamp_min(1)
        unbiased = variance * count / (count - 1).clamp_min(1)
        for part, statistic in (("mean", mean), ("variance", unbiased)):
            before = self.weights[f"{name}.{part}"]
            after = (1 - MOMENTUM) * before + MOMENTUM * statistic.detach()
            self.moved[f"{name}.{part}"] = torch.where(count > 1, after, before)
        return mean, variance


def _numbers(draw: Draw, x: Tensor) -> Tensor:
    return draw(x.shape)


def _channels(draw: Draw, x: Tensor) -> Tensor:
    return draw(x.shape[:2])[..., None, None]


_OF_IMAGES = Layout(_numbers, _channels)


def fold_images(x: Tensor) -> Tensor:
    """(clients, rows, height, width, channels) to folded images."""
    return channels_last(x.permute(1, 0, 4, 2, 3).flatten(1, 2))


def unfold_images(x: Tensor, clients: int) -> Tensor:
    """Folded images to (clients, rows, channels, height, width)."""
    return x.unflatten(1, (clients, -1)).transpose(0, 1)


def channels_last(x: Tensor) -> Tensor:
    """The same numbers, the channel's running fastest in memory."""
    return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)


class GroupedLayers:
    """A stack's pass, on folded images; weights (clients, ...).

    With `used`, (clients, rows) of 1 and 0 for padding, it is training. See layers.Layers.
    """

    def __init__(self, weights: Weights, used: Tensor | None = None, whole: bool = True) -> None:
        """`whole`: no row is padding."""
        self.weights, self.used, self.whole = weights, used, whole
        self.moved: dict[str, Tensor] = {}

    def convolve(self, name: str, x: Tensor, padding: int = 0, stride: int = 1) -> Tensor:
        """See Layers: weight (clients, out, in, kernel, kernel), and bias (clients, out) if any."""
        if isinstance(self.weights, Noisy):
            clients = len(self.weights.means[f"{name}.weight"])
            return self.weights.layer(
                name, x, lambda w, x: GroupedLayers(w).convolve(name, x, padding, stride), _of(clients)
            )
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        kernels = channels_last(weight.flatten(0, 1))
        shift = None if bias is None else bias.flatten()
        return conv2d(x, kernels, shift, stride=stride, padding=padding, groups=len(weight))

    def normalise(self, name: str, x: Tensor) -> Tensor:
        """See Layers: weight, bias and running statistics (clients, channels)."""
        weight, bias = (self.weights[f"{name}.{part}"] for part in ("weight", "bias"))
        mean, variance = (self.weights[f"{name}.{part}"] for part in BUFFERS)
        scale, shift = weight.flatten(), bias.flatten()
        if self.used is None:
            return batch_norm(x, mean.flatten(), variance.flatten(), scale, shift, eps=EPSILON)
        numbers = x.shape[0] * x.shape[2] * x.shape[3]
        if self.whole and numbers > 1:
            held = [t.detach().flatten().clone() for t in (mean, variance)]
            out = batch_norm(x, held[0], held[1], scale, shift, True, MOMENTUM, EPSILON)
            for part, after in zip(BUFFERS, held, strict=True):
                self.moved[f"{name}.{part}"] = after.view_as(mean)
            return out
        return self._masked(name, x, scale, shift)

    def normalise_rows(self, name: str, x: Tensor) -> Tensor:
        """See Layers: every row is an image of one place, clients folded into channels."""
        images = self.normalise(name, x.transpose(0, 1).flatten(1)[:, :, None, None])
        return unfold_images(images, len(x))[..., 0, 0]

    def drop_channels(self, x: Tensor, rate: float, stream: Tensor | None) -> Tensor:
        """See Layers."""
        if not rate or stream is None:
            return x
        rows, channels = x.shape[0], x.shape[1] // len(stream)
        kept = uniform(fold_in(stream, CHANNEL_MASKS), (rows, channels)) >= rate
        return x * kept.transpose(0, 1).flatten(1)[:, :, None, None] / (1 - rate)

    def repeat(self, x: Tensor, times: int) -> Tensor:
        """See Layers."""
        return channels_last(x.repeat_interleave(times, 1))

    def _masked(self, name: str, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        assert self.used is not None
        clients, channels = self.weights[f"{name}.mean"].shape
        mask = self.used.to(x.dtype).T.repeat_interleave(channels, 1)[:, :, None, None]
        count = (self.used.sum(1) * x.shape[2] * x.shape[3]).to(x.dtype).repeat_interleave(channels)
        mean = (x * mask).sum((0, 2, 3)) / count.clamp_min(1)
        centred = x - mean[None, :, None, None]
        variance = (centred**2 * mask).sum((0, 2, 3)) / count.clamp_min(1)
        with torch.no_grad():
            known = count > 1
            unbiased = variance * count / (count - 1).clamp_min(1)
            for part, statistic in zip(BUFFERS, (mean, unbiased), strict=True):
                before = self.weights[f"{name}.{part}"].flatten()
                after = torch.where(known, before.lerp(statistic, MOMENTUM), before)
                self.moved[f"{name}.{part}"] = after.view(clients, channels)
        out = centred / (variance + EPSILON).sqrt()[None, :, None, None]
        return out * scale[None, :, None, None] + shift[None, :, None, None]


def _of(clients: int) -> Layout:
    """Draws (clients, rows, channels, ...) with the clients folded into the channels."""

    def numbers(draw: Draw, x: Tensor) -> Tensor:
        return draw((len(x), x.shape[1] // clients, *x.shape[2:])).transpose(0, 1).flatten(1, 2)

    def channels(draw: Draw, x: Tensor) -> Tensor:
        return draw((len(x), x.shape[1] // clients)).transpose(0, 1).flatten(1)[:, :, None, None]

    return Layout(numbers, channels)
