"""The statistics that a conditional model reads: each client's own, and every control of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from flows.methods.context import RoundContext
from models.client_model import Model
from models.networks.wrappers.per_row_context import STATISTICS
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
    """What the server knows of the statistics that clients keep: a reference and a norm, and of whom they tell little.

    `undetermined`: whose rows were too few; `unsteady`: whose statistics are others in each half of the rows. A client
    that describes itself by one number tells no norm.
    """

    refs: Mapping[str, str] = field(default_factory=dict)
    norms: Mapping[str, float] = field(default_factory=dict)
    undetermined: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()

    @classmethod
    def of(cls, state: ServerState) -> "StatisticsMatrix":
        """What a state holds of it."""
        numbers = state.numbers["statistics"]
        few, unsteady = tuple(numbers["undetermined"]), tuple(numbers["unsteady"])
        return cls(state.private[STATISTICS], numbers["norms"], few, unsteady)

    def within(self, state: ServerState) -> ServerState:
        """The state with it."""
        few, unsteady = sorted(self.undetermined), sorted(self.unsteady)
        numbers = {"norms": dict(sorted(self.norms.items())), "undetermined": few, "unsteady": unsteady}
        return state.with_numbers(statistics=numbers).with_private(STATISTICS, self.refs)

    def joined(self, more: Iterable[StatsKept]) -> "StatisticsMatrix":
        """With what these clients say now."""
        refs, norms = dict(self.refs), dict(self.norms)
        undetermined, unsteady = set(self.undetermined), set(self.unsteady)
        for kept in more:
            refs |= kept.refs
            norms |= {c: norm for c, norm in zip(kept.clients, kept.norm.tolist(), strict=True) if math.isfinite(norm)}
            undetermined |= _those(kept.clients, ~kept.ok)
            unsteady |= _those(kept.clients, kept.agreement < STEADY)
        return StatisticsMatrix(refs, norms, tuple(sorted(undetermined)), tuple(sorted(unsteady)))

    def shared(self, clients: Iterable[str]) -> "StatisticsMatrix":
        """What one client said, taken for all of these."""
        (ref,) = set(self.refs.values())
        return StatisticsMatrix(dict.fromkeys(clients, ref), self.norms, self.undetermined, self.unsteady)

    @property
    def mostly_noise(self) -> bool:
        """Whether of a quarter of the clients, or more, halves of the rows do not agree."""
        return 4 * len(self.unsteady) >= max(len(self.refs), 1)


@dataclass(frozen=True)
class Conditioning:
    """What stands in the place of statistics, for all clients of a problem.

    `local` is the method; the others are its controls: numbers that say nothing of the rows (`zeros`; `random`, as long as
    the client's own), another client's statistics (`permuted`), those of all rows together (`pooled`), and the bare name of
    the client or of its law, one-hot (`client_id`, `cluster_id`; a client or law that nobody trained on has zeros).

    `silos` are always all clients of the problem, whoever takes part: what a client reads must not change with the round.
    """

    statistics: tuple[Statistic, ...]
    source: Source
    few_rows: FewRows = "zeros"

    @property
    def private(self) -> bool:
        """Whether a client must have computed something before it has a model."""
        return self.source not in ("zeros", "client_id", "cluster_id")

    def count(self, silos: Silos) -> int:
        """Numbers a client; UserError if the task has no such statistics."""
        if self.source == "client_id":
            return len(silos.federated().clients)
        if self.source == "cluster_id":
            return len(silos.training_domains())
        try:
            return length(self.statistics, math.prod(silos.manifest.shape), len(silos.manifest.classes))
        except StatisticError as error:
            raise UserError(f"params.yaml: method.conditional.statistics: {error}.") from None

    @property
    def specs(self) -> list[dict[str, Any]]:
        """What clients compute, as params.yaml says it; nothing where a control needs nothing."""
        return [{"kind": s.kind, **asdict(s)} for s in self.statistics] if self.private else []  # type: ignore[call-overload]

    def described(self, silos: Silos) -> dict[str, Any]:
        """Plain JSON, for whoever gives statistics to a model: the kinds with their options, and the length."""
        return {"kinds": self.specs, "length": self.count(silos)}

    def ask(
        self, round: RoundContext, model: Model, clients: Sequence[str], known: StatisticsMatrix
    ) -> StatisticsMatrix:
        """`known`, and what those are asked to keep now whose statistics these clients read: a task on training rows."""
        silos = round.setup.silos
        if not self.private:
            return known
        asked = silos.federated() if self.source == "permuted" else silos.select(clients)
        missing = [client for client in asked.clients if client not in known.refs]
        if not missing:
            return known
        if self.source == "pooled":
            if not known.refs:
                known = known.joined(self._ask(round, model, silos.federated().pool()))
            return known.shared([*(c for c in known.refs if c in silos.clients), *missing])
        return known.joined(self._ask(round, model, asked.select(missing)))

    def doubt(self, before: StatisticsMatrix, known: StatisticsMatrix) -> tuple[str, ...]:
        """One sentence when so many clients' loadings are unsteady that they may tell little; once, and not of controls."""
        if self.source != "local" or not known.mostly_noise or before.mostly_noise:
            return ()
        signed = any(isinstance(s, Loadings) and s.sign != "free" for s in self.statistics)
        instead = "set sign: free and components: 4" if signed else "try more components, or another statistic,"
        return (
            f"{len(known.unsteady)} of {len(known.refs)} clients have other loadings in one half of their training rows "
            "than in the other, so that these may tell more of single rows than of what clients have in common; "
            f"{instead} in method.conditional.statistics.",
        )

    def context(
        self, silos: Silos, clients: Sequence[str], known: StatisticsMatrix, seed: int
    ) -> Weights | ClientStateRefs:
        """What these clients' model has for context: references, or tensors (clients, count) where nothing is private.

        None for zeros: they stand in where there is no context.
        """
        count = self.count(silos)
        if self.source == "zeros":
            return {}
        if self.source in ("local", "pooled"):
            return ClientStateRefs(STATISTICS, {client: known.refs[client] for client in clients})
        if self.source == "permuted":
            other = _others(silos, clients, seed)
            return ClientStateRefs(STATISTICS, {client: known.refs[other[client]] for client in clients})
        if self.source == "random":
            drawn = [normal(stream, (count,)) for stream in client_streams(seed, clients, 0, "statistics")]
            norms = [known.norms.get(client, 1.0) for client in clients]
            return {STATISTICS: torch.stack([d / d.norm() * norm for d, norm in zip(drawn, norms, strict=True)])}
        place: dict[str, int] = {}
        if self.source == "client_id":
            place = {client: at for at, client in enumerate(sorted(silos.federated().clients))}
        elif self.source == "cluster_id":
            law = {name: at for at, name in enumerate(silos.training_domains())}
            place = {c: law[silos.domain(c)] for c in clients if silos.domain(c) in law}
        return {STATISTICS: _one_hot([place.get(client) for client in clients], count)}

    def _ask(self, round: RoundContext, model: Model, silos: Silos) -> list[StatsKept]:
        return round.map_clients(client_stats, model, silos, statistics=self.statistics, few_rows=self.few_rows)


def _others(silos: Silos, clients: Sequence[str], seed: int) -> dict[str, str]:
    """Whose statistics each client reads: those of the next in a random order of the clients that train.

    Others than those read the statistics of any of them. UserError if there is nobody else.
    """
    order = silos.federated().clients
    if len(order) < 2:
        raise UserError(
            "params.yaml: method.conditional.source is permuted, which needs two clients that train, or more."
        )
    tickets = dict(zip(order, client_streams(seed, order, 0, "permuted statistics").tolist(), strict=True))
    order = tuple(sorted(order, key=lambda client: (tickets[client], client)))
    following = dict(zip(order, [*order[1:], order[0]], strict=True))
    drawn = client_streams(seed, clients, 0, "permuted statistics").tolist()
    return {c: following.get(c, order[ticket % len(order)]) for c, ticket in zip(clients, drawn, strict=True)}


def _those(clients: Sequence[str], which: Tensor) -> set[str]:
    """The clients of which some statistic is so; which: (clients, statistics) bool."""
    return {client for client, is_so in zip(clients, which.any(1).tolist(), strict=True) if is_so}


def _one_hot(places: Sequence[int | None], count: int) -> Tensor:
    codes = torch.zeros(len(places), count)
    for row, place in enumerate(places):
        if place is not None:
            codes[row, place] = 1
    return codes
