"""Define messages of secure sums: public keys, encrypted shares, masked gradients, confirmations, revealed shares."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from tasks.messages.message_policy import FEW, LEARNED_ADDED, Axes, Message, UnderPrivacy, numbers_of


@dataclass(frozen=True)
class SumMessage(Message):
    """A message of a secure sum; no field shows a number of a single client, see silos.privacy.masked_sums."""

    with_model = False  # the masked gradients count it

    @property
    def bytes_up(self) -> int:
        """Return the bytes of all numbers, which have different sizes."""
        tensors: list[Tensor] = [getattr(self, name) for name in numbers_of(type(self))]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class LastingKeys(SumMessage):
    """The public keys that the clients of one stack use in all secure sums."""

    keys: Annotated[Tensor, FEW, Axes("uint8", "clients", "32"), UnderPrivacy.PUBLIC]


@dataclass(frozen=True)
class SealedShares(SumMessage):
    """Shares of the secrets of one sum, which each client encrypted for every invited client."""

    keys: Annotated[Tensor, FEW, Axes("uint8", "clients", "32"), UnderPrivacy.PUBLIC]
    shares: Annotated[Tensor, FEW, Axes("uint8", "clients", "receivers", "bytes"), UnderPrivacy.MASKED]


@dataclass(frozen=True)
class MaskedGradients(SumMessage):
    """Noisy sums of clipped gradients as integers plus masks, summed over one stack's clients modulo 2^64."""

    with_model = True

    numbers: Annotated[Tensor, LEARNED_ADDED, Axes("int64", "numbers"), UnderPrivacy.MASKED]
    questions: Mapping[str, str]  # client, hash of all that its numbers depend on but its rows and its secret

    @property
    def bytes_up(self) -> int:
        """Return the bytes that these clients send if each sends its own."""
        return super().bytes_up * len(self.clients)


@dataclass(frozen=True)
class Confirmations(SumMessage):
    """Codes by which each client confirms to each that answered which clients were present and answered."""

    codes: Annotated[Tensor, FEW, Axes("uint8", "clients", "receivers", "bytes"), UnderPrivacy.PUBLIC]


@dataclass(frozen=True)
class RevealedShares(SumMessage):
    """What the clients of one stack reveal so that a sum can be read: a share for each client that was present."""

    shares: Annotated[Tensor, FEW, Axes("uint8", "clients", "present", "bytes"), UnderPrivacy.MASKED]
