"""Who is called in a round.

A number in [0, 1) for each client of a round, by which some are drawn; of a million clients in hundredths of a second.

On whose rows models are scored where not everybody's are, and on how many of each client.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from flows.config.clients_params import OwnSampler
from flows.methods.context import RoundContext, TrainingSetup, uniform_by_client
from flows.methods.round_report import RoundReport
from models.prng import client_streams, server_stream, uniform
from silos.cohort import Silos
from silos.plugin_registry import run_entry
from silos.storage.client_table import ROLES

NAMED = 2_000
"""Clients of the data up to which a number follows from a hash of seed, round, purpose and name, at 1 µs each.

Of more clients each has a stream of its own, hashed once a run from seed and name, and a round's number is the next mix of
that: other numbers, and as random.
"""

_BLOCK = 1 << 15  # streams whose numbers stay in a core's cache


def sampling_keys(setup: TrainingSetup, clients: Sequence[str], number: int, purpose: str) -> np.ndarray:
    """(clients,) float64: it follows from the seed, the round, the purpose, the client's name and whether all are many."""
    if len(setup.silos.clients) <= NAMED:  # and not those that are there: who comes or leaves changes nobody's luck
        return np.array(list(uniform_by_client(setup, clients, number, purpose).values()))
    streams = setup.own_streams
    if clients is not setup.silos.clients:
        streams = streams[[setup.silos.index(client) for client in clients]]
    key = server_stream(setup.seed, number, purpose)
    blocks = [uniform(block ^ key, (1,))[:, 0] for block in streams.split(_BLOCK)]
    return torch.cat(blocks).numpy().astype(np.float64)


def min_rows(numbers: np.ndarray, clients: Sequence[str], count: int) -> list[str]:
    """So many clients with the least numbers, of equals the first by name."""
    if count <= 0:
        return []
    if count >= len(numbers):
        return list(clients)
    limit = np.partition(numbers, count - 1)[count - 1]
    sure = [clients[at] for at in np.flatnonzero(numbers < limit).tolist()]
    equal = sorted(clients[at] for at in np.flatnonzero(numbers == limit).tolist())
    return [*sure, *equal[: count - len(sure)]]


def min_rows_of(numbers: Mapping[str, float], count: int) -> list[str]:
    """As `least`, of numbers by client."""
    return min_rows(np.array([*numbers.values()]), [*numbers], count)


def evaluation_clients(silos: Silos, wanted: int, seed: int) -> Silos:
    """At most so many clients of each role, in listing order, which follow from the seed and their names."""
    tickets = client_streams(seed, silos.clients, 0, "scored").numpy()
    drawn: list[str] = []
    for role in ROLES:
        mine = np.flatnonzero(silos.of_role(role))
        drawn += min_rows(tickets[mine], [silos.clients[at] for at in mine.tolist()], wanted)
    return silos.select(sorted(drawn, key=silos.index))


def validation_rows(silos: Silos) -> Mapping[str, int]:
    """How many each client is tried on, its own or common ones."""
    common = silos.common("validation")
    return dict.fromkeys(silos.clients, common) if common else silos.rows("validation")


Memory = Mapping[str, Any]
"""What a sampler keeps from one round to the next: plain JSON. It is in the checkpoint, so a resumed run calls the same."""


@dataclass(frozen=True)
class SampledClients:
    """The clients of a round that answer, those that were called but dropped out, and those that leave for good before it.

    All in listing order.
    """

    clients: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()


class Sampler(ABC):
    """Who is called: by the seed, the round and what it keeps in memory, and by nothing else."""

    asks_validation: ClassVar[bool] = False
    """Whether clients that train tell their losses on validation rows, which are then in `RoundContext.validation`."""

    @abstractmethod
    def sample(self, setup: TrainingSetup, number: int, memory: Memory) -> SampledClients:
        """The clients of this round."""

    def update(self, memory: Memory, round: RoundContext, report: RoundReport) -> Memory:
        """The memory after the round, which the method has reported on: as it was, unless a sampler says otherwise.

        It is not asked after a round in which nobody answered.
        """
        return memory

    def warnings(self, setup: TrainingSetup) -> Sequence[str]:
        """Sentences for a person, before the first round."""
        return ()


