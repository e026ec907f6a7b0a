"""Messages of evaluation: scores, and sums of paired outcomes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from torch import Tensor

from tasks.messages.message_policy import FEW, SEVERAL_ADDED, Message


@dataclass(frozen=True)
class Scores(Message):
    """What the clients of one stack report of a model on one split: counts and sums over that client's rows.

    `sums` are those of models.training.objectives.measures: right answers, loss and entropy, or squared error and loss.
    """

    travels = False

    split: str
    rows: Annotated[Tensor, FEW]  # (clients,) int64
    sums: Annotated[Mapping[str, Tensor], FEW]  # measure, (clients,); counts int64, the others float64
    outcomes: Mapping[str, str] = field(default_factory=dict)  # client, hash of the outcomes that it keeps

    def for_all(self, clients: Sequence[str]) -> "Scores":
        """One client's scores on common rows, which are every client's where the model is the same for all."""
        kept = {client: ref for ref in self.outcomes.values() for client in clients}
        sums = {name: total.expand(len(clients)) for name, total in self.sums.items()}
        return replace(self, clients=tuple(clients), rows=self.rows.expand(len(clients)), sums=sums, outcomes=kept)


@dataclass(frozen=True)
class PairedSums(Message):
    """What the clients of one stack report of the row-by-row difference of two methods over the same seeds and rows.

    The difference on a row is +1, 0 or -1 in each seed: whether the first method was right less whether the second was;
    of a regression it is the first method's squared error less the second's. Clients without such rows are left out.
    """

    travels = False

    rows: Annotated[Tensor, FEW]  # (clients,) int64
    by_seed: Annotated[Tensor, FEW]  # (clients, seeds) float64, sums over rows
    mean_squares: Annotated[Tensor, FEW]  # (clients,) float64, sums over rows of the squared mean over seeds
    squares: Annotated[Tensor, FEW]  # (clients,) float64, sums over rows and seeds of the squared difference


@dataclass(frozen=True)
class CommonSums(Message):
    """That difference on test rows that nobody owns, where clients are no strata: a sum over the clients of one stack."""

    travels = False

    sums: Annotated[Tensor, FEW]  # (seeds, rows) float64: of each row one number a seed, and the row is no client's


@dataclass(frozen=True)
class ClassCounts(Message):
    """How many test rows of each class the clients of one stack have, and on how many of them a run was right.

    Of one row they are its label; a client of too few rows is not counted.
    """

    travels = False

    rows: Annotated[Tensor, SEVERAL_ADDED]  # (classes,) int64
    right: Annotated[Tensor, SEVERAL_ADDED]  # (classes,) int64


@dataclass(frozen=True)
class PriorShiftScores(Message):
    """How right a run was on common test rows for the clients of one stack, classes counted as each trains on them.

    The rows are nobody's own; what the number tells is one weighted mean of the client's label shares.
    """

    travels = False

    accuracy: Annotated[Tensor, FEW]  # (clients,) float64
