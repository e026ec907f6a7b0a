"""Networks conditioned on client statistics, which are appended to the features of each row."""

import math
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ...server_state import Weights
from ..network import Network, register
from ..network_abilities import BatchedNetwork
from ..statistics_context import STATISTICS
from ..wrapper import NetworkWrapper


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
