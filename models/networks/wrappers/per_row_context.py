"""Networks that are conditional on statistics of clients, appended to the features of each row."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...server_state import Weights
from ..network import Network, register
from ..protocols import BatchedNetwork
from ..wrapper import NetworkWrapper

STATISTICS = "statistics"
"""The name of the statistics in a model's context."""


def join(x: Tensor, context: Weights, length: int) -> Tensor:
    """[x, statistics] in the last axis: of one client x (rows, n) and statistics (length,), of a stack (clients, ...).

    Statistics may also come row by row, (rows, length), where rows of several clients are trained together. A model
    without statistics in its context has zeros in their place: the dummy that makes a reference as large.
    """
    return torch.cat([x, of_rows(x, context, length)], -1) if length else x


def of_rows(x: Tensor, context: Weights, length: int) -> Tensor:
    """The statistics of every row: (..., rows, length); ValueError if they have another length."""
    return of_client(x, context, length).expand(*x.shape[:-1], length)


def of_client(x: Tensor, context: Weights, length: int) -> Tensor:
    """The same before they are repeated: (..., 1, length) where a client's rows share them."""
    statistics = context.get(STATISTICS)
    if statistics is None:
        return x.new_zeros(*x.shape[:-2], 1, length)
    if statistics.shape[-1] != length:
        raise ValueError(f"the network takes {length} statistics of a client, and was given {statistics.shape[-1]}.")
    return (statistics.unsqueeze(-2) if statistics.dim() < x.dim() else statistics).to(x.dtype)


@register("rowwise")
@dataclass(frozen=True)
class PerRowContext(BatchedNetwork, NetworkWrapper):
    """Rows (n + q,) of a network for rows of `shape`, n numbers, and q statistics; ValueError if it reads whole batches."""

    shape: tuple[int, ...]
    statistics: int

    cost = Network.cost  # of its own logits: the inner network has no other, and reads no row with statistics in it

    def __post_init__(self) -> None:
        if self.inner.costed:
            raise ValueError(f"rows of several clients train no {self.inner.kind}, which learns from a client's batch.")

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Its own form, if the network has one."""
        return self if self.inner.stacked else None

    @property
    def max_width(self) -> int:
        """A row is as wide as all that stands in it."""
        return max(super().max_width, math.prod(self.shape) + self.statistics)

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, n + q) to (rows, outputs)."""
        return super().apply(weights, *self._apart(x), stream)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """The network's own, if it has one; x: (clients, rows, n + q)."""
        logits: Tensor = self.inner.apply_stack(weights, *self._apart(x), streams)
        return logits

    def _apart(self, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        features = math.prod(self.shape)
        rows = x[..., :features].reshape(*x.shape[:-1], *self.shape)
        return {STATISTICS: x[..., features:]}, rows
