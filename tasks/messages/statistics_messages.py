"""Define messages of statistics: batch normalisation, conditioning, moments and checks of scale."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from models.server_state import Weights
from tasks.messages.message_policy import FEW, FLOAT_BYTES, LEARNED, SEVERAL, Message


@dataclass(frozen=True)
class OwnNorms(Message):
    """References to normalising layers that the clients of one stack stored with the statistics of their own rows."""

    travels = False

    refs: Mapping[str, str]  # client, hash


@dataclass(frozen=True)
class CommonNorms(Message):
    """Statistics of normalising layers on common rows, which belong to no client, under weights that the server has.

    The server could measure them itself, so they are no traffic.
    """

    travels = False

    statistics: Annotated[Weights, LEARNED]  # (clients, ...), the same for every client


@dataclass(frozen=True)
class StatsKept(Message):
    """References to the statistics that the clients of one stack store, and measures of their quality.

    The statistics themselves stay with each client. If there is only one, its norm would reveal it, and is NaN.
    """

    travels = False  # a reference, and measures for the user

    refs: Mapping[str, str]  # client, hash
    norm: Annotated[Tensor, FEW]  # (clients,) float64, Euclidean, over all statistics
    ok: Annotated[Tensor, FEW]  # (clients, statistics) bool, whether there were enough rows
    # (clients, statistics) float64, relative eigenvalue gap; NaN without loadings
    gap: Annotated[Tensor, FEW]
    # (clients, statistics) float64, similarity of two halves of the rows, of ten or more each; NaN without loadings
    agreement: Annotated[Tensor, FEW]


@dataclass(frozen=True)
class StatsMessage(Message):
    """Statistics of the rows of one stack's clients, requested by name.

    A client with too few rows reports none of them and has zeros here.
    """

    with_model = False  # it depends on the rows alone

    rows: Annotated[Tensor, FEW]  # (clients,) int64
    # class_counts | mean | variance | eigenvalues to (clients, length) float32
    statistics: Annotated[Mapping[str, Tensor], SEVERAL]
    silent: tuple[str, ...] = ()  # clients with too few rows

    @property
    def bytes_up(self) -> int:
        """Return the bytes that these clients send if each sends its own: its row count, and any statistics it reports."""
        numbers = sum(t.shape[1] for t in self.statistics.values())
        return FLOAT_BYTES * (len(self.clients) + numbers * (len(self.clients) - len(self.silent)))


@dataclass(frozen=True)
class ScaleMoments(Message):
    """Moments of each column of the training rows of one stack's clients, from which one mean and scale are computed.

    Columns are the numbers of a row, or its target, or both. A client reports zeros for a column with values in fewer
    than ten different rows, and sends nothing if it has fewer rows. Classes with fewer rows count if they have ten
    together.

    `earlier` names, for a client with nearly the rows of an earlier version, that version. The client repeats its
    report of that version, or sends nothing if that was no mean and scale.
    """

    with_model = False  # it depends on the rows alone

    counts: Annotated[Tensor, SEVERAL]  # (clients, columns) int64, rows with a value that is not missing
    sums: Annotated[Tensor, SEVERAL]  # (clients, columns) float64, of these values
    squares: Annotated[Tensor, SEVERAL]  # (clients, columns) float64, of their distances from the client's own mean
    earlier: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes_up(self) -> int:
        """Return the bytes that these clients send if each sends its own: eight per count and per reported moment."""
        reported = self.counts > 0
        return 2 * FLOAT_BYTES * int(reported.any(1).sum() * reported.shape[1] + 2 * reported.sum())


@dataclass(frozen=True)
class ScaleCheck(Message):
    """Whether the training rows of each client of one stack are far from unit scale: a yes or no, for a warning.

    A client with fewer than ten different rows says no.
    """

    travels = False

    inputs: Annotated[Tensor, FEW]  # (clients,) bool
    targets: Annotated[Tensor, FEW]  # (clients,) bool
