"""Provides the statistics that a conditional model reads: each client's own, and their controls."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import torch
from torch import Tensor

from flows.methods.round_context import RoundContext
from models.client_model import Model
from models.model_card import CardStatistics, StatisticSpec
from models.networks.statistics_context import STATISTICS
from models.prng import client_streams, normal
from models.server_state import ClientStateRefs, ServerState, Weights
from models.statistics.feature_vector import Statistic, StatisticError, length
from models.statistics.spectrum import Loadings
from models.statistics.statistic_base import STEADY
from silos.cohort import Silos
from silos.errors import UserError
from tasks.client_stats import client_stats
from tasks.messages.statistics_messages import StatsKept

Source = Literal["local", "zeros", "pooled", "random", "permuted", "client_id", "cluster_id"]
FewRows = Literal["zeros", "refuse"]


@dataclass(frozen=True)
class StatisticsMatrix:
    """References to the statistics that clients store, as the server knows them.

    Attributes:
        refs: Client to the hash of its statistics.
        norms: Client to their norm; a client with a single statistic does not send it.
        undetermined: The clients with too few rows for some statistic.
        unsteady: The clients with a statistic that differs between the halves of their rows.
    """

    refs: Mapping[str, str] = field(default_factory=dict)
    norms: Mapping[str, float] = field(default_factory=dict)
    undetermined: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()

    @classmethod
    def from_state(cls, state: ServerState) -> "StatisticsMatrix":
        """Read the references from a state."""
        numbers = state.numbers["statistics"]
        few, unsteady = tuple(numbers["undetermined"]), tuple(numbers["unsteady"])
        return cls(state.private[STATISTICS], numbers["norms"], few, unsteady)

    def add_to(self, state: ServerState) -> ServerState:
        """Return the state with these references."""
        few, unsteady = sorted(self.undetermined), sorted(self.unsteady)
        numbers = {"norms": dict(sorted(self.norms.items())), "undetermined": few, "unsteady": unsteady}
        return state.with_numbers(statistics=numbers).with_private(STATISTICS, self.refs)

    def with_messages(self, messages: Iterable[StatsKept]) -> "StatisticsMatrix":
        """Add the statistics that clients have just stored."""
        refs, norms = dict(self.refs), dict(self.norms)
        undetermined, unsteady = set(self.undetermined), set(self.unsteady)
        for message in messages:
            refs |= message.refs
            norms |= {c: n for c, n in zip(message.clients, message.norm.tolist(), strict=True) if math.isfinite(n)}
            undetermined |= _clients_with_any(message.clients, ~message.ok)
            unsteady |= _clients_with_any(message.clients, message.agreement < STEADY)
        return StatisticsMatrix(refs, norms, tuple(sorted(undetermined)), tuple(sorted(unsteady)))

    def shared_by(self, clients: Iterable[str]) -> "StatisticsMatrix":
        """Give the statistics of the only client to all of these clients."""
        (ref,) = set(self.refs.values())
        return StatisticsMatrix(dict.fromkeys(clients, ref), self.norms, self.undetermined, self.unsteady)

    @property
    def mostly_noise(self) -> bool:
        """Whether a quarter of the clients, or more, are unsteady."""
        return 4 * len(self.unsteady) >= max(len(self.refs), 1)


@dataclass(frozen=True)
class Conditioning:
    """The statistics that each client's model reads.

    `source` `local` is the method; the others are controls. `zeros` and `random` (with the norm of the client's own
    statistics) carry no information on the rows. `permuted` reads another client's statistics, and `pooled` those of all
    rows together. `client_id` and `cluster_id` are one-hot codes of the client or its domain; they are zeros for a client
    or domain without training.

    `silos` are always all clients of the run, so that what a client reads does not change with the round.
    """

    statistics: tuple[Statistic, ...]
    source: Source
    few_rows: FewRows = "zeros"

    @property
    def private(self) -> bool:
        """Whether a client must compute statistics before it has a model."""
        return self.source not in ("zeros", "client_id", "cluster_id")

    def count(self, silos: Silos) -> int:
        """Return the length of a client's vector of statistics; UserError if the data do not have such statistics."""
        if self.source == "client_id":
            return len(silos.federated().clients)
        if self.source == "cluster_id":
            return len(silos.training_domains())
        try:
            return length(self.statistics, math.prod(silos.manifest.shape), len(silos.manifest.classes))
        except StatisticError as error:
            raise UserError(f"params.yaml: method.conditional.statistics: {error}.") from None

    @property
    def specs(self) -> list[StatisticSpec]:
        """The statistics that clients compute, as in params.yaml; empty if the control needs none."""
        return [{"kind": s.kind, **asdict(s)} for s in self.statistics] if self.private else []  # type: ignore[call-overload]

    def described(self, silos: Silos) -> CardStatistics:
        """Return the kinds with their options and the length as plain JSON, for users of an exported model."""
        return {"kinds": self.specs, "length": self.count(silos)}

    def collect(
        self, round: RoundContext, model: Model, clients: Sequence[str], stored: StatisticsMatrix
    ) -> StatisticsMatrix:
        """Let clients compute the statistics that `clients` will read and that are not yet in `stored`; return all.

        Clients compute statistics on their training rows. `model` is the model without statistics.
        """
        silos = round.setup.silos
        if not self.private:
            return stored
        sources = silos.federated() if self.source == "permuted" else silos.select(clients)
        missing = [client for client in sources.clients if client not in stored.refs]
        if not missing:
            return stored
        if self.source == "pooled":
            if not stored.refs:
                stored = stored.with_messages(self._compute(round, model, silos.federated().pool()))
            return stored.shared_by([*(c for c in stored.refs if c in silos.clients), *missing])
        return stored.with_messages(self._compute(round, model, sources.select(missing)))

    def noise_warning(self, before: StatisticsMatrix, after: StatisticsMatrix) -> tuple[str, ...]:
        """Return a warning if so many clients' loadings are unsteady that they may be noise; not for controls."""
        if self.source != "local" or not after.mostly_noise or before.mostly_noise:
            return ()
        signed = any(isinstance(s, Loadings) and s.sign != "free" for s in self.statistics)
        remedy = "set sign: free and components: 4" if signed else "try more components, or another statistic,"
        return (
            f"{len(after.unsteady)} of {len(after.refs)} clients have different loadings in the two halves of "
            f"their training rows, so the loadings may reflect single rows more than what clients share; {remedy} "
            "in method.conditional.statistics.",
        )

    def context(
        self, silos: Silos, clients: Sequence[str], stored: StatisticsMatrix, seed: int
    ) -> Weights | ClientStateRefs:
        """Return the context of these clients' model.

        It consists of references to stored statistics, or of a tensor (clients, count). It is empty for `zeros`, which
        networks read by default. The seed is used by `random` and `permuted`.
        """
        count = self.count(silos)
        if self.source == "zeros":
            return {}
        if self.source in ("local", "pooled"):
            return ClientStateRefs(STATISTICS, {client: stored.refs[client] for client in clients})
        if self.source == "permuted":
            other = _permuted_clients(silos, clients, seed)
            return ClientStateRefs(STATISTICS, {client: stored.refs[other[client]] for client in clients})
        if self.source == "random":
            vectors = [normal(stream, (count,)) for stream in client_streams(seed, clients, 0, "statistics")]
            norms = [stored.norms.get(client, 1.0) for client in clients]
            return {STATISTICS: torch.stack([v / v.norm() * norm for v, norm in zip(vectors, norms, strict=True)])}
        index: dict[str, int] = {}
        if self.source == "client_id":
            index = {client: i for i, client in enumerate(sorted(silos.federated().clients))}
        elif self.source == "cluster_id":
            domains = {name: i for i, name in enumerate(silos.training_domains())}
            index = {c: domains[silos.domain(c)] for c in clients if silos.domain(c) in domains}
        codes = torch.zeros(len(clients), count)
        for row, client in enumerate(clients):
            if client in index:
                codes[row, index[client]] = 1
        return {STATISTICS: codes}

    def _compute(self, round: RoundContext, model: Model, silos: Silos) -> list[StatsKept]:
        return round.map_clients(client_stats, model, silos, statistics=self.statistics, few_rows=self.few_rows)


def _permuted_clients(silos: Silos, clients: Sequence[str], seed: int) -> dict[str, str]:
    """Map each client to the client that it reads statistics of: the next in a random order of the training clients.

    Other clients read the statistics of a random training client. UserError if fewer than two clients train.
    """
    order = silos.federated().clients
    if len(order) < 2:
        raise UserError(
            "params.yaml: method.conditional.source: got permuted with one training client, expected at least "
            "two. Use another source, or more clients."
        )
    keys = dict(zip(order, client_streams(seed, order, 0, "permuted statistics").tolist(), strict=True))
    order = tuple(sorted(order, key=lambda client: (keys[client], client)))
    next_client = dict(zip(order, [*order[1:], order[0]], strict=True))
    streams = client_streams(seed, clients, 0, "permuted statistics").tolist()
    return {c: next_client.get(c, order[stream % len(order)]) for c, stream in zip(clients, streams, strict=True)}


def _clients_with_any(clients: Sequence[str], mask: Tensor) -> set[str]:
    """Return the clients with a true entry in their row of the mask, (clients, statistics) bool."""
    return {client for client, selected in zip(clients, mask.any(1).tolist(), strict=True) if selected}
