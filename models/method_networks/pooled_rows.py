"""A conditional network on rows of several clients: each row carries its own client's statistics behind its features."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..networks.beside_rows import STATISTICS
from ..networks.registry import Network
from ..state import Weights


@dataclass(frozen=True)
class RowWise:
    """Rows (n + q,) of a network for rows of `shape`, n numbers, and q statistics."""

    network: Network
    shape: tuple[int, ...]
    statistics: int

    @property
    def dropout(self) -> float:
        """See Network."""
        return self.network.dropout

    @property
    def widest(self) -> int:
        """See Network."""
        return max(self.network.widest, math.prod(self.shape) + self.statistics)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The network's own."""
        return self.network.init(stream)

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, n + q) to (rows, outputs)."""
        return self.network.apply(weights, *self._apart(x), stream)

    @property
    def apply_stack(self) -> Callable[[Weights, Weights, Tensor, Tensor | None], Tensor]:
        """The network's own, if it has one; x: (clients, rows, n + q)."""
        stacked: Any = self.network
        forward = stacked.apply_stack

        def apply(weights: Weights, _: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
            logits: Tensor = forward(weights, *self._apart(x), streams)
            return logits

        return apply

    def _apart(self, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        features = math.prod(self.shape)
        rows = x[..., :features].reshape(*x.shape[:-1], *self.shape)
        return {STATISTICS: x[..., features:]}, rows
