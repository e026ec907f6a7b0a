"""One step's rows of a client, and of a stack of clients."""

from typing import NamedTuple

from torch import Tensor

from .objectives import Objective


class ClientBatch(NamedTuple):
    """One client's: x (rows, *shape), y (rows,), padded: `used` is 1, and 0 for padding, (rows,)."""

    x: Tensor
    y: Tensor
    used: Tensor
    rows: Tensor  # (), those that are used
    stream: Tensor  # ()

    def loss(self, objective: Objective, logits: Tensor) -> Tensor:
        """The mean over its rows, (); logits (rows, outputs)."""
        return self.mean(objective(logits, self.y))

    def mean(self, per_row: Tensor) -> Tensor:
        """The mean of numbers (rows,): ()."""
        return (per_row * self.used).sum() / self.rows.clamp_min(1)


class Batch(NamedTuple):
    """x (clients, rows, *shape), y (clients, rows), padded: `used` is 1, and 0 for padding, (clients, rows)."""

    x: Tensor
    y: Tensor
    used: Tensor
    rows: Tensor  # (clients,), those that are used
    streams: Tensor  # (clients,)
    full: bool  # whether every client has rows left
    whole: bool  # whether no row is padding

    def loss(self, objective: Objective, logits: Tensor) -> Tensor:
        """Each client's mean over its rows, (clients,); logits (clients, rows, outputs)."""
        return self.mean(objective(logits.flatten(0, 1), self.y.flatten()).view(self.y.shape))

    def mean(self, per_row: Tensor) -> Tensor:
        """Each client's mean of numbers (clients, rows): (clients,)."""
        return (per_row * self.used).sum(1) / self.rows.clamp_min(1)

    @property
    def each(self) -> ClientBatch:
        """What the clients' own batches hold, with the clients' axis before it."""
        return ClientBatch(self.x, self.y, self.used, self.rows, self.streams)
