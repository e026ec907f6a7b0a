"""What may leave a client: the fields of these records, and nothing else.

No record here can hold a row, a private weight or a private statistic; private state is named by hash only. Every field
that has numbers says how many of them there are of a client, and how many of its rows each stands for at least.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from torch import Tensor

from models.state import Weights

LEAST_ROWS = 10
"""Different rows of a client that a number must stand for where a record has as many of the client as a row has.

The mean of one row is that row, and mean and variance of two rows are both rows. Rows that are equal count as one.
"""


@dataclass(frozen=True)
class Numbers:
    """What a field has of each client.

    few: one number, or one for each measure, model, seed or statistic, whatever the size of a row; several: as many as a
    row, or more; learned: weights, which can tell of the rows that they were trained on, however they are sent.
    """

    size: Literal["few", "several", "learned"]
    least: int = 1  # different rows of the client that each stands for; a client that has fewer tells none


_FEW, _LEARNED, _MANY_ROWS = Numbers("few"), Numbers("learned"), Numbers("several", LEAST_ROWS)

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Update:
    """What the clients of one stack send back after local training.

    `sums` is each client's shared weights times its rows, added over the stack in float64: sums are enough for an average,
    and added in stack order they do not depend on how stacks were dealt to workers.
    """

    clients: tuple[str, ...]
    rows: Annotated[Tensor, _FEW]  # (clients,) int64
    loss: Annotated[Tensor, _FEW]  # (clients,) mean training loss, in the units of the objective
    sums: Annotated[Weights, _LEARNED]
    private: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # section, client, hash
    seconds: float = 0.0  # inside the task, for the whole cohort; on its first stack only
    # (clients, ...), where the method asks for every client's own weights
    each: Annotated[Weights, _LEARNED] = field(default_factory=dict)

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
    rows: Annotated[Tensor, _FEW]  # (clients,) int64
    loss: Annotated[Tensor, _FEW]  # (clients,) mean training loss, in the units of the objective
    sums: Annotated[Weights, _LEARNED]
    seconds: float = 0.0

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own: a float32 gradient, its row count and its loss."""
        return len(self.clients) * _FLOAT_BYTES * (2 + sum(t.numel() for t in self.sums.values()))


@dataclass(frozen=True)
class HeadGradients:
    """The gradient of the clients' losses in the last layer's weights, summed over their training rows and over the stack.

    Like an `Update`, it is a sum in float64, which is enough for a mean. Of one row it is that row's features, times a
    number for each output.
    """

    clients: tuple[str, ...]
    rows: Annotated[Tensor, _FEW]  # (clients,) int64, those in the sums: 0 of a client that tells none
    sums: Annotated[Weights, _MANY_ROWS]
    seconds: float = 0.0

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own: a float32 gradient and its row count."""
        return len(self.clients) * _FLOAT_BYTES * (1 + sum(t.numel() for t in self.sums.values()))


@dataclass(frozen=True)
class Choices:
    """Which model each client of one stack takes, out of every set of models that it was offered."""

    clients: tuple[str, ...]
    rows: Annotated[Tensor, _FEW]  # (clients,) int64
    choice: Annotated[Tensor, _FEW]  # (clients, sets) int64, the model's place in its set
    loss: Annotated[Tensor, _FEW]  # (clients, sets) float64, that model's mean loss over the client's training rows
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
    rows: Annotated[Tensor, _FEW]  # (clients,) int64
    numbers: Annotated[Mapping[str, Tensor], _FEW]  # (clients,) float64; NaN without rows
    seconds: float = 0.0

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own."""
        return len(self.clients) * _FLOAT_BYTES * (1 + len(self.numbers))


@dataclass(frozen=True)
class Extended:
    """That the clients of one stack stored words of their own, and how many each has now in one member of an ensemble."""

    clients: tuple[str, ...]
    words: Annotated[Tensor, _FEW]  # (clients,) int64
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

    Of one member of an ensemble, since each has features of its own. A client of too few rows has no centres here.
    """

    clients: tuple[str, ...]
    centres: Annotated[tuple[np.ndarray, ...], _MANY_ROWS]  # (words, d) float32 of each client
    weights: Annotated[tuple[np.ndarray, ...], _MANY_ROWS]  # (words,) tokens
    seconds: float = 0.0
    prefix: str = ""  # the member's; empty where there is no ensemble

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own."""
        return _FLOAT_BYTES * sum(c.size + w.size for c, w in zip(self.centres, self.weights, strict=True))


