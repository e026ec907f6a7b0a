"""Define messages of codebooks: uncertainty, new codes, and centroids of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from torch import Tensor

from tasks.messages.message_policy import FEW, SEVERAL, Message


@dataclass(frozen=True)
class UncertaintyScores(Message):
    """How uncertain a model is about the rows of one split: scores for each client of one stack, and not for single rows."""

    with_model = False  # the new average is sent, and counted, for the next round

    split: str
    rows: Annotated[Tensor, FEW]  # (clients,) int64
    numbers: Annotated[Mapping[str, Tensor], FEW]  # (clients,) float64; NaN without rows


@dataclass(frozen=True)
class CodebookExtension(Message):
    """The number of private codes that the clients of one stack have stored in one member of an ensemble."""

    with_model = False  # as in UncertaintyScores

    words: Annotated[Tensor, FEW]  # (clients,) int64
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

    centres: Annotated[tuple[np.ndarray, ...], SEVERAL]  # (words, d) float32 of each client
    weights: Annotated[tuple[np.ndarray, ...], SEVERAL]  # (words,) tokens
    prefix: str = ""  # of the member; empty without an ensemble
