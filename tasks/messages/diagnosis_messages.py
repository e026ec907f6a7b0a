"""Messages of the diagnosis: counts, models of a half of the rows, predictions, projections, and refusals."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from tasks.messages.message_policy import FEW, LEARNED, SEVERAL, Message


@dataclass(frozen=True)
class ShiftNumbers(Message):
    """What the clients of one stack tell of their training rows for a diagnosis: counts on agreed bins, moments, by class.

    Of a class of too few rows nothing is told but together with others like it, in the last column, and nothing at all where
    even these are too few, but that they are among its rows. Fields are as
    models.shift.client_summaries.client_summary.Summaries has them.
    """

    travels = False

    rows: Annotated[Tensor, FEW]  # (clients,) int64
    labels: Annotated[Tensor, FEW]  # (clients, classes) float64, NaN for what is not told alone
    counts: Annotated[Tensor, SEVERAL]  # (clients, features, cells, classes + 1) float64
    moments: Annotated[Tensor, SEVERAL]  # (clients, features, classes + 1, 5) float64


@dataclass(frozen=True)
class NoisyCounts(Message):
    """What the clients of one stack tell for a diagnosis with differential privacy: counts on agreed bins with their noise.

    Of all classes, as which are told would tell something; the noise stands in for the rows that a number would need.
    """

    travels = False

    counts: Annotated[Tensor, SEVERAL]  # (clients, features, cells, classes) int64, may be negative


@dataclass(frozen=True)
class HalfModels(Message):
    """What the clients of one stack tell for a second look: a logistic regression of their labels on either half of rows.

    Only of classes with ten different rows or more in either half. What weights reveal is as of any that are learned.
    """

    travels = False

    weights: Annotated[Tensor, LEARNED]  # (clients, 2, classes, columns) float64, NaN of classes that are not in it


@dataclass(frozen=True)
class PredictedCounts(Message):
    """What the clients of one stack tell for a second look: rows of each class that models expect in each bin of their rows.

    Whole numbers, of the rows that counts are told of, in runs of bins with ten different rows or more; -1 stands in a bin
    that is told with the one before it. How they are rounded follows from the client's own secret.
    """

    travels = False

    counts: Annotated[Mapping[str, Tensor], SEVERAL]  # of each client (models, features, cells, classes) int32


@dataclass(frozen=True)
class Refusal(Message):
    """The clients of one stack whose ledgers let them tell nothing for a diagnosis."""

    travels = False

    why: Mapping[str, str]  # client, the reason and the way out, which tell that few rows changed, or a budget


@dataclass(frozen=True)
class ProjectedRows(Message):
    """For a picture, and only where params allow it: where each client's tokens and its own words lie, two numbers each."""

    travels = False

    tokens: Annotated[tuple[Tensor, ...], SEVERAL]  # (centres, 2) of each client's tokens
    words: Annotated[tuple[Tensor, ...], LEARNED]  # (words, 2)
