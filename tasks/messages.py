"""What may leave a client: the fields of these records, and nothing else.

No record here can hold a row, a private weight or a private statistic; private state is named by hash only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
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
    each: Weights = field(default_factory=dict)  # (clients, ...), where the method asks for every client's own weights

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own: float32 weights, its row count and its loss.

        `each` are those weights, before they are added; they cost nothing more.
        """
        weights = sum(t.numel() for t in self.sums.values())
        return len(self.clients) * _FLOAT_BYTES * (weights + 2)


@dataclass(frozen=True)
class Gradients:
    """The gradient of the clients' losses in all weights, summed over their training rows and over the stack.

    In place of a gradient, `sums` has of running statistics and the like, which learn nothing, what the rows made of them,
    times rows. In float64, as in an `Update`.
    """

    clients: tuple[str, ...]
    rows: Tensor  # (clients,) int64
    loss: Tensor  # (clients,) mean training loss, in the units of the objective
    sums: Weights
    seconds: float = 0.0

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own: a float32 gradient, its row count and its loss."""
        return len(self.clients) * _FLOAT_BYTES * (2 + sum(t.numel() for t in self.sums.values()))


@dataclass(frozen=True)
class HeadGradients:
    """The gradient of the clients' losses in the last layer's weights, summed over their training rows and over the stack.

    Like an `Update`, it is a sum in float64, which is enough for a mean.
    """

    clients: tuple[str, ...]
    rows: Tensor  # (clients,) int64
    sums: Weights
    seconds: float = 0.0

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own: a float32 gradient and its row count."""
        return len(self.clients) * _FLOAT_BYTES * (1 + sum(t.numel() for t in self.sums.values()))


@dataclass(frozen=True)
class Choices:
    """Which model each client of one stack takes, out of every set of models that it was offered."""

    clients: tuple[str, ...]
    rows: Tensor  # (clients,) int64
    choice: Tensor  # (clients, sets) int64, the model's place in its set
    loss: Tensor  # (clients, sets) float64, that model's mean loss over the client's training rows
    seconds: float = 0.0

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send: a row count, and a number and a loss for each set."""
        return len(self.clients) * _FLOAT_BYTES * (1 + 2 * self.choice.shape[1])


@dataclass(frozen=True)
class Doubts:
    """How unsure a model is of the rows of one split: numbers of each client of one stack, and none of a row."""

    clients: tuple[str, ...]
    split: str
    rows: Tensor  # (clients,) int64
    numbers: Mapping[str, Tensor]  # (clients,) float64; NaN without rows
    seconds: float = 0.0

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own."""
        return len(self.clients) * _FLOAT_BYTES * (1 + len(self.numbers))


@dataclass(frozen=True)
class Extended:
    """That the clients of one stack stored words of their own, and how many each has now in one member of an ensemble."""

    clients: tuple[str, ...]
    words: Tensor  # (clients,) int64
    refs: Mapping[str, str]  # client, hash; the same in the records of all members
    seconds: float = 0.0
    prefix: str = ""  # the member's; empty where there is no ensemble

    @property
    def held(self) -> dict[str, int]:
        """How many, by the client's name behind the prefix."""
        return {self.prefix + c: n for c, n in zip(self.clients, self.words.tolist(), strict=True)}

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send: a number each."""
        return len(self.clients) * _FLOAT_BYTES


@dataclass(frozen=True)
class Centres:
    """What clients tell so that a common book can start where their features are: centres, and what each stands for.

    Of one member of an ensemble, since each has features of its own.
    """

    clients: tuple[str, ...]
    centres: tuple[np.ndarray, ...]  # (words, d) float32 of each client
    weights: tuple[np.ndarray, ...]  # (words,) tokens
    seconds: float = 0.0
    prefix: str = ""  # the member's; empty where there is no ensemble

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own."""
        return _FLOAT_BYTES * sum(c.size + w.size for c, w in zip(self.centres, self.weights, strict=True))


@dataclass(frozen=True)
class Projected:
    """For a picture, and only where params allow it: some of each client's tokens and its own words, two numbers each."""

    clients: tuple[str, ...]
    tokens: tuple[Tensor, ...]  # (tokens, 2) of each client
    words: tuple[Tensor, ...]  # (words, 2)
    seconds: float = 0.0


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


@dataclass(frozen=True)
class ClassCounts:
    """How many test rows of each class all clients have together, and on how many of them a run was right."""

    rows: tuple[int, ...]
    right: tuple[int, ...]


@dataclass(frozen=True)
class StatsKept:
    """What the server learns when the clients of one stack describe their rows: that they did, and how well.

    The statistics themselves stay with each client. Where they are one number, its norm would tell it, and is NaN.
    """

    clients: tuple[str, ...]
    refs: Mapping[str, str]  # client, hash
    norm: Tensor  # (clients,) float64, Euclidean, over all statistics
    ok: Tensor  # (clients, statistics) bool, whether the rows were enough
    gap: Tensor  # (clients, statistics) float64, relative eigenvalue gap; NaN where there are no loadings
    seconds: float = 0.0


@dataclass(frozen=True)
class StatsMessage:
    """What the clients of one stack tell of their rows because they were asked for it by name.

    A client that has too few rows tells none of it (see `tasks.client_stats.LEAST_ROWS`) and has zeros here.
    """

    clients: tuple[str, ...]
    rows: Tensor  # (clients,) int64
    told: Mapping[str, Tensor]  # class_counts | mean | variance | eigenvalues to (clients, length) float32
    silent: tuple[str, ...] = ()  # those with too few rows
    seconds: float = 0.0

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own: its row count, and the numbers if it tells any."""
        numbers = sum(t.shape[1] for t in self.told.values())
        return _FLOAT_BYTES * (len(self.clients) + numbers * (len(self.clients) - len(self.silent)))
