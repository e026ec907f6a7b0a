"""Define messages of evaluation: scores, and sums of paired outcomes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from torch import Tensor

from tasks.messages.message_policy import FEW, FEW_ADDED, SEVERAL_ADDED, Axes, Message, UnderPrivacy


@dataclass(frozen=True)
class Scores(Message):
    """Scores of a model on one split for the clients of one stack: counts and sums over each client's rows.

    `sums` are those of models.training.objectives.measures: correct predictions, loss and entropy, or squared error and
    loss. Those of a client's metrics, such as AUC, are the metric times the rows. They are NaN if the client's rows do
    not define the metric, and infinite if predictions are not finite.
    """

    travels = False

    split: str
    rows: Annotated[Tensor, FEW, Axes("int64", "clients"), UnderPrivacy.PUBLIC]
    # measure, (clients,); counts int64, the others float64
    sums: Annotated[Mapping[str, Tensor], FEW, Axes("int64 float64", "clients", finite=False), UnderPrivacy.OTHER_ROWS]
    outcomes: Mapping[str, str] = field(default_factory=dict)  # client, hash of the outcomes that it stores

    def for_all(self, clients: Sequence[str]) -> "Scores":
        """Copy one client's scores on common rows to all clients, whose scores are equal if they have the same model."""
        outcomes = {client: ref for ref in self.outcomes.values() for client in clients}
        sums = {name: total.expand(len(clients)) for name, total in self.sums.items()}
        return replace(self, clients=tuple(clients), rows=self.rows.expand(len(clients)), sums=sums, outcomes=outcomes)


@dataclass(frozen=True)
class OutcomeMeans(Message):
    """The mean outcome of two methods, for each client of one stack and each seed, such as mean squared errors.

    A difference of outcomes is given in units of the metric by them. Clients without such rows are left out.
    """

    travels = False

    means: Annotated[Tensor, FEW, Axes("float64", "clients", "2", "seeds", finite=False)]


@dataclass(frozen=True)
class PairedSums(Message):
    """Sums over rows of the difference between two methods' outcomes, for each client of one stack, over the same seeds.

    In each seed the difference on a row is +1, 0 or -1: whether the first method is correct, minus whether the second
    is. For a regression it is the first method's squared error minus the second's, and for a client's metric, such as
    AUC, the difference of its row values. Clients without such rows, or for which it is undefined, are left out.
    """

    travels = False

    rows: Annotated[Tensor, FEW, Axes("int64", "clients")]
    # sums over rows
    by_seed: Annotated[Tensor, FEW, Axes("float64", "clients", "seeds", finite=False)]
    # sums over rows of the squared mean over seeds
    mean_squares: Annotated[Tensor, FEW, Axes("float64", "clients", finite=False)]
    # sums over rows and seeds of the squared difference
    squares: Annotated[Tensor, FEW, Axes("float64", "clients", finite=False)]


@dataclass(frozen=True)
class CommonSums(Message):
    """The same difference on common test rows, on which clients are no strata: a sum over the clients of one stack."""

    travels = False

    # a number per row and seed; the row belongs to no client
    sums: Annotated[Tensor, FEW_ADDED, Axes("float64", "seeds", "rows", finite=False)]


@dataclass(frozen=True)
class ClassCounts(Message):
    """The number of test rows of each class, and of those on which a run is correct, over the clients of one stack.

    The counts of a single row would be its label; a client with too few rows is left out.
    """

    travels = False

    rows: Annotated[Tensor, SEVERAL_ADDED, Axes("int64", "classes")]
    right: Annotated[Tensor, SEVERAL_ADDED, Axes("int64", "classes")]


@dataclass(frozen=True)
class TargetSums(Message):
    """The number of training rows of each class, or of all with the sum of their targets, over the clients of one stack.

    The best constant answer follows from them. A client with too few rows is left out.
    """

    travels = False
    of_training_rows = True

    rows: Annotated[Tensor, SEVERAL_ADDED, Axes("int64", "classes")]  # (classes,) int64, or (1,) of a regression
    total: Annotated[Tensor, SEVERAL_ADDED, Axes("float64", "1")]  # (1,) float64, in units of y; 0 of a classification


@dataclass(frozen=True)
class PredictionCounts(Message):
    """The number of test rows by class and predicted class, for some methods, over the clients of one stack and all seeds.

    A client with too few rows is left out. The last column has rows without a finite prediction.
    """

    travels = False

    counts: Annotated[Tensor, SEVERAL_ADDED, Axes("int64", "methods", "classes", "predicted")]


@dataclass(frozen=True)
class PriorShiftScores(Message):
    """A run's accuracy on common test rows for each client of one stack, with classes weighted as in its training.

    The rows belong to no client. The accuracy reveals one weighted mean of the client's label shares.
    """

    travels = False
    of_training_rows = True

    accuracy: Annotated[Tensor, FEW, Axes("float64", "clients", finite=False)]
