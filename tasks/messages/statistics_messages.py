"""Define messages of statistics: normalisation, conditioning, moments, checks of scale, and reports for a diagnosis."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from models.server_state import Weights
from tasks.messages.message_policy import FEW, FLOAT_BYTES, LEARNED, SEVERAL, Axes, Message, UnderPrivacy


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

    # (clients, ...), the same for every client
    statistics: Annotated[Weights, LEARNED, Axes("float32 float64 int64", "clients", like_model=True)]


@dataclass(frozen=True)
class StatsKept(Message):
    """References to the statistics that the clients of one stack store, and measures of their quality.

    The statistics themselves stay with each client. If there is only one, its norm would reveal it, and is NaN.
    """

    travels = False  # a reference, and measures for the user

    refs: Mapping[str, str]  # client, hash
    # Euclidean, over all statistics
    norm: Annotated[Tensor, FEW, Axes("float64", "clients", finite=False)]
    # whether there were enough rows
    ok: Annotated[Tensor, FEW, Axes("bool", "clients", "statistics")]
    # (clients, statistics) float64, relative eigenvalue gap; NaN without loadings
    gap: Annotated[Tensor, FEW, Axes("float64", "clients", "statistics", finite=False)]
    # (clients, statistics) float64, similarity of two halves of the rows, of ten or more each; NaN without loadings
    agreement: Annotated[Tensor, FEW, Axes("float64", "clients", "statistics", finite=False)]


@dataclass(frozen=True)
class StatsMessage(Message):
    """Statistics of the rows of one stack's clients, requested by name.

    A client with too few rows reports none of them and has zeros here.
    """

    with_model = False  # it depends on the rows alone

    rows: Annotated[Tensor, FEW, Axes("int64", "clients")]
    # class_counts | mean | variance | eigenvalues to (clients, length) float32
    statistics: Annotated[Mapping[str, Tensor], SEVERAL, Axes("float32", "clients", "length")]
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

    # rows with a value that is not missing
    counts: Annotated[Tensor, SEVERAL, Axes("int64", "clients", "columns")]
    # of these values
    sums: Annotated[Tensor, SEVERAL, Axes("float64", "clients", "columns")]
    # of their distances from the client's own mean
    squares: Annotated[Tensor, SEVERAL, Axes("float64", "clients", "columns")]
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
    of_training_rows = True

    inputs: Annotated[Tensor, FEW, Axes("bool", "clients")]
    targets: Annotated[Tensor, FEW, Axes("bool", "clients")]


@dataclass(frozen=True)
class ShiftNumbers(Message):
    """Summaries of the training rows of one stack's clients for a diagnosis: counts in agreed bins and moments, by class.

    Classes with too few rows are reported only together, in the last column. If they are too few together, only the
    presence of such rows is revealed. Cells of few rows of a class are counted in others, which `counted_in` names.
    Fields are as in models.diagnosis.client_summaries.client_summary.Summaries. Of
    the clients without units, `repeats` names those with copies of other rows in a tenth or more of their rows.
    `persons` names those with rows that look like several of each person.
    """

    travels = False

    rows: Annotated[Tensor, FEW, Axes("int64", "clients")]
    # NaN for a class that is not reported alone
    labels: Annotated[Tensor, FEW, Axes("float64", "clients", "classes", finite=False)]
    # of classes + 1: the last column pools small classes, also below
    counts: Annotated[Tensor, SEVERAL, Axes("float64", "clients", "features", "cells", "classes")]
    moments: Annotated[Tensor, SEVERAL, Axes("float64", "clients", "features", "classes", "5", finite=False)]
    # the cell in which each is counted
    counted_in: Annotated[Tensor, SEVERAL, Axes("int16", "clients", "features", "cells")]
    repeats: tuple[str, ...] = field(default=(), kw_only=True)
    persons: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class NewRowsShift(Message):
    """How the training rows that the clients of one stack have got since an earlier version differ from its rows.

    Each client compares them itself. It sends what the tests say, and no count or sum of its new rows but their number.
    """

    travels = False

    rows: Annotated[Tensor, FEW, Axes("int64", "clients", "2")]  # (clients, 2) int64, new and earlier training rows
    # the independent rows that tests take them for
    worth: Annotated[Tensor, FEW, Axes("float64", "clients", "2")]
    types: Annotated[Tensor, FEW, Axes("bool", "clients", "3")]  # (clients, 3) bool, in the order of TYPES
    grades: Annotated[Tensor, FEW, Axes("int64", "clients", "3")]  # (clients, 3) int64, an index in GRADES, or -1
    # whether there were too few rows for the tests
    undetermined: Annotated[Tensor, FEW, Axes("bool", "clients", "1")]
    # those that carry most of the difference
    features: Annotated[Tensor, SEVERAL, Axes("bool", "clients", "features")]
    # (clients, features) float64, by how much their means are higher, in deviations, to one decimal; NaN for others
    means: Annotated[Tensor, SEVERAL, Axes("float64", "clients", "features", finite=False)]


@dataclass(frozen=True)
class NoisyCounts(Message):
    """Counts in agreed bins with added noise, from the clients of one stack, for a diagnosis with differential privacy.

    All classes are reported, because a choice of classes would reveal information. The noise replaces the least number
    of rows that each count would have to stand for.
    """

    travels = False

    # may be negative
    counts: Annotated[Tensor, SEVERAL, Axes("int64", "clients", "features", "cells", "classes")]


@dataclass(frozen=True)
class FeatureCorrelations(Message):
    """Rank correlations of pairs of features by class, and numbers of far values, from the clients of one stack.

    A class with fewer than thirty different rows with both values has none. The last column is of all rows of the
    reported classes. Fields are as in models.diagnosis.client_summaries.rank_correlations.Correlations.
    """

    travels = False

    # of classes + 1: the last column is of all rows; NaN if not reported
    values: Annotated[Tensor, SEVERAL, Axes("float32", "clients", "pairs", "classes", finite=False)]
    variances: Annotated[Tensor, SEVERAL, Axes("float32", "clients", "pairs", "classes", finite=False)]
    # of reported rows far below and far above the others
    far: Annotated[Tensor, SEVERAL, Axes("int64", "clients", "features", "2")]


@dataclass(frozen=True)
class HalfModels(Message):
    """Logistic regressions of each client's labels on either half of its rows, for refining a diagnosis.

    A class is included if each half has ten or more different rows of it. Weights reveal as much as any trained
    weights.
    """

    travels = False

    # NaN for classes left out
    weights: Annotated[Tensor, LEARNED, Axes("float64", "clients", "2", "classes", "columns", finite=False)]


@dataclass(frozen=True)
class PredictedCounts(Message):
    """The rows of each class that models expect in each bin of a client's rows, for refining a diagnosis.

    Counts are whole numbers over the rows that the client's counts report, in runs of bins with ten or more different
    rows. A bin that is reported together with the one before it is -1. The client's own secret decides the rounding.
    """

    travels = False

    counts: Annotated[Mapping[str, Tensor], SEVERAL, Axes("int32", "models", "features", "cells", "classes")]


@dataclass(frozen=True)
class Refusal(Message):
    """The clients of one stack whose ledgers allow no report for a diagnosis."""

    travels = False

    why: Mapping[str, str]  # client, reason and way out; these reveal that few rows changed, or a privacy budget


@dataclass(frozen=True)
class PrivacyCost(Message):
    """What the clients of one stack have spent of their privacy budgets, by their ledgers; it depends on no row.

    `spent` and `budget` are in ρ = μ²/2 of Gaussian differential privacy; the budget is at `delta`. `left` is the
    number of answers that are paid for and not given.
    """

    travels = False

    spent: Annotated[Tensor, FEW, Axes("float64", "clients"), UnderPrivacy.PUBLIC]
    budget: Annotated[Tensor, FEW, Axes("float64", "clients"), UnderPrivacy.PUBLIC]
    delta: Annotated[Tensor, FEW, Axes("float64", "clients"), UnderPrivacy.PUBLIC]
    left: Annotated[Tensor, FEW, Axes("float64", "clients"), UnderPrivacy.PUBLIC]


@dataclass(frozen=True)
class ProjectedRows(Message):
    """Two coordinates of each token centre and private code of one stack's clients, for a figure, if params allow it."""

    travels = False

    tokens: Annotated[tuple[Tensor, ...], SEVERAL, Axes("float32 float64", "centres", "2")]
    words: Annotated[tuple[Tensor, ...], LEARNED, Axes("float32 float64", "words", "2")]
