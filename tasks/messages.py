"""What may leave a client: the fields of these records, and nothing else.

No record here can hold a row, a private weight or a private statistic; private state is named by hash only. Every field
that has numbers says how many of them there are of a client, and how many of its rows each stands for at least. A page
with a message of its own extends `Message`, and is held to the same.
"""

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from models.gaussians import PRECISION
from models.state import Weights

LEAST_ROWS = 10
"""Different rows of a client that a number must stand for where a record has as many of the client as a row has.

The mean of one row is that row, and mean and variance of two rows are both rows. Rows that are equal count as one.
"""


@dataclass(frozen=True)
class Numbers:
    """What a field has of each client.

    few: one number, or one for each measure, model, seed or statistic, whatever the size of a row and as many of every
    client; several: as many as a row, or more; learned: weights, which can tell of the rows that they were trained on,
    however they are sent. `added`: the field is a sum over the stack's clients, each of which sends as many numbers;
    `again`: they are sent in another field already.
    """

    size: Literal["few", "several", "learned"]
    least: int = 1  # different rows of the client that each stands for; a client that has fewer tells none
    added: bool = False
    again: bool = False

    def __post_init__(self) -> None:
        sizes = typing.get_args(typing.get_type_hints(Numbers)["size"])
        if self.size not in sizes:
            raise ValueError(f"Numbers: the size is {self.size!r}; it is one of {', '.join(sizes)}")


FEW, SEVERAL = Numbers("few"), Numbers("several", LEAST_ROWS)
SEVERAL_ADDED, LEARNED_ADDED = Numbers("several", LEAST_ROWS, added=True), Numbers("learned", added=True)
LEARNED = Numbers("learned")

_FLOAT_BYTES = 4

_WORDS = {str, tuple[str, ...], Mapping[str, str], Mapping[str, Mapping[str, str]]}


@dataclass(frozen=True)
class Message:
    """What a step answers of one stack of clients; the fields that a subclass adds are the list of what leaves them.

    A field is names, hashes, or numbers (tensors, arrays, a mapping or a tuple of such) whose type is
    `Annotated[..., Numbers(...)]`.
    """

    travels: ClassVar[bool] = True
    """Whether it is traffic of training; what is asked for scores and pictures is not."""
    with_model: ClassVar[bool] = True
    """Whether the clients were sent the model for it; not where another message of the round has counted that."""

    clients: tuple[str, ...]
    seconds: float = field(default=0.0, kw_only=True)  # inside the task, for the whole cohort; on its first stack only

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own, every number as four bytes."""
        count = 0
        for name, about in numbers_of(type(self)).items():
            if not about.again:
                count += _count(getattr(self, name)) * (len(self.clients) if about.added else 1)
        return _FLOAT_BYTES * count


def numbers_of(kind: type[Message]) -> dict[str, Numbers]:
    """What each field of a message that has numbers says of them.

    TypeError for a message that could tell more than it says: fields of other types, numbers as large as a row of which one
    stands for fewer than LEAST_ROWS different rows, or a record that can be changed.
    """
    params = vars(kind).get("__dataclass_params__")  # its own: what a class adds without the decorator is no field
    if params is None or not params.frozen:
        raise TypeError(f"{kind.__name__} is a message, and must be a frozen dataclass")
    numbers = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Numbers)]
        if notes:
            numbers[name] = notes[0]
        elif name != "seconds" and hint not in _WORDS and typing.get_origin(hint) is not ClassVar:
            raise TypeError(f"{kind.__name__}.{name} does not say what numbers it has: Annotated[..., Numbers(...)]")
    for name, about in numbers.items():
        if about.size == "several" and about.least < LEAST_ROWS:
            raise TypeError(
                f"{kind.__name__}.{name} has numbers as large as a row, which stand for {LEAST_ROWS} rows at least"
            )
    return numbers


def check_few(messages: Sequence[Message]) -> None:
    """TypeError where a field of one step's messages that has few numbers has not as many of every client.

    They would grow with the client's rows. Of clients that all have as many rows, or are all in one stack, nobody can tell.
    """
    sizes: dict[str, float] = {}
    few = {
        kind: [n for n, about in numbers_of(kind).items() if about.size == "few"] for kind in set(map(type, messages))
    }
    for message in (m for m in messages if m.clients):
        for name in few[type(message)]:
            field, size = f"{type(message).__name__}.{name}", _count(getattr(message, name)) / len(message.clients)
            if sizes.setdefault(field, size) != size:
                some = f"{sizes[field]:g} numbers of some clients and {size:g} of others"
                raise TypeError(f"{field} has {some}; what is few is as many of all")


def _count(numbers: Any) -> int:
    """How many numbers a field's value holds."""
    if numbers is None:
        return 0
    if isinstance(numbers, Mapping):
        return sum(map(_count, numbers.values()))
    if isinstance(numbers, Tensor):
        return numbers.numel()
    if isinstance(numbers, np.ndarray):
        return numbers.size
    if isinstance(numbers, Iterable) and not isinstance(numbers, str | bytes):
        return sum(map(_count, numbers))
    if not isinstance(numbers, int | float | np.number):
        raise TypeError(f"a message holds a {type(numbers).__name__} where its field says that it holds numbers")
    return 1


