"""Defines the report of a round, which a method returns with the new state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tasks.tracking.metric_names import metric_name_fault

if TYPE_CHECKING:  # these modules import torch, and the command line needs the names of methods without it
    from tasks.messages.round_messages import Gradients, Update


_COLUMNS = {"round", "client", "dropped", "role"}  # columns of clients.csv, besides those of each split


@dataclass(frozen=True)
class RoundReport:
    """Metrics of a round and of its clients, and messages for the user.

    ValueError if MLflow would refuse a metric, or if clients.csv already has a column of that name.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    client_metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # column to client to value
    messages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.metrics.items():
            problem = metric_name_fault(name)
            if problem:
                raise ValueError(f"RoundReport: metric {name!r}: {problem}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"RoundReport: metric {name!r}: got {value!r}, expected a number")
        for column in self.client_metrics:
            if column in _COLUMNS or column.startswith(("test/", "validation/")):
                raise ValueError(
                    f"RoundReport: column {column!r}: got a column that clients.csv has already, expected another name"
                )

    @classmethod
    def from_updates(cls, updates: "Sequence[Update] | Sequence[Gradients]") -> "RoundReport":
        """Report each client's training loss, and the mean of the losses weighted by rows."""
        losses = {c: v for u in updates for c, v in zip(u.clients, u.loss.tolist(), strict=True)}
        rows = sum(int(u.rows.sum()) for u in updates)
        mean = sum(float((u.loss.double() * u.rows).sum()) for u in updates) / max(rows, 1)
        return cls({"loss/train": mean}, {"train_loss": losses})

    def merge(self, other: "RoundReport") -> "RoundReport":
        """Return both reports in one; if both name a metric, `other` has the value."""
        return RoundReport(
            {**self.metrics, **other.metrics},
            {**self.client_metrics, **other.client_metrics},
            (*self.messages, *other.messages),
        )
