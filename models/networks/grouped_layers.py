"""Layers of convolutional encoders, for one client (`PlainLayers`) and for a stack (`GroupedLayers`).

The two share no code, so each tests the other. A stack's clients are folded into channels: (rows, clients * channels,
height, width). One grouped convolution then computes all clients, and each client's channels are normalised separately.
Channels last is the fast layout on a CPU. A tensor of one channel has both layouts at once, so the layout is forced.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d

from ..gaussians import Draw, Layout, Noisy
from ..prng import fold_in, uniform
from ..server_state import Weights

BUFFERS = ("mean", "variance")
"""The running statistics of a normalisation layer: they are sent and averaged, and have no gradient."""

MOMENTUM = 0.1  # of the running statistics, as in torch.nn.BatchNorm2d
EPSILON = 1e-5

CHANNEL_MASKS = 0
"""Stream number of an image's dropped channels; dense layers use higher numbers."""


class Layers(Protocol):
    """The layers of one pass through an encoder, on images (rows, channels, height, width).

    For a stack the channels are those of all clients. In training, `updated` collects the new running statistics.
    """

    updated: dict[str, Tensor]

    def convolve(self, name: str, x: Tensor, padding: int = 0, stride: int = 1) -> Tensor:
        """Apply the convolution `name`: per client, weight (out, in, kernel, kernel) and optional bias (out,)."""

    def normalise(self, name: str, x: Tensor) -> Tensor:
        """Apply batch normalisation `name` (Ioffe and Szegedy 2015).

        Weight, bias and running statistics are (channels,). Rows are normalised by their batch in training, and by
        running statistics in evaluation. The running statistics stay unchanged if a client has only one value per
        channel, because the variance is then unknown.
        """

    def normalise_rows(self, name: str, x: Tensor) -> Tensor:
        """Run `normalise` on a dense layer's outputs: (rows, channels), or (clients, rows, channels) for a stack."""

    def drop_channels(self, x: Tensor, rate: float, stream: Tensor | None) -> Tensor:
        """Drop whole channels of single rows and scale the others by 1 / (1 - rate); without a stream return x.

        The stream is () for one client and (clients,) for a stack.
        """

    def repeat(self, x: Tensor, times: int) -> Tensor:
        """Repeat every channel `times` times, next to each other."""


def norm_weights(name: str, channels: int) -> dict[str, Tensor]:
    """Return weight 1 and bias 0, running mean 0 and variance 1."""
    ones, zeros = torch.ones(channels), torch.zeros(channels)
    return {
        f"{name}.weight": ones,
        f"{name}.bias": zeros,
        f"{name}.mean": zeros.clone(),
        f"{name}.variance": ones.clone(),
    }


