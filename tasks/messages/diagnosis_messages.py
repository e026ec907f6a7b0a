"""Define messages of the diagnosis: counts, models of half of the rows, predictions, projections, and refusals."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from tasks.messages.message_policy import FEW, LEARNED, SEVERAL, Message


@dataclass(frozen=True)
class ShiftNumbers(Message):
    """Summaries of the training rows of one stack's clients for a diagnosis: counts in agreed bins and moments, by class.

    Classes with too few rows are reported only together, in the last column. If they are too few together, only the
    presence of such rows is revealed. Fields are as in models.shift.client_summaries.client_summary.Summaries, and
    `repeats` names the clients without units of whose rows a tenth or more are copies of others.
    """

    travels = False

    rows: Annotated[Tensor, FEW]  # (clients,) int64
    labels: Annotated[Tensor, FEW]  # (clients, classes) float64, NaN for a class that is not reported alone
    counts: Annotated[Tensor, SEVERAL]  # (clients, features, cells, classes + 1) float64
    moments: Annotated[Tensor, SEVERAL]  # (clients, features, classes + 1, 5) float64
    repeats: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class NoisyCounts(Message):
    """Counts in agreed bins with added noise, from the clients of one stack, for a diagnosis with differential privacy.

    All classes are reported, because a choice of classes would reveal information. The noise replaces the least number
    of rows that each count would have to stand for.
    """

    travels = False

    counts: Annotated[Tensor, SEVERAL]  # (clients, features, cells, classes) int64, may be negative


@dataclass(frozen=True)
class FeatureCorrelations(Message):
    """Rank correlations of pairs of features by class, and numbers of far values, from the clients of one stack.

    A class with fewer than thirty different rows with both values has none. The last column is of all rows of the
    reported classes. Fields are as in models.shift.client_summaries.feature_pairs.Correlations.
    """

    travels = False

    values: Annotated[Tensor, SEVERAL]  # (clients, pairs, classes + 1) float32, NaN if not reported
    variances: Annotated[Tensor, SEVERAL]  # (clients, pairs, classes + 1) float32
    far: Annotated[Tensor, SEVERAL]  # (clients, features, 2) int64, of reported rows far below and far above the others


@dataclass(frozen=True)
class HalfModels(Message):
    """Logistic regressions of each client's labels on either half of its rows, for refining a diagnosis.

    A class is included if each half has ten or more different rows of it. Weights reveal as much as any trained
    weights.
    """

    travels = False

    weights: Annotated[Tensor, LEARNED]  # (clients, 2, classes, columns) float64, NaN for classes left out


@dataclass(frozen=True)
class PredictedCounts(Message):
    """The rows of each class that models expect in each bin of a client's rows, for refining a diagnosis.

    Counts are whole numbers over the rows that the client's counts report, in runs of bins with ten or more different
    rows. A bin that is reported together with the one before it is -1. The client's own secret decides the rounding.
    """

    travels = False

    counts: Annotated[Mapping[str, Tensor], SEVERAL]  # of each client (models, features, cells, classes) int32


@dataclass(frozen=True)
class Refusal(Message):
    """The clients of one stack whose ledgers allow no report for a diagnosis."""

    travels = False

    why: Mapping[str, str]  # client, reason and way out; these reveal that few rows changed, or a privacy budget


@dataclass(frozen=True)
class ProjectedRows(Message):
    """Two coordinates of each token centre and private code of one stack's clients, for a figure, if params allow it."""

    travels = False

    tokens: Annotated[tuple[Tensor, ...], SEVERAL]  # (centres, 2) of each client
    words: Annotated[tuple[Tensor, ...], LEARNED]  # (words, 2)
