"""A conditional network on rows of several clients: each row carries its own client's statistics behind its features."""

import math
from dataclasses import dataclass

from torch import Tensor

from ..networks.beside_rows import STATISTICS
from ..networks.network import Network, register
from ..networks.offers import Stacked
from ..networks.wrapped import Around
from ..state import Weights


@register("rowwise")
@dataclass(frozen=True)
class RowWise(Stacked, Around):
    """Rows (n + q,) of a network for rows of `shape`, n numbers, and q statistics; ValueError if it reads whole batches."""

    shape: tuple[int, ...]
    statistics: int

    cost = Network.cost  # of its own logits: the inner network has no other, and reads no row with statistics in it

    def __post_init__(self) -> None:
        if self.inner.costed:
            raise ValueError(f"rows of several clients train no {self.inner.kind}, which learns from a client's batch.")

    @property
    def stacked(self) -> Stacked | None:
        """Its own form, if the network has one."""
        return self if self.inner.stacked else None

    @property
    def widest(self) -> int:
        """A row is as wide as all that stands in it."""
        return max(super().widest, math.prod(self.shape) + self.statistics)

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