class PlainLayers:
    """The layers of one client, on images (rows, channels, height, width).

    `used`, (rows,) of 1 and 0 for padding, is given in training. See Layers.
    """

    def __init__(self, weights: Weights, used: Tensor | None = None) -> None:
        self.weights, self.used = weights, used
        self.updated: dict[str, Tensor] = {}

    def convolve(self, name: str, x: Tensor, padding: int = 0, stride: int = 1) -> Tensor:
        if isinstance(self.weights, Noisy):
            return self.weights.layer(
                name, x, lambda w, x: PlainLayers(w).convolve(name, x, padding, stride), _IMAGE_LAYOUT
            )
        return conv2d(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"), stride, padding)

    def normalise(self, name: str, x: Tensor) -> Tensor:
        """Compute (x - mean) / √(variance + epsilon) weight + bias per channel."""
        weight, bias, mean, variance = (self.weights[f"{name}.{p}"] for p in ("weight", "bias", "mean", "variance"))
        if self.used is not None:
            mean, variance = self._batch_statistics(name, x, self.used)
        scale = weight / (variance + EPSILON).sqrt()
        return (x - mean[:, None, None]) * scale[:, None, None] + bias[:, None, None]

    def normalise_rows(self, name: str, x: Tensor) -> Tensor:
        """See Layers; every row is treated as an image of one pixel."""
        return self.normalise(name, x[:, :, None, None])[:, :, 0, 0]

    def drop_channels(self, x: Tensor, rate: float, stream: Tensor | None) -> Tensor:
        if not rate or stream is None:
            return x
        mask = uniform(fold_in(stream, CHANNEL_MASKS), x.shape[:2]) >= rate
        return x * mask[:, :, None, None] / (1 - rate)

    def repeat(self, x: Tensor, times: int) -> Tensor:
        return x.repeat_interleave(times, 1)

    def _batch_statistics(self, name: str, x: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the used rows, and update the running statistics."""
        share, count = used.to(x.dtype), used.to(x.dtype).sum() * x.shape[2] * x.shape[3]
        mean = torch.einsum("r,rchw->c", share, x) / count.clamp_min(1)
        variance = torch.einsum("r,rchw->c", share, (x - mean[:, None, None]) ** 2) / count.clamp_min(1)
        unbiased = variance * count / (count - 1).clamp_min(1)
        for part, statistic in (("mean", mean), ("variance", unbiased)):
            before = self.weights[f"{name}.{part}"]
            after = (1 - MOMENTUM) * before + MOMENTUM * statistic.detach()
            self.updated[f"{name}.{part}"] = torch.where(count > 1, after, before)
        return mean, variance


def _per_value(draw: Draw, x: Tensor) -> Tensor:
    return draw(x.shape)


def _per_channel(draw: Draw, x: Tensor) -> Tensor:
    return draw(x.shape[:2])[..., None, None]


_IMAGE_LAYOUT = Layout(_per_value, _per_channel)


def fold_images(x: Tensor) -> Tensor:
    """Fold (clients, rows, height, width, channels) to images (rows, clients * channels, height, width)."""
    return channels_last(x.permute(1, 0, 4, 2, 3).flatten(1, 2))


def unfold_images(x: Tensor, clients: int) -> Tensor:
    """Unfold images to (clients, rows, channels, height, width)."""
    return x.unflatten(1, (clients, -1)).transpose(0, 1)


def channels_last(x: Tensor) -> Tensor:
    """Copy to the memory layout in which the channel varies fastest."""
    return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)


class GroupedLayers:
    """The layers of a stack, on folded images; weights (clients, ...).

    `used`, (clients, rows) of 1 and 0 for padding, is given in training. See Layers.
    """

    def __init__(self, weights: Weights, used: Tensor | None = None, unpadded: bool = True) -> None:
        """Set up one pass; `unpadded` means that no row is padding."""
        self.weights, self.used, self.unpadded = weights, used, unpadded
        self.updated: dict[str, Tensor] = {}

    def convolve(self, name: str, x: Tensor, padding: int = 0, stride: int = 1) -> Tensor:
        """See Layers: weight (clients, out, in, kernel, kernel), and optional bias (clients, out)."""
        if isinstance(self.weights, Noisy):
            clients = len(self.weights.means[f"{name}.weight"])
            return self.weights.layer(
                name, x, lambda w, x: GroupedLayers(w).convolve(name, x, padding, stride), _stack_layout(clients)
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
        values = x.shape[0] * x.shape[2] * x.shape[3]
        if self.unpadded and values > 1:
            running = [t.detach().flatten().clone() for t in (mean, variance)]
            out = batch_norm(x, running[0], running[1], scale, shift, True, MOMENTUM, EPSILON)
            for part, after in zip(BUFFERS, running, strict=True):
                self.updated[f"{name}.{part}"] = after.view_as(mean)
            return out
        return self._normalise_masked(name, x, scale, shift)

    def normalise_rows(self, name: str, x: Tensor) -> Tensor:
        """See Layers; every row is treated as an image of one pixel, clients folded into channels."""
        images = self.normalise(name, x.transpose(0, 1).flatten(1)[:, :, None, None])
        return unfold_images(images, len(x))[..., 0, 0]

    def drop_channels(self, x: Tensor, rate: float, stream: Tensor | None) -> Tensor:
        if not rate or stream is None:
            return x
        rows, channels = x.shape[0], x.shape[1] // len(stream)
        mask = uniform(fold_in(stream, CHANNEL_MASKS), (rows, channels)) >= rate
        return x * mask.transpose(0, 1).flatten(1)[:, :, None, None] / (1 - rate)

    def repeat(self, x: Tensor, times: int) -> Tensor:
        return channels_last(x.repeat_interleave(times, 1))

    def _normalise_masked(self, name: str, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        assert self.used is not None
        clients, channels = self.weights[f"{name}.mean"].shape
        mask = self.used.to(x.dtype).T.repeat_interleave(channels, 1)[:, :, None, None]
        count = (self.used.sum(1) * x.shape[2] * x.shape[3]).to(x.dtype).repeat_interleave(channels)
        mean = (x * mask).sum((0, 2, 3)) / count.clamp_min(1)
        centred = x - mean[None, :, None, None]
        variance = (centred**2 * mask).sum((0, 2, 3)) / count.clamp_min(1)
        with torch.no_grad():
            has_variance = count > 1
            unbiased = variance * count / (count - 1).clamp_min(1)
            for part, statistic in zip(BUFFERS, (mean, unbiased), strict=True):
                before = self.weights[f"{name}.{part}"].flatten()
                after = torch.where(has_variance, before.lerp(statistic, MOMENTUM), before)
                self.updated[f"{name}.{part}"] = after.view(clients, channels)
        out = centred / (variance + EPSILON).sqrt()[None, :, None, None]
        return out * scale[None, :, None, None] + shift[None, :, None, None]


def _stack_layout(clients: int) -> Layout:
    """Arrange draws (clients, rows, channels, ...) with the clients folded into the channels."""

    def per_value(draw: Draw, x: Tensor) -> Tensor:
        return draw((len(x), x.shape[1] // clients, *x.shape[2:])).transpose(0, 1).flatten(1, 2)

    def per_channel(draw: Draw, x: Tensor) -> Tensor:
        return draw((len(x), x.shape[1] // clients)).transpose(0, 1).flatten(1)[:, :, None, None]

    return Layout(per_value, per_channel)
