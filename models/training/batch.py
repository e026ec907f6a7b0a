"""Batches of one training step, for one client and for a stack of clients."""

from typing import NamedTuple

from torch import Tensor

from .objectives import Objective


class ClientBatch(NamedTuple):
    """One client's padded batch: x (rows, *shape), y (rows,); `used` (rows,) is 1 for rows and 0 for padding."""

    x: Tensor
    y: Tensor
    used: Tensor
    rows: Tensor  # (), the count of used rows
    stream: Tensor  # ()

    def loss(self, objective: Objective, logits: Tensor) -> Tensor:
        """Compute the mean loss over the used rows, (); logits (rows, outputs)."""
        return self.mean(objective(logits, self.y))

    def mean(self, per_row: Tensor) -> Tensor:
        """Average per-row values (rows,) over the used rows."""
        return (per_row * self.used).sum() / self.rows.clamp_min(1)


class Batch(NamedTuple):
    """A stack's padded batch: x (clients, rows, *shape), y (clients, rows).

    `used` (clients, rows) is 1 for rows and 0 for padding.
    """

    x: Tensor
    y: Tensor
    used: Tensor
    rows: Tensor  # (clients,), the counts of used rows
    streams: Tensor  # (clients,)
    all_active: bool  # whether every client has rows left
    unpadded: bool  # whether no row is padding

    def loss(self, objective: Objective, logits: Tensor) -> Tensor:
        """Compute each client's mean loss over its used rows, (clients,); logits (clients, rows, outputs)."""
        return self.mean(objective(logits.flatten(0, 1), self.y.flatten()).view(self.y.shape))

    def mean(self, per_row: Tensor) -> Tensor:
        """Average per-row values (clients, rows) over each client's used rows, (clients,)."""
        return (per_row * self.used).sum(1) / self.rows.clamp_min(1)

    @property
    def each(self) -> ClientBatch:
        """Return the same batch as a ClientBatch, where every field has a leading client axis to map over."""
        return ClientBatch(self.x, self.y, self.used, self.rows, self.streams)
