"""What may leave a client: the fields of these records, and nothing else.

No record here can hold a row, a private weight or a private statistic; private state is named by hash only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from models.state import Weights

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Update:
    """What the clients of one stack send back after local training.

    `sums` is each client's shared weights times its rows, added over the stack in float64: sums are enough for an average,
    and added in stack order they do not depend on how stacks were dealt to workers.
    """

    clients: tuple[str, ...]
    rows: Tensor  # (clients,) int64
    loss: Tensor  # (clients,) mean training loss, in the units of the objective
    sums: Weights
    private: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # section, client, hash
    seconds: float = 0.0  # inside the task, for the whole cohort; on its first stack only

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own: float32 weights, its row count and its loss."""
        weights = sum(t.numel() for t in self.sums.values())
        return len(self.clients) * _FLOAT_BYTES * (weights + 2)


@dataclass(frozen=True)
class Scores:
    """What the clients of one stack report of a model on one split: counts and sums over that client's rows.

    `sums` are those of models.objectives.measures: right answers, loss and entropy, or squared error and loss.
    """

    clients: tuple[str, ...]
    split: str
    rows: Tensor  # (clients,) int64
    sums: Mapping[str, Tensor]  # measure, (clients,); counts int64, the others float64
    outcomes: Mapping[str, str] = field(default_factory=dict)  # client, hash of the outcomes that it keeps
    seconds: float = 0.0

    def for_all(self, clients: Sequence[str]) -> "Scores":
        """One client's scores on common rows, which are every client's where the model is the same for all."""
        kept = {client: ref for ref in self.outcomes.values() for client in clients}
        sums = {name: total.expand(len(clients)) for name, total in self.sums.items()}
        return replace(self, clients=tuple(clients), rows=self.rows.expand(len(clients)), sums=sums, outcomes=kept)


@dataclass(frozen=True)
class PairedSums:
    """What one client reports of the row-by-row difference of two methods over the same seeds and rows.

    The difference on a row is +1, 0 or -1 in each seed: whether the first method was right less whether the second was;
    of a regression it is the first method's squared error less the second's. Over common test rows it is the mean of
    that over clients.
    """

    client: str
    rows: int
    by_seed: tuple[float, ...]  # sum over rows, one number a seed
    mean_squares: float  # sum over rows of the squared mean over seeds
    squares: float  # sum over rows and seeds of the squared difference
