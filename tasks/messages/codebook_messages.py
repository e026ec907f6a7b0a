"""Messages of codebooks: uncertainty, new codes, and centroids of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from torch import Tensor

from tasks.messages.message_policy import FEW, SEVERAL, Message


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
