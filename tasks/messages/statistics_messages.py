"""Messages of statistics: batch normalisation, conditioning, moments and checks of scale."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from models.server_state import Weights
from tasks.messages.message_policy import FEW, FLOAT_BYTES, LEARNED, SEVERAL, Message


@dataclass(frozen=True)
class OwnNorms(Message):
    """That the clients of one stack stored normalising layers with the statistics of their own rows."""

    travels = False

    refs: Mapping[str, str]  # client, hash


@dataclass(frozen=True)
class CommonNorms(Message):
    """The statistics of normalising layers on common rows, which are nobody's, under weights that the server has.

    The server could measure them where it stands, so they are no traffic.
    """

    travels = False

    statistics: Annotated[Weights, LEARNED]  # (clients, ...), the same of every client


@dataclass(frozen=True)
class StatsKept(Message):
    """What the server learns when the clients of one stack describe their rows: that they did, and how well.

    The statistics themselves stay with each client. Where they are one number, its norm would tell it, and is NaN.
    """

    travels = False  # a reference, and what a person may want to know of it

    refs: Mapping[str, str]  # client, hash
    norm: Annotated[Tensor, FEW]  # (clients,) float64, Euclidean, over all statistics
    ok: Annotated[Tensor, FEW]  # (clients, statistics) bool, whether the rows were enough
    # (clients, statistics) float64, relative eigenvalue gap; NaN where there are no loadings
    gap: Annotated[Tensor, FEW]
    # (clients, statistics) float64, likeness of two halves of the rows, of ten or more each; NaN likewise
    agreement: Annotated[Tensor, FEW]


@dataclass(frozen=True)
class StatsMessage(Message):
    """What the clients of one stack tell of their rows because they were asked for it by name.

    A client that has too few rows tells none of it and has zeros here.
    """

    with_model = False  # it is of the rows alone

    rows: Annotated[Tensor, FEW]  # (clients,) int64
    # class_counts | mean | variance | eigenvalues to (clients, length) float32
    statistics: Annotated[Mapping[str, Tensor], SEVERAL]
    silent: tuple[str, ...] = ()  # those with too few rows

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own: its row count, and the numbers if it tells any."""
        numbers = sum(t.shape[1] for t in self.statistics.values())
        return FLOAT_BYTES * (len(self.clients) + numbers * (len(self.clients) - len(self.silent)))


@dataclass(frozen=True)
class ScaleMoments(Message):
    """What the clients of one stack tell so that one mean and scale can be agreed: of each column of their training rows.

    Columns are the numbers of a row, or its target, or both. Of a column that has values in fewer than ten different rows of
    a client it tells zeros, and a client of fewer sends nothing. Rows of classes that have fewer count where these have ten
    together. `earlier`: of a client whose rows are nearly those of an earlier version, that version, of which it tells what
    it told then; it sends nothing where that was no mean and scale.
    """

    with_model = False  # it is of the rows alone

    counts: Annotated[Tensor, SEVERAL]  # (clients, columns) int64, rows with a value that is not missing
    sums: Annotated[Tensor, SEVERAL]  # (clients, columns) float64, of these values
    squares: Annotated[Tensor, SEVERAL]  # (clients, columns) float64, of their distances from the client's own mean
    earlier: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own, every number as eight: counts, and what is told."""
        told = self.counts > 0
        return 2 * FLOAT_BYTES * int(told.any(1).sum() * told.shape[1] + 2 * told.sum())


@dataclass(frozen=True)
class ScaleCheck(Message):
    """Whether training rows of the clients of one stack are far from unit scale: a yes or no of each, for a warning.

    A client of fewer than ten different rows says no.
    """

    travels = False

    inputs: Annotated[Tensor, FEW]  # (clients,) bool
    targets: Annotated[Tensor, FEW]  # (clients,) bool
