"""Networks conditioned on client statistics, which are appended to the features of each row."""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ...server_state import Weights
from ..network import Network, register
from ..network_abilities import BatchedNetwork
from ..wrapper import NetworkWrapper

STATISTICS = "statistics"
"""Name of the statistics in a model's context."""


def append_statistics(x: Tensor, context: Weights, length: int) -> Tensor:
    """Append a client's statistics to the last axis of x.

    x is (rows, n) and statistics are (length,) for one client; for a stack both have a leading client axis. Statistics
    may also be given per row, (rows, length), if rows of several clients are trained together. Without statistics in
    the context, zeros are appended: the dummy that makes a reference network equally large.
    """
    return torch.cat([x, row_statistics(x, context, length)], -1) if length else x


def row_statistics(x: Tensor, context: Weights, length: int) -> Tensor:
    """Return the statistics of every row, (..., rows, length); ValueError if they have another length."""
    return client_statistics(x, context, length).expand(*x.shape[:-1], length)


def client_statistics(x: Tensor, context: Weights, length: int) -> Tensor:
    """Return the statistics before they are repeated per row: (..., 1, length) if a client's rows share them."""
    statistics = context.get(STATISTICS)
    if statistics is None:
        return x.new_zeros(*x.shape[:-2], 1, length)
    if statistics.shape[-1] != length:
        raise ValueError(f"statistics: got {statistics.shape[-1]} numbers, expected {length}.")
    return (statistics.unsqueeze(-2) if statistics.dim() < x.dim() else statistics).to(x.dtype)


@register("rowwise")
@dataclass(frozen=True)
class PerRowContext(BatchedNetwork, NetworkWrapper):
    """Takes rows (n + q,): n numbers for a network on `shape`, and q statistics.

    Raises ValueError if the network reads whole batches.
    """

    shape: tuple[int, ...]
    statistics: int

    cost = Network.cost  # computed from its own logits, because the inner network cannot read rows with statistics

    def __post_init__(self) -> None:
        if self.inner.has_custom_cost:
            raise ValueError(
                f"got rows of several clients for {self.inner.kind}, expected one client, from whose batch it learns."
            )

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Return itself if the inner network has a batched form."""
        return self if self.inner.stacked else None

    @property
    def max_width(self) -> int:
        """Return the inner network's width, or the length of a row if that is larger."""
        return max(super().max_width, math.prod(self.shape) + self.statistics)

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Map x (rows, n + q) to (rows, outputs)."""
        return super().apply(weights, *self._split(x), stream)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """Map x (clients, rows, n + q) to (clients, rows, outputs)."""
        return cast(Tensor, self.inner.apply_stack(weights, *self._split(x), streams))

    def _split(self, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        features = math.prod(self.shape)
        rows = x[..., :features].reshape(*x.shape[:-1], *self.shape)
        return {STATISTICS: x[..., features:]}, rows
