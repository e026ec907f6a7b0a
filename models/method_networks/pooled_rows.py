"""A conditional network on rows of several clients: each row carries its own client's statistics behind its features."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..networks.beside_rows import STATISTICS
from ..networks.network import Network, register
from ..networks.offers import Stacked
from ..state import Weights


@register("rowwise")
@dataclass(frozen=True)
class RowWise(Stacked, Network):
    """Rows (n + q,) of a network for rows of `shape`, n numbers, and q statistics."""

    network: Any
    shape: tuple[int, ...]
    statistics: int

    def __post_init__(self) -> None:
        if self.network.costed:
            raise ValueError(
                f"rows of several clients train no {self.network.kind}, which learns from a client's batch."
            )

    @property
    def stacked(self) -> Stacked | None:
        """Its own form, if the network has one."""
        return self if self.network.stacked else None

    @property
    def dropout(self) -> float:
        """See Network."""
        return float(self.network.dropout)

    @property
    def widest(self) -> int:
        """See Network."""
        return max(self.network.widest, math.prod(self.shape) + self.statistics)

    @property
    def rates(self) -> Mapping[str, float]:
        """The network's own."""
        return dict(self.network.rates)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The network's own."""
        weights: dict[str, Tensor] = self.network.init(stream)
        return weights

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, n + q) to (rows, outputs)."""
        logits: Tensor = self.network.apply(weights, *self._apart(x), stream)
        return logits

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """The network's own, if it has one; x: (clients, rows, n + q)."""
        logits: Tensor = self.network.apply_stack(weights, *self._apart(x), streams)
        return logits

    def _apart(self, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        features = math.prod(self.shape)
        rows = x[..., :features].reshape(*x.shape[:-1], *self.shape)
        return {STATISTICS: x[..., features:]}, rows