def sample_clients(sampler: Sampler, setup: TrainingSetup, number: int, memory: Memory) -> SampledClients:
    """Whom the sampler calls; TypeError or ValueError where these are not clients, each once."""
    answer = sampler.sample(setup, number, memory)
    if not isinstance(answer, SampledClients):
        raise TypeError(
            f"a sampler calls with a {type(answer).__name__}; it is SampledClients(clients, dropped, leaving)"
        )
    given = (answer.clients, answer.dropped, answer.leaving)
    clients, dropped, leaving = ((part,) if isinstance(part, str) else tuple(part) for part in given)
    seen = set()
    for client in (*clients, *dropped, *leaving):
        if client not in setup.silos:
            raise ValueError(f"a sampler calls {client!r}, and there is no such client")
        if client in seen:
            raise ValueError(f"a sampler calls {client!r} twice in a round")
        seen.add(client)
    return SampledClients(clients, dropped, leaving)


@dataclass(frozen=True)
class FractionSampler(Sampler):
    """K = max(1, fraction * clients) are drawn without replacement, of those that are there.

    Each drops out with chance `dropout`, from a stream of its own, so that the same seed loses the same clients in every
    method. `join`: clients to the round before which they are not there to be drawn; `leave`: to the one from which they
    are there no more.
    """

    fraction: float = 1.0
    dropout: float = 0.0
    join: Mapping[str, int] = field(default_factory=dict)
    leave: Mapping[str, int] = field(default_factory=dict)

    @abstractmethod
    def draw(
        self, setup: TrainingSetup, clients: Sequence[str], wanted: int, number: int, memory: Memory
    ) -> Collection[str]:
        """So many of these clients, which are more."""

    def sample(self, setup: TrainingSetup, number: int, memory: Memory) -> SampledClients:
        """See Sampler."""
        missing, there = self._missing(number), setup.silos.clients
        if missing:
            there = tuple(c for c in there if c not in missing)
        drawn: Sequence[str] = there
        wanted = max(1, round(self.fraction * len(there)))
        if wanted < len(there):
            chosen = {*self.draw(setup, there, wanted, number, memory)} - missing
            drawn = sorted((c for c in chosen if c in setup.silos), key=setup.silos.index)
        ticket = uniform_by_client(setup, drawn, number, "dropout") if self.dropout else dict.fromkeys(drawn, 1.0)
        stay, lost = ([c for c in drawn if (ticket[c] >= self.dropout) == kept] for kept in (True, False))
        leaving = sorted((c for c, when in self.leave.items() if when == number), key=setup.silos.index)
        return SampledClients(tuple(stay), tuple(lost), tuple(leaving))

    def _missing(self, number: int) -> set[str]:
        """Who has not come yet, or has left."""
        late = {c for c, first in self.join.items() if number < first}
        return late | {c for c, last in self.leave.items() if number >= last}


@dataclass(frozen=True)
class OwnDrawing(FractionSampler):
    """The clients that a plugin's function draws."""

    own: OwnSampler | None = None

    def draw(
        self, setup: TrainingSetup, clients: Sequence[str], wanted: int, number: int, memory: Memory
    ) -> Collection[str]:
        """See Drawing."""
        assert self.own is not None
        given = {"setup": setup, "clients": clients, "wanted": wanted, "number": number, "memory": memory}
        drawn: Collection[str] = run_entry(self.own, **given)
        return drawn


class Uniform(FractionSampler):
    """Every client is drawn with the same chance (McMahan et al. 2017); it remembers nothing."""

    def draw(
        self, setup: TrainingSetup, clients: Sequence[str], wanted: int, number: int, memory: Memory
    ) -> Collection[str]:
        """See Drawing."""
        return min_rows(sampling_keys(setup, clients, number, "draw"), clients, wanted)


class BySize(FractionSampler):
    """One after another, each with chance in proportion to training rows among those not yet drawn.

    A client of n rows and ticket u waits -log(1 - u) / n, and who waits least is drawn (Efraimidis and Spirakis 2006). So
    only the first draw's chances are in proportion to rows; the more are drawn, the more alike are clients' chances. Of
    clients of one size it draws those that `Uniform` draws.
    """

    def draw(
        self, setup: TrainingSetup, clients: Sequence[str], wanted: int, number: int, memory: Memory
    ) -> Collection[str]:
        """See Drawing."""
        rows = setup.silos.select(clients).rows_array("train")
        waits = -np.log1p(-sampling_keys(setup, clients, number, "draw")) / rows
        return min_rows(waits, clients, wanted)
