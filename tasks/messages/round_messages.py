"""Define messages of a round: updates, gradients, sites, plain weights, evidence for clusters, and codebooks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import numpy as np
from torch import Tensor

from models.gaussians import PRECISION
from models.server_state import Weights
from tasks.messages.message_policy import (
    FEW,
    FLOAT_BYTES,
    LEARNED,
    LEARNED_ADDED,
    SEVERAL,
    SEVERAL_ADDED,
    Axes,
    Message,
    Numbers,
    UnderPrivacy,
)


@dataclass(frozen=True)
class SummedMessage(Message):
    """A message that `aggregate` averages: each client's tensors times its rows, summed over the stack in float64.

    Sums are enough for an average. Added in stack order, they do not depend on how stacks were assigned to workers.
    """

    rows: Annotated[Tensor, FEW, Axes("int64", "clients")]
    sums: Annotated[Weights, LEARNED_ADDED, Axes("float64", like_model=True)]

    def __post_init__(self) -> None:
        if self.rows.shape != (len(self.clients),):
            raise ValueError(
                f"{type(self).__name__}: rows: got shape {tuple(self.rows.shape)}, expected one number for each "
                f"of {len(self.clients)} clients"
            )

    @property
    def total(self) -> float:
        """Return the divisor that makes a mean of `sums`."""
        return float(self.rows.sum())


@dataclass(frozen=True)
class WeightedMessage(SummedMessage):
    """A message whose sums are weighted by `shares`, if the method passes them, instead of by rows."""

    shares: Annotated[Tensor | None, FEW, Axes("float64", "clients")] = field(default=None, kw_only=True)

    @property
    def total(self) -> float:
        """Return the number of rows, or the sum of shares."""
        return super().total if self.shares is None else float(self.shares.sum())


@dataclass(frozen=True)
class Update(WeightedMessage):
    """The result of local training at the clients of one stack; `sums` are of their shared weights."""

    rows: Annotated[Tensor, FEW, Axes("int64", "clients"), UnderPrivacy.PUBLIC]
    sums: Annotated[Weights, LEARNED_ADDED, Axes("float64", like_model=True), UnderPrivacy.NOISED]
    shares: Annotated[Tensor | None, FEW, Axes("float64", "clients"), UnderPrivacy.PUBLIC] = field(
        default=None, kw_only=True
    )
    # mean training loss, in the units of the objective; (0,) if withheld
    loss: Annotated[Tensor, FEW, Axes("float32 float64", "clients"), UnderPrivacy.WITHHELD]
    private: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # section, client, hash
    # (clients, ...), if the method requests every client's own weights
    each: Annotated[
        Weights,
        Numbers("learned", again=True),
        Axes("float32 float64 int64", "clients", like_model=True),
        UnderPrivacy.NOISED,
    ] = field(default_factory=dict)
    # client to its mean loss on validation rows before and after training, if requested; NaN for too few rows
    validation: Annotated[Mapping[str, tuple[float, float]], FEW] = field(default_factory=dict)


Updated = TypeVar("Updated", bound=Update)
"""The type of an update to which a function adds values."""


@dataclass(frozen=True)
class SentTrees(Update):
    """The boosted trees of the clients of one stack; a threshold lies between two values of the client's rows."""

    # (clients, ...); none if they stay there
    trees: Annotated[Weights, LEARNED, Axes("float32 int32", "clients", "*")] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteUpdates(Update):
    """The changes of the sites of one stack's clients, in natural parameters.

    Each client rounds its step to float32, and changes its site by as much. Steps are summed in `sums`, or stay
    separate in `steps` if the server holds the sites.
    """

    # divergence of posterior and cavity
    nats: Annotated[Tensor, FEW, Axes("float64", "clients")] = field(kw_only=True)
    # weights whose step is 0 and not sent
    unsent: Annotated[Tensor, FEW, Axes("int64", "clients")] = field(kw_only=True)
    # (clients, ...) float64
    steps: Annotated[Weights, LEARNED, Axes("float64", "clients", like_model=True)] = field(default_factory=dict)

    @property
    def bytes_up(self) -> int:
        """Return the bytes of two numbers for every weight that is sent, and of one bit for every weight that is not."""
        unsent = int(self.unsent.sum())
        if not unsent:
            return super().bytes_up
        weights = sum(t.numel() for n, t in self.sums.items() if n.endswith(PRECISION)) * len(self.clients)
        weights += sum(t.numel() for n, t in self.steps.items() if n.endswith(PRECISION))
        return super().bytes_up - 2 * FLOAT_BYTES * unsent + -(-weights // 8)


@dataclass(frozen=True)
class SiteRemovals(Message):
    """Minus the sites of one stack's clients, which leave for good, in natural parameters.

    Sites are not rounded: a site is a sum of rounded steps, and rounding it to float32 would leave a part behind.
    """

    with_model = False  # the clients are sent nothing

    sums: Annotated[Weights, LEARNED_ADDED, Axes("float64", like_model=True)]  # float64

    @property
    def bytes_up(self) -> int:
        """Return the bytes that these clients send if each sends its own, with eight bytes per number."""
        return 2 * super().bytes_up


@dataclass(frozen=True)
class Gradients(SummedMessage):
    """The gradient of the clients' losses in all weights, summed over their training rows and over the stack.

    For running statistics and other tensors without a gradient, `sums` has their updated values times rows.
    """

    # mean training loss, in the units of the objective
    loss: Annotated[Tensor, FEW, Axes("float32 float64", "clients")]


@dataclass(frozen=True)
class HeadGradients(SummedMessage):
    """The gradient of the clients' losses in the last layer's weights, summed over training rows and over the stack.

    Of a single row it is that row's features times one number per output. `rows` is 0 for a client that has too few
    rows and reports none.
    """

    with_model = False  # local training of the same round counts it

    sums: Annotated[Weights, SEVERAL_ADDED, Axes("float64", like_model=True)]


@dataclass(frozen=True)
class SentWeights(WeightedMessage):
    """Weights that the clients of one stack stored and now send; `sums` are these weights times rows."""

    with_model = False  # the clients have the model


@dataclass(frozen=True)
class ClusterChoice(Message):
    """The model that each client of one stack chooses out of every set of models that it was offered."""

    rows: Annotated[Tensor, FEW, Axes("int64", "clients")]
    # the model's index in its set
    choice: Annotated[Tensor, FEW, Axes("int64", "clients", "sets")]
    # that model's mean loss over the client's training rows
    loss: Annotated[Tensor, FEW, Axes("float64", "clients", "sets", finite=False)]


@dataclass(frozen=True)
class CorrectnessBits(Message):
    """The common rows on which the model of each client of one stack is correct: one bit per row, and nothing else.

    The rows belong to no client, but the bits come from weights that only the client has. A model whose outputs are not
    finite is correct on no row.
    """

    bits: Annotated[Tensor, LEARNED, Axes("uint8", "clients", "bytes")]  # (clients, bytes) uint8, as numpy packs them

    @property
    def bytes_up(self) -> int:
        """Return the bytes that these clients send if each sends its own bits."""
        return self.bits.numel()


@dataclass(frozen=True)
class PriorShiftAccuracy(Message):
    """The offered model's accuracy on common rows for each client of one stack, with classes weighted as in its training.

    The server has the model and the common rows, so each accuracy is one equation in the client's label shares. As many
    models as there are classes reveal all shares.
    """

    accuracy: Annotated[Tensor, FEW, Axes("float64", "clients")]


ABSENT = -1.0
"""Stands for the moments of a class of which a client has too few rows, as in the code of FLUX's authors."""


@dataclass(frozen=True)
class Descriptor(Message):
    """Mean and standard deviation of each client's training rows in shared components of a common encoder.

    The first part is of all rows, the others of the rows of each class. A class with too few rows has ABSENT, and so has
    one that would leave too few rows of the other classes. A client with too few rows is silent.
    """

    rows: Annotated[Tensor, FEW, Axes("int64", "clients")]
    moments: Annotated[Tensor, SEVERAL, Axes("float32", "clients", "parts", "2", "components")]
    silent: tuple[str, ...] = ()

    @property
    def bytes_up(self) -> int:
        """Return the bytes that these clients send if each sends its own: its row count, and any moments it reports."""
        numbers = self.moments[0].numel() * (len(self.clients) - len(self.silent))
        return FLOAT_BYTES * (len(self.clients) + numbers)


@dataclass(frozen=True)
class UncertaintyScores(Message):
    """How uncertain a model is about the rows of one split: scores for each client of one stack, and not for single rows."""

    with_model = False  # the new average is sent, and counted, for the next round

    split: str
    rows: Annotated[Tensor, FEW, Axes("int64", "clients"), UnderPrivacy.PUBLIC]
    # NaN without rows
    numbers: Annotated[Mapping[str, Tensor], FEW, Axes("float64", "clients", finite=False), UnderPrivacy.OTHER_ROWS]


@dataclass(frozen=True)
class CodebookExtension(Message):
    """The number of private codes that the clients of one stack have stored in one member of an ensemble."""

    with_model = False  # as in UncertaintyScores

    words: Annotated[Tensor, FEW, Axes("int64", "clients")]
    refs: Mapping[str, str]  # client, hash; the same in the records of all members
    prefix: str = ""  # of the member; empty without an ensemble

    @property
    def held(self) -> dict[str, int]:
        """Return the number of codes by the prefix and the client's name."""
        return {self.prefix + client: count for client, count in zip(self.clients, self.words.tolist(), strict=True)}


@dataclass(frozen=True)
class Centroids(Message):
    """Centres of each client's tokens with the number of tokens of each, from which the server starts common codes.

    They belong to one member of an ensemble, because each member has its own features. A client with too few rows has
    no centres.
    """

    with_model = False  # local training of the same round counts it

    centres: Annotated[tuple[np.ndarray, ...], SEVERAL, Axes("float32", "words", "d")]
    weights: Annotated[tuple[np.ndarray, ...], SEVERAL, Axes("int64 float32 float64", "words")]  # (words,) tokens
    prefix: str = ""  # of the member; empty without an ensemble
