"""Samples the clients of a round, and the clients on which models are evaluated.

Clients are selected by random keys in [0, 1); for a million clients the keys take hundredths of a second. One sampler
calls clients that improved in the last round again (Fed-Focal Loss, arXiv 2011.06283, equations 7 to 13).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch

from flows.core.config.clients_params import OwnSampler
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup, uniform_by_client
from models.prng import client_streams, server_stream, uniform
from silos.cohort import Silos
from silos.errors import MethodError
from silos.plugin_registry import run_entry
from silos.storage.manifest import ROLES
from tasks.messages.message_policy import LEAST_ROWS
from tasks.tracking.checkpoint import Memory

MAX_HASHED_CLIENTS = 2_000
"""Maximum number of clients in the data for which each key is a hash of seed, round, purpose and name, at 1 µs a key.

With more clients, each client's stream is hashed once a run from seed and name, and a round's key is a mix of the stream and
the round. These keys differ from the hashed ones and are as random.
"""

_BLOCK = 1 << 15  # streams that fit into a core's cache


def sampling_keys(setup: TrainingSetup, clients: Sequence[str], round_number: int, purpose: str) -> np.ndarray:
    """Return a random key in [0, 1) for each client, (clients,) float64.

    It depends on the seed, the round, the purpose, the client's name, and whether the data have more than
    `MAX_HASHED_CLIENTS` clients.

    Args:
        setup: The clients of the run, and its seed.
        clients: The clients that get keys.
        round_number: The round, counted from 1.
        purpose: Tells apart the keys of one round.
    """
    # setup.silos.clients, not clients: a client that joins or leaves must not change other clients' keys
    if len(setup.silos.clients) <= MAX_HASHED_CLIENTS:
        return np.array(list(uniform_by_client(setup, clients, round_number, purpose).values()))
    streams = setup.sampling_streams
    if clients is not setup.silos.clients:
        streams = streams[[setup.silos.index(client) for client in clients]]
    key = server_stream(setup.seed, round_number, purpose)
    blocks = [uniform(block ^ key, (1,))[:, 0] for block in streams.split(_BLOCK)]
    return torch.cat(blocks).numpy().astype(np.float64)


def select_smallest(keys: np.ndarray, clients: Sequence[str], count: int) -> list[str]:
    """Select the clients with the smallest keys; on ties the first by name.

    Args:
        keys: (clients,) float64.
        clients: Their names, in the order of the keys.
        count: How many to select; all if it is as many or more.
    """
    if count <= 0:
        return []
    if count >= len(keys):
        return list(clients)
    limit = np.partition(keys, count - 1)[count - 1]
    below = [clients[i] for i in np.flatnonzero(keys < limit).tolist()]
    equal = sorted(clients[i] for i in np.flatnonzero(keys == limit).tolist())
    return [*below, *equal[: count - len(below)]]


def evaluation_clients(silos: Silos, count: int, seed: int) -> Silos:
    """Sample clients of each role to score; they depend on the seed and the clients' names.

    Args:
        silos: All clients.
        count: The most of each role.
        seed: The seed of the run.

    Returns:
        The sampled clients, in listing order.
    """
    keys = client_streams(seed, silos.clients, 0, "scored").numpy()
    sampled: list[str] = []
    for role in ROLES:
        indices = np.flatnonzero(silos.of_role(role))
        sampled += select_smallest(keys[indices], [silos.clients[i] for i in indices.tolist()], count)
    return silos.select(sorted(sampled, key=silos.index))


def validation_rows(silos: Silos) -> Mapping[str, int]:
    """Return the number of validation rows of each client, its own or the common ones."""
    common = silos.common("validation")
    return dict.fromkeys(silos.clients, common) if common else silos.rows("validation")


@dataclass(frozen=True)
class SampledClients:
    """The clients that take part in a round, the sampled ones that dropped out, and those that leave for good before it.

    All are in listing order.
    """

    clients: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()


class Sampler(ABC):
    """Base class of samplers; the sampled clients depend only on the seed, the round and the memory."""

    asks_validation: ClassVar[bool] = False
    """Whether training clients report their validation losses, which are then in `RoundContext.validation`."""

    @abstractmethod
    def sample(self, setup: TrainingSetup, round_number: int, memory: Memory) -> SampledClients:
        """Sample the clients of a round.

        Args:
            setup: The federated clients, and the seed of the run.
            round_number: The round, counted from 1.
            memory: The sampler's memory after the round before; empty before the first.
        """

    def update(self, memory: Memory, round: RoundContext, report: RoundReport) -> Memory:
        """Return the memory after a round; unchanged by default. Not called after a round without clients.

        Args:
            memory: The memory before the round.
            round: The round that was played; with `asks_validation`, `round.validation` has the clients' losses.
            report: What the method reported of the round.

        Returns:
            Plain JSON, since checkpoints hold it.
        """
        return memory

    def warnings(self, setup: TrainingSetup) -> Sequence[str]:
        """Return warnings for the user, before the first round."""
        return ()


def sample_clients(sampler: Sampler, setup: TrainingSetup, round_number: int, memory: Memory) -> SampledClients:
    """Sample the clients of a round and check them.

    Args:
        sampler: The sampler of the run.
        setup: The federated clients, and the seed of the run.
        round_number: The round, counted from 1.
        memory: The sampler's memory after the round before.

    Raises:
        TypeError: If the sampler does not return `SampledClients`.
        ValueError: If a client does not exist or is sampled twice.
    """
    sampled = sampler.sample(setup, round_number, memory)
    if not isinstance(sampled, SampledClients):
        raise TypeError(
            f"sampler: got a {type(sampled).__name__}, expected SampledClients(clients, dropped, leaving). Return one."
        )
    parts = (sampled.clients, sampled.dropped, sampled.leaving)
    clients, dropped, leaving = ((part,) if isinstance(part, str) else tuple(part) for part in parts)
    seen = set()
    for client in (*clients, *dropped, *leaving):
        if client not in setup.silos:
            raise ValueError(f"sampler: got the client {client!r}, expected a client of the data. Correct the sampler.")
        if client in seen:
            raise ValueError(
                f"sampler: got the client {client!r} twice in a round, expected it once. Correct the sampler."
            )
        seen.add(client)
    return SampledClients(clients, dropped, leaving)


@dataclass(frozen=True)
class FractionSampler(Sampler):
    """Samples K = max(1, fraction * active clients) of the active clients without replacement.

    Attributes:
        fraction: The fraction of active clients that are sampled.
        dropout: The probability that a sampled client drops out; with one seed it drops out in every method.
        join: Client to the first round in which it is active.
        leave: Client to the first round in which it is no longer active.
        names_absent: Whether clients that leave in round 1, and so never train, are among those that leave.
    """

    fraction: float = 1.0
    dropout: float = 0.0
    join: Mapping[str, int] = field(default_factory=dict)
    leave: Mapping[str, int] = field(default_factory=dict)
    names_absent: bool = field(default=False, kw_only=True)

    @abstractmethod
    def draw(
        self, setup: TrainingSetup, clients: Sequence[str], count: int, round_number: int, memory: Memory
    ) -> Collection[str]:
        """Sample `count` of the more than `count` clients.

        Args:
            setup: The federated clients, and the seed of the run.
            clients: The clients that are active in the round, in listing order.
            count: How many to sample.
            round_number: The round, counted from 1.
            memory: The sampler's memory after the round before; empty before the first.
        """

    def sample(self, setup: TrainingSetup, round_number: int, memory: Memory) -> SampledClients:
        missing, active = self._missing(round_number), setup.silos.clients
        if missing:
            active = tuple(c for c in active if c not in missing)
        sampled: Sequence[str] = active
        count = max(1, round(self.fraction * len(active)))
        if count < len(active):
            chosen = {*self.draw(setup, active, count, round_number, memory)} - missing
            sampled = sorted((c for c in chosen if c in setup.silos), key=setup.silos.index)
        keys = dict.fromkeys(sampled, 1.0)
        if self.dropout:
            keys = uniform_by_client(setup, sampled, round_number, "dropout")
        clients, dropped = (tuple(c for c in sampled if (keys[c] >= self.dropout) == stays) for stays in (True, False))
        leaving = [c for c, last in self.leave.items() if last == round_number and (last > 1 or self.names_absent)]
        return SampledClients(clients, dropped, tuple(sorted(leaving, key=setup.silos.index)))

    def _missing(self, round_number: int) -> set[str]:
        """Return the clients that have not joined yet or have left."""
        late = {c for c, first in self.join.items() if round_number < first}
        return late | {c for c, last in self.leave.items() if round_number >= last}


@dataclass(frozen=True)
class PluginSampler(FractionSampler):
    """Samples the clients that a plugin's function returns."""

    entry: OwnSampler | None = None

    def draw(
        self, setup: TrainingSetup, clients: Sequence[str], count: int, round_number: int, memory: Memory
    ) -> Collection[str]:
        assert self.entry is not None
        arguments = {"setup": setup, "clients": clients, "wanted": count, "number": round_number, "memory": memory}
        sampled: Collection[str] = run_entry(self.entry, **arguments)
        return sampled


