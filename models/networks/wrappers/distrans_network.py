"""Rows mixed with a picture of the client's own, in two ways that one backbone reads (DisTrans, arXiv 2210.15025)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...prng import fold_in, uniform
from ...server_state import Weights
from ..mlp import dense, dense_weights
from ..network import register
from ..wrapper import EncoderHeadWrapper

OFFSET = "offset"
"""The client's own picture t, of a row's shape."""

_HEAD, _START = 2**20, 2**20 + 1  # of the stream of fresh weights; the layers' streams have small numbers


@register("transformed")
@dataclass(frozen=True)
class OffsetNetwork(EncoderHeadWrapper):
    """logits = W [g(x1); g(x2)] + b with x1 = (1 - mix) x + mix t and x2 = (1 + mix) x - mix t; W is [outputs, 2 q].

    g is the inner network up to its last dense layer, q what that layer reads. The offset t starts uniform in
    [0, start_scale) and trains at `offset_rate` times the learning rate.
    """

    shape: tuple[int, ...]
    mix: float = 0.2
    offset_rate: float = 0.2
    start_scale: float = 1.0

    @property
    def max_width(self) -> int:
        """Every row is read twice."""
        return 2 * super().max_width

    @property
    def personal(self) -> tuple[str, ...]:
        """The offset."""
        return (OFFSET,)

    @property
    def rates(self) -> Mapping[str, float]:
        """The offset's learning rate, in those of the others."""
        return {**super().rates, OFFSET: self.offset_rate}

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The inner network's weights with a last layer that is twice as wide, uniform in ±1/√(2 q), and the offset."""
        weights = dict(self.inner.init(stream))
        width, outputs = weights[f"{self.head}.weight"].shape
        weights |= dense_weights(fold_in(stream, _HEAD), self.inner.last, 2 * width, outputs)
        return {**weights, OFFSET: uniform(fold_in(stream, _START), self.shape) * self.start_scale}

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Features of all x1, then of all x2: (2 rows, channels, places)."""
        offset = weights[OFFSET]
        both = torch.cat([(1 - self.mix) * x + self.mix * offset, (1 + self.mix) * x - self.mix * offset])
        return super().encode(weights, context, both, None if used is None else torch.cat([used, used]))

    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, whole: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`encode` for a stack: (clients, 2 rows, channels, places)."""
        step = self.mix * (weights[OFFSET].unsqueeze(1) - x)
        both = torch.cat([x + step, x - step], 1)
        return super().encode_stack(weights, context, both, None if used is None else torch.cat([used, used], 1), whole)

    def finish(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> Tensor:
        """Both representations of a row side by side, and the last layer."""
        first, second = self.inner.represent(weights, settled, stream).tensor_split(2, -2)
        scores = dense(weights, self.inner.last, torch.cat([first, second], -1))
        logits: Tensor = self.inner.conclude(scores, stream)
        return logits
