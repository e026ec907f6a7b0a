"""The layers of a whole stack's encoders, clients folded into channels: (rows, clients * channels, height, width).

One grouped convolution then serves all clients, and each client's channels are normalised by themselves. Channels last is
the fast layout on a CPU; of one channel a tensor is both layouts at once, so it is forced.
"""

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d

from ...state import Weights
from ...streams import fold, uniform
from ..noisy_weights import Draw, Layout, Noisy
from .layers import BUFFERS, CHANNEL_MASKS, EPSILON, MOMENTUM


def fold_images(x: Tensor) -> Tensor:
    """(clients, rows, height, width, channels) to folded images."""
    return channels_last(x.permute(1, 0, 4, 2, 3).flatten(1, 2))


def unfold_images(x: Tensor, clients: int) -> Tensor:
    """Folded images to (clients, rows, channels, height, width)."""
    return x.unflatten(1, (clients, -1)).transpose(0, 1)


def channels_last(x: Tensor) -> Tensor:
    """The same numbers, the channel's running fastest in memory."""
    return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)


class Folded:
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
            return self.weights.layer(name, x, lambda w, x: Folded(w).convolve(name, x, padding, stride), _of(clients))
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
        kept = uniform(fold(stream, CHANNEL_MASKS), (rows, channels)) >= rate
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
