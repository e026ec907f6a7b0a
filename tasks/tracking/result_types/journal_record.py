"""Types of the journal's record of a round, and of what is read from it."""

from typing import NotRequired, TypedDict

from tasks.tracking.result_types.run_result import Metrics

ClientRow = dict[str, str | float | None]
"""A client's `role`, and its values by column, such as `test/accuracy` or `train_loss`; null for a value it lacks."""


class Memory(TypedDict):
    """Bytes of memory that the process holds after a round."""

    resident: int


class TimedMetrics(TypedDict):
    """Metrics of a round, with the time at which they were computed."""

    round: int
    time_ms: int
    """Milliseconds since 1970."""
    metrics: Metrics
    memory: NotRequired[Memory]


class RoundRecord(TimedMetrics):
    """The journal's record of a round."""

    clients: dict[str, ClientRow]
    """A row for each client that has any value."""
    dropped: list[str]
    """Clients that were sampled and dropped out."""
    seconds: dict[str, float]
    """Of the whole round under `round`, and of each step of clients under its name."""


class RoundSummary(TimedMetrics):
    """A round without its clients."""

    seconds: dict[str, float]
    dropped: int
