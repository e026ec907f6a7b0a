"""The report of one round: what a method returns besides the new state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tasks.tracking.metric_names import metric_name_fault

if TYPE_CHECKING:  # they import torch, and the names of methods are needed before
    from tasks.messages.update_messages import Gradients, Update


_COLUMNS = {"round", "client", "dropped", "role"}  # of clients.csv, besides those of each split


@dataclass(frozen=True)
class RoundReport:
    """What one round tells besides the new state: numbers of the round and of each client, and sentences for a person.

    ValueError for a number that MLflow would not take, or a column that clients.csv has already.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    client_metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # column, client
    messages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.metrics.items():
            wrong = metric_name_fault(name)
            if wrong:
                raise ValueError(f"Report: the metric {name!r} {wrong}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"Report: the metric {name!r} is {value!r}; give a number")
        for column in self.client_metrics:
            if column in _COLUMNS or column.startswith(("test/", "validation/")):
                raise ValueError(f"Report: {column!r} is a column of clients.csv already; give it another name")

    @classmethod
    def of(cls, updates: "Sequence[Update] | Sequence[Gradients]") -> "RoundReport":
        """Each client's training loss and their mean over rows."""
        losses = {c: v for u in updates for c, v in zip(u.clients, u.loss.tolist(), strict=True)}
        rows = sum(int(u.rows.sum()) for u in updates)
        mean = sum(float((u.loss.double() * u.rows).sum()) for u in updates) / max(rows, 1)
        return cls({"loss/train": mean}, {"train_loss": losses})

    def merge(self, other: "RoundReport") -> "RoundReport":
        """Both together; of what both name, the other's."""
        return RoundReport(
            {**self.metrics, **other.metrics},
            {**self.client_metrics, **other.client_metrics},
            (*self.messages, *other.messages),
        )
