"""Messages of training: updates, gradients, sites, and weights that are sent as they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from models.gaussians import PRECISION
from models.server_state import Weights
from tasks.messages.message_policy import FEW, FLOAT_BYTES, LEARNED, LEARNED_ADDED, SEVERAL_ADDED, Message, Numbers


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
        return super().bytes_up - 2 * FLOAT_BYTES * unsent + -(-weights // 8)


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
class SentWeights(WeightedMessage):
    """Weights that the clients of one stack kept, sent at last: `sums` are of their rows times these."""

    with_model = False  # they have them
