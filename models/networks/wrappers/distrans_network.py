"""Rows mixed with the client's own offset image in two ways, both read by one backbone (DisTrans, arXiv 2210.15025)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ...prng import fold_in, uniform
from ...server_state import Weights
from ..mlp import dense, dense_weights
from ..network import register
from ..wrapper import EncoderHeadWrapper

OFFSET = "offset"
"""Name of the client's own offset t, of a row's shape."""

_HEAD, _START = 2**20, 2**20 + 1  # stream numbers of initial weights; layers use small numbers


@register("transformed")
@dataclass(frozen=True)
class OffsetNetwork(EncoderHeadWrapper):
    """logits = W [g(x1); g(x2)] + b with x1 = (1 - mix) x + mix t and x2 = (1 + mix) x - mix t; W is [outputs, 2 q].

    g is the inner network up to its last dense layer, and q is the width of that layer's input. The offset t starts
    uniform in [0, start_scale) and trains at `offset_rate` times the learning rate.
    """

    shape: tuple[int, ...]
    mix: float = 0.2
    offset_rate: float = 0.2
    start_scale: float = 1.0

    @property
    def max_width(self) -> int:
        """Return twice the inner network's width, because every row is read twice."""
        return 2 * super().max_width

    @property
    def personal(self) -> tuple[str, ...]:
        """Return the offset's name."""
        return (OFFSET,)

    @property
    def lr_multipliers(self) -> Mapping[str, float]:
        """Return the offset's learning rate relative to the optimiser's."""
        return {**super().lr_multipliers, OFFSET: self.offset_rate}

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the inner network's weights, a last layer of twice the width, uniform in ±1/√(2 q), and the offset."""
        weights = dict(self.inner.init(stream))
        width, outputs = weights[f"{self.head}.weight"].shape
        weights |= dense_weights(fold_in(stream, _HEAD), self.inner.last, 2 * width, outputs)
        return {**weights, OFFSET: uniform(fold_in(stream, _START), self.shape) * self.start_scale}

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Encode all x1, then all x2: (2 rows, channels, positions)."""
        offset = weights[OFFSET]
        both = torch.cat([(1 - self.mix) * x + self.mix * offset, (1 + self.mix) * x - self.mix * offset])
        return super().encode(weights, context, both, None if used is None else torch.cat([used, used]))

    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, unpadded: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run `encode` for a stack: (clients, 2 rows, channels, positions)."""
        step = self.mix * (weights[OFFSET].unsqueeze(1) - x)
        both = torch.cat([x + step, x - step], 1)
        return super().encode_stack(
            weights, context, both, None if used is None else torch.cat([used, used], 1), unpadded
        )

    def apply_head(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> Tensor:
        """Concatenate both representations of each row and apply the last layer."""
        first, second = self.inner.represent(weights, embedding, stream).tensor_split(2, -2)
        scores = dense(weights, self.inner.last, torch.cat([first, second], -1))
        return cast(Tensor, self.inner.to_logits(scores, stream))
