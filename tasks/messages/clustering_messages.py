"""Define messages that clients are clustered by: which model fits, on which common rows it is correct, and descriptors."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from tasks.messages.message_policy import FEW, FLOAT_BYTES, LEARNED, SEVERAL, Message


@dataclass(frozen=True)
class ClusterChoice(Message):
    """The model that each client of one stack chooses out of every set of models that it was offered."""

    rows: Annotated[Tensor, FEW]  # (clients,) int64
    choice: Annotated[Tensor, FEW]  # (clients, sets) int64, the model's index in its set
    loss: Annotated[Tensor, FEW]  # (clients, sets) float64, that model's mean loss over the client's training rows


@dataclass(frozen=True)
class CorrectnessBits(Message):
    """The common rows on which the model of each client of one stack is correct: one bit per row, and nothing else.

    The rows belong to no client, but the bits come from weights that only the client has. A model whose outputs are not
    finite is correct on no row.
    """

    bits: Annotated[Tensor, LEARNED]  # (clients, bytes) uint8, as numpy packs them

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

    accuracy: Annotated[Tensor, FEW]  # (clients,) float64


ABSENT = -1.0
"""Stands for the moments of a class of which a client has too few rows, as in the code of FLUX's authors."""


@dataclass(frozen=True)
class Descriptor(Message):
    """Mean and standard deviation of each client's training rows in shared components of a common encoder.

    The first part is of all rows, the others of the rows of each class. A class with too few rows has ABSENT, and so has
    one that would leave too few rows of the other classes. A client with too few rows is silent.
    """

    rows: Annotated[Tensor, FEW]  # (clients,) int64
    moments: Annotated[Tensor, SEVERAL]  # (clients, parts, 2, components) float32
    silent: tuple[str, ...] = ()

    @property
    def bytes_up(self) -> int:
        """Return the bytes that these clients send if each sends its own: its row count, and any moments it reports."""
        numbers = self.moments[0].numel() * (len(self.clients) - len(self.silent))
        return FLOAT_BYTES * (len(self.clients) + numbers)