@dataclass(frozen=True)
class SummedMessage(Message):
    """A message that `aggregate` makes a mean of: each client's tensors times its rows, added over the stack in float64.

    Sums are enough for an average, and added in stack order they do not depend on how stacks were dealt to workers.
    """

    rows: Annotated[Tensor, FEW]  # (clients,) int64
    sums: Annotated[Weights, LEARNED_ADDED]

    def __post_init__(self) -> None:
        if self.rows.shape != (len(self.clients),):
            raise ValueError(
                f"{type(self).__name__}: rows of shape {tuple(self.rows.shape)} are not one number for each of "
                f"{len(self.clients)} clients"
            )

    @property
    def total(self) -> float:
        """What `sums` is divided by for a mean."""
        return float(self.rows.sum())


@dataclass(frozen=True)
class WeightedMessage(SummedMessage):
    """A message whose sums are times `shares` in place of rows where the page gave some."""

    shares: Annotated[Tensor | None, FEW] = field(default=None, kw_only=True)  # (clients,) float64

    @property
    def total(self) -> float:
        """Rows, or shares in their place."""
        return super().total if self.shares is None else float(self.shares.sum())


@dataclass(frozen=True)
class Update(WeightedMessage):
    """What the clients of one stack send back after local training: `sums` are of their shared weights."""

    loss: Annotated[Tensor, FEW]  # (clients,) mean training loss, in the units of the objective
    private: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # section, client, hash
    # (clients, ...), where the method asks for every client's own weights
    each: Annotated[Weights, Numbers("learned", again=True)] = field(default_factory=dict)
    # client to its mean loss on validation rows before and after training, where that is asked; NaN of too few rows
    validation: Annotated[Mapping[str, tuple[float, float]], FEW] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteUpdates(Update):
    """What the clients of one stack send after a visit: by how much their sites changed, in natural parameters.

    Steps are rounded to float32 at the client, which changes its site by as much. They are added up in `sums`, or stay apart
    in `steps` where the server holds the sites.
    """

    nats: Annotated[Tensor, FEW] = field(kw_only=True)  # (clients,) float64, divergence of posterior and cavity
    unsent: Annotated[Tensor, FEW] = field(
        kw_only=True
    )  # (clients,) int64, weights of which a step is not sent, and is 0
    steps: Annotated[Weights, LEARNED] = field(default_factory=dict)  # (clients, ...) float64

    @property
    def bytes_up(self) -> int:
        """Of a weight that is not sent, one bit: that it is not; of one that is, two numbers."""
        unsent = int(self.unsent.sum())
        if not unsent:
            return super().bytes_up
        weights = sum(t.numel() for n, t in self.sums.items() if n.endswith(PRECISION)) * len(self.clients)
        weights += sum(t.numel() for n, t in self.steps.items() if n.endswith(PRECISION))
        return super().bytes_up - 2 * _FLOAT_BYTES * unsent + -(-weights // 8)


@dataclass(frozen=True)
class SiteRemovals(Message):
    """What the clients of one stack send when they leave for good: minus their sites, in natural parameters.

    A site is a sum of rounded steps, and more digits than a float32 has: of one that was rounded a part would stay.
    """

    with_model = False  # nothing is sent to them

    sums: Annotated[Weights, LEARNED_ADDED]  # float64

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own, every number as eight bytes."""
        return 2 * super().bytes_up


@dataclass(frozen=True)
class Gradients(SummedMessage):
    """The gradient of the clients' losses in all weights, summed over their training rows and over the stack.

    In place of a gradient, `sums` has of running statistics and the like, which learn nothing, what the rows made of them,
    times rows.
    """

    loss: Annotated[Tensor, FEW]  # (clients,) mean training loss, in the units of the objective


@dataclass(frozen=True)
class HeadGradients(SummedMessage):
    """The gradient of the clients' losses in the last layer's weights, summed over their training rows and over the stack.

    Of one row it is that row's features, times a number for each output: `rows` is 0 of a client that has too few and
    tells none.
    """

    with_model = False  # local training of the same round counts it

    sums: Annotated[Weights, SEVERAL_ADDED]


@dataclass(frozen=True)
class ClusterChoice(Message):
    """Which model each client of one stack takes, out of every set of models that it was offered."""

    rows: Annotated[Tensor, FEW]  # (clients,) int64
    choice: Annotated[Tensor, FEW]  # (clients, sets) int64, the model's place in its set
    loss: Annotated[Tensor, FEW]  # (clients, sets) float64, that model's mean loss over the client's training rows


@dataclass(frozen=True)
class CorrectnessBits(Message):
    """On which common rows the model of each client of one stack is right: a bit a row, and nothing else.

    The rows are nobody's own, but the bits are of weights that only the client has. A model that answers with what is no
    number is right on none.
    """

    bits: Annotated[Tensor, LEARNED]  # (clients, bytes) uint8, as numpy packs them

    @property
    def bytes_up(self) -> int:
        """Bytes that these clients send if each sends its own: the bits."""
        return self.bits.numel()


@dataclass(frozen=True)
class PriorShiftAccuracy(Message):
    """How right the offered model is on common rows for each client of one stack, classes counted as it trains on them.

    The server has the model and the common rows, so each number is an equation in the client's label shares: as many models
    as there are classes tell them all.
    """

    accuracy: Annotated[Tensor, FEW]  # (clients,) float64


@dataclass(frozen=True)
class SentWeights(WeightedMessage):
    """Weights that the clients of one stack kept, sent at last: `sums` are of their rows times these."""

    with_model = False  # they have them


@dataclass(frozen=True)
class UncertaintyScores(Message):
    """How unsure a model is of the rows of one split: numbers of each client of one stack, and none of a row."""

    with_model = False  # what was just averaged is sent for the next round

    split: str
    rows: Annotated[Tensor, FEW]  # (clients,) int64
    numbers: Annotated[Mapping[str, Tensor], FEW]  # (clients,) float64; NaN without rows


@dataclass(frozen=True)
class CodebookExtension(Message):
    """That the clients of one stack stored words of their own, and how many each has now in one member of an ensemble."""

    with_model = False  # as of Doubts

    words: Annotated[Tensor, FEW]  # (clients,) int64
    refs: Mapping[str, str]  # client, hash; the same in the records of all members
    prefix: str = ""  # the member's; empty where there is no ensemble

    @property
    def held(self) -> dict[str, int]:
        """How many, by the client's name behind the prefix."""
        return {self.prefix + c: n for c, n in zip(self.clients, self.words.tolist(), strict=True)}


@dataclass(frozen=True)
class Centroids(Message):
    """What clients tell so that a common book can start where their features are: centres, and what each stands for.

    Of one member of an ensemble, since each has features of its own. A client of too few rows has no centres here.
    """

    with_model = False  # local training of the same round counts it

    centres: Annotated[tuple[np.ndarray, ...], SEVERAL]  # (words, d) float32 of each client
    weights: Annotated[tuple[np.ndarray, ...], SEVERAL]  # (words,) tokens
    prefix: str = ""  # the member's; empty where there is no ensemble


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
        return _FLOAT_BYTES * (len(self.clients) + numbers * (len(self.clients) - len(self.silent)))


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
        return 2 * _FLOAT_BYTES * int(told.any(1).sum() * told.shape[1] + 2 * told.sum())


@dataclass(frozen=True)
class ScaleCheck(Message):
    """Whether training rows of the clients of one stack are far from unit scale: a yes or no of each, for a warning.

    A client of fewer than ten different rows says no.
    """

    travels = False

    inputs: Annotated[Tensor, FEW]  # (clients,) bool
    targets: Annotated[Tensor, FEW]  # (clients,) bool
