"""The layers of one client's encoder, as their formulas say (see layers)."""

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from ...state import Weights
from ...streams import fold, uniform
from ..noisy_weights import Draw, Layout, Noisy
from .layers import CHANNEL_MASKS, EPSILON, MOMENTUM


class Plain:
    """One client's pass, on images (rows, channels, height, width).

    With `used`, (rows,) of 1 and 0 for padding, it is training. See layers.Layers.
    """

    def __init__(self, weights: Weights, used: Tensor | None = None) -> None:
        self.weights, self.used = weights, used
        self.moved: dict[str, Tensor] = {}

    def convolve(self, name: str, x: Tensor, padding: int = 0, stride: int = 1) -> Tensor:
        """See Layers."""
        if isinstance(self.weights, Noisy):
            return self.weights.layer(name, x, lambda w, x: Plain(w).convolve(name, x, padding, stride), _OF_IMAGES)
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
        kept = uniform(fold(stream, CHANNEL_MASKS), x.shape[:2]) >= rate
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