@dataclass(frozen=True)
class Projected:
    """For a picture, and only where params allow it: where each client's tokens and its own words lie, two numbers each."""

    clients: tuple[str, ...]
    tokens: Annotated[tuple[Tensor, ...], _MANY_ROWS]  # (centres, 2) of each client's tokens
    words: Annotated[tuple[Tensor, ...], _LEARNED]  # (words, 2)
    seconds: float = 0.0


@dataclass(frozen=True)
class Scores:
    """What the clients of one stack report of a model on one split: counts and sums over that client's rows.

    `sums` are those of models.training.objectives.measures: right answers, loss and entropy, or squared error and loss.
    """

    clients: tuple[str, ...]
    split: str
    rows: Annotated[Tensor, _FEW]  # (clients,) int64
    sums: Annotated[Mapping[str, Tensor], _FEW]  # measure, (clients,); counts int64, the others float64
    outcomes: Mapping[str, str] = field(default_factory=dict)  # client, hash of the outcomes that it keeps
    seconds: float = 0.0

    def for_all(self, clients: Sequence[str]) -> "Scores":
        """One client's scores on common rows, which are every client's where the model is the same for all."""
        kept = {client: ref for ref in self.outcomes.values() for client in clients}
        sums = {name: total.expand(len(clients)) for name, total in self.sums.items()}
        return replace(self, clients=tuple(clients), rows=self.rows.expand(len(clients)), sums=sums, outcomes=kept)


@dataclass(frozen=True)
class PairedSums:
    """What the clients of one stack report of the row-by-row difference of two methods over the same seeds and rows.

    The difference on a row is +1, 0 or -1 in each seed: whether the first method was right less whether the second was;
    of a regression it is the first method's squared error less the second's. Clients without such rows are left out.
    """

    clients: tuple[str, ...]
    rows: Annotated[Tensor, _FEW]  # (clients,) int64
    by_seed: Annotated[Tensor, _FEW]  # (clients, seeds) float64, sums over rows
    mean_squares: Annotated[Tensor, _FEW]  # (clients,) float64, sums over rows of the squared mean over seeds
    squares: Annotated[Tensor, _FEW]  # (clients,) float64, sums over rows and seeds of the squared difference
    seconds: float = 0.0


@dataclass(frozen=True)
class CommonSums:
    """That difference on test rows that nobody owns, where clients are no strata: a sum over the clients of one stack."""

    clients: tuple[str, ...]
    sums: Annotated[Tensor, _FEW]  # (seeds, rows) float64: of each row one number a seed, and the row is no client's
    seconds: float = 0.0


@dataclass(frozen=True)
class ClassCounts:
    """How many test rows of each class the clients of one stack have, and on how many of them a run was right.

    Of one row they are its label; a client of too few rows is not counted.
    """

    rows: Annotated[Tensor, _MANY_ROWS]  # (classes,) int64
    right: Annotated[Tensor, _MANY_ROWS]  # (classes,) int64
    seconds: float = 0.0


@dataclass(frozen=True)
class StatsKept:
    """What the server learns when the clients of one stack describe their rows: that they did, and how well.

    The statistics themselves stay with each client. Where they are one number, its norm would tell it, and is NaN.
    """

    clients: tuple[str, ...]
    refs: Mapping[str, str]  # client, hash
    norm: Annotated[Tensor, _FEW]  # (clients,) float64, Euclidean, over all statistics
    ok: Annotated[Tensor, _FEW]  # (clients, statistics) bool, whether the rows were enough
    # (clients, statistics) float64, relative eigenvalue gap; NaN where there are no loadings
    gap: Annotated[Tensor, _FEW]
    seconds: float = 0.0


@dataclass(frozen=True)
class StatsMessage:
    """What the clients of one stack tell of their rows because they were asked for it by name.

    A client that has too few rows tells none of it and has zeros here.
    """

    clients: tuple[str, ...]
    rows: Annotated[Tensor, _FEW]  # (clients,) int64
    # class_counts | mean | variance | eigenvalues to (clients, length) float32
    told: Annotated[Mapping[str, Tensor], _MANY_ROWS]
    silent: tuple[str, ...] = ()  # those with too few rows
    seconds: float = 0.0

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own: its row count, and the numbers if it tells any."""
        numbers = sum(t.shape[1] for t in self.told.values())
        return _FLOAT_BYTES * (len(self.clients) + numbers * (len(self.clients) - len(self.silent)))
