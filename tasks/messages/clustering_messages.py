"""Messages that clients are clustered by: which model fits, and on which common rows a client is correct."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from tasks.messages.message_policy import FEW, LEARNED, Message


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