class Uniform(FractionSampler):
    """Samples each client with the same probability (McMahan et al. 2017); it has no memory."""

    def draw(
        self, setup: TrainingSetup, clients: Sequence[str], count: int, round_number: int, memory: Memory
    ) -> Collection[str]:
        return select_smallest(sampling_keys(setup, clients, round_number, "draw"), clients, count)


class BySize(FractionSampler):
    """Samples one client after another, with probability proportional to training rows among the remaining clients.

    A client with n rows and key u has the waiting time -log(1 - u) / n, and the shortest times are sampled (Efraimidis and
    Spirakis 2006). Inclusion probabilities are thus proportional to rows for one client only, and more equal for more
    clients. If all clients have equal sizes, it samples the same clients as `Uniform`.
    """

    def draw(
        self, setup: TrainingSetup, clients: Sequence[str], count: int, round_number: int, memory: Memory
    ) -> Collection[str]:
        rows = setup.silos.select(clients).rows_array("train")
        waiting_times = -np.log1p(-sampling_keys(setup, clients, round_number, "draw")) / rows
        return select_smallest(waiting_times, clients, count)


@dataclass(frozen=True)
class LossBasedSampler(FractionSampler):
    """Samples up to floor(focus * K) of a round's K clients uniformly from those that improved in the last round.

    The other clients are sampled uniformly from the rest: S_{t+1} = B_t + R_t, B_t a sample of
    C_t = {i in S_t: L_i(t) < L_i(before)}. `focus` is the paper's beta; with 0 the sample is that of `Uniform`.

    L_i is client i's validation loss after its training, before averaging. `last_seen` compares it with the loss that the
    client reported when it last took part, at first with the loss of the received model. `within_round` compares it with
    the loss of the received model. An equal or non-finite loss is no improvement.
    """

    asks_validation: ClassVar[bool] = True

    focus: float = 0.8
    improvement: Literal["last_seen", "within_round"] = "last_seen"

    def draw(
        self, setup: TrainingSetup, clients: Sequence[str], count: int, round_number: int, memory: Memory
    ) -> Collection[str]:
        active = setup.silos.select(clients)  # clients that improved may have left
        improved = [c for c in memory["improved"] if c in active] if memory.get("round") == round_number - 1 else []
        max_improved = math.floor(self.focus * count + 1e-9)  # 0.58 * 50 rounds to below 29
        focus_keys = uniform_by_client(setup, improved, round_number, "focus")
        again = select_smallest(np.array([*focus_keys.values()]), [*focus_keys], max_improved)
        keys = sampling_keys(setup, clients, round_number, "draw")
        keys[[active.index(client) for client in again]] = math.inf
        return [*again, *select_smallest(keys, clients, count - len(again))]

    def update(self, memory: Memory, round: RoundContext, report: RoundReport) -> Memory:
        """Store the clients that improved in this round, and the last loss of each client that may be sampled again.

        MethodError if no client has ever reported a loss.
        """
        losses = round.validation or {}
        if not losses and not memory:
            raise MethodError(
                "params.yaml: clients.sampling.kind: got improving, expected uniform or by_size, since clients "
                "of this method train no model of their own in a round, and so report no validation loss. Use "
                "one of these."
            )
        pairs = {client: losses[client] for client in round.clients if client in losses}
        last = memory.get("last", {})
        improved = [c for c, (before, after) in pairs.items() if after < last.get(c, before)]
        if self.improvement == "last_seen":
            last = {**last, **{c: after for c, (_, after) in pairs.items() if math.isfinite(after)}}
            inactive = {c for c, first in self.leave.items() if first <= round.number + 1}
            last = {c: loss for c, loss in last.items() if c not in inactive} if inactive else last
        return {"round": round.number, "improved": improved, "last": last}

    def warnings(self, setup: TrainingSetup) -> Sequence[str]:
        """Warn about clients that never improve because they have too few validation rows to report a loss."""
        small = [client for client, rows in validation_rows(setup.silos).items() if rows < LEAST_ROWS]
        if not small:
            return ()
        names = ", ".join(small[:3]) + (f" and {len(small) - 3} more" if len(small) > 3 else "")
        return (
            f"{names}: fewer than {LEAST_ROWS} validation rows, so never counted as improving (clients.sampling), "
            "and sampled with the rest",
        )
