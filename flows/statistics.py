"""The statistics that a conditional model reads: each client's own, and every control of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flows.round import Round
from models.join import STATISTICS
from models.model import Model
from models.state import Private, Weights
from models.statistics import Statistic, length
from models.streams import client_streams, normal
from silos.cohort import Silos
from tasks.client_stats import client_stats
from tasks.messages import StatsKept

Source = Literal["local", "zeros", "pooled", "random", "permuted", "client_id", "cluster_id"]


@dataclass(frozen=True)
class Known:
    """What the server knows of the statistics that clients keep: a reference and a norm of each."""

    refs: Mapping[str, str]
    norms: Mapping[str, float]

    def joined(self, more: Sequence[StatsKept]) -> "Known":
        """With what these clients say now."""
        refs = {client: ref for kept in more for client, ref in kept.refs.items()}
        norms = {c: float(n) for kept in more for c, n in zip(kept.clients, kept.norm.tolist(), strict=True)}
        return Known({**self.refs, **refs}, {**self.norms, **norms})


@dataclass(frozen=True)
class Conditions:
    """What stands in the place of statistics, for all clients of a problem.

    `local` is the method; the others are its controls: numbers that say nothing of the rows (`zeros`; `random`, as long as
    the client's own), another client's statistics (`permuted`), those of all rows together (`pooled`), and the bare name of
    the client or of its law, one-hot (`client_id`, `cluster_id`; a client or law that nobody trained on has zeros).
    """

    statistics: tuple[Statistic, ...]
    source: Source

    @property
    def private(self) -> bool:
        """Whether a client must have computed something before it has a model."""
        return self.source not in ("zeros", "client_id", "cluster_id")

    def count(self, silos: Silos) -> int:
        """Numbers a client."""
        if self.source == "client_id":
            return len(silos.federated().clients)
        if self.source == "cluster_id":
            return len(_laws(silos))
        return length(self.statistics, math.prod(silos.manifest.shape), len(silos.manifest.classes))

    def ask(self, round: Round, model: Model, silos: Silos, known: Known) -> Known:
        """`known`, and what clients that are not in it keep now: a task on their training rows."""
        missing = [client for client in silos.clients if client not in known.refs]
        if not self.private or not missing:
            return known
        if self.source == "pooled":
            whole = silos.federated().pool()
            (kept,) = round.each(client_stats, model, whole, statistics=self.statistics)
            everybody = dict.fromkeys(silos.clients, kept.refs[whole.clients[0]])
            return Known(everybody, dict.fromkeys(silos.clients, float(kept.norm[0])))
        return known.joined(round.each(client_stats, model, silos.select(missing), statistics=self.statistics))

    def context(self, silos: Silos, known: Known, seed: int) -> Weights | Private:
        """What a model's context is: references, or tensors (clients, count) where nothing is private."""
        clients, count = silos.clients, self.count(silos)
        if self.source in ("local", "pooled"):
            return Private(STATISTICS, {c: known.refs[c] for c in clients}, {})
        if self.source == "permuted":
            return Private(STATISTICS, _of_another(clients, known, seed), {})
        if self.source == "random":
            drawn = [normal(stream, (count,)) for stream in client_streams(seed, clients, 0, "statistics")]
            return {
                STATISTICS: torch.stack([d / d.norm() * known.norms[c] for c, d in zip(clients, drawn, strict=True)])
            }
        place: dict[str, int] = {}
        if self.source == "client_id":
            place = {client: at for at, client in enumerate(sorted(silos.federated().clients))}
        elif self.source == "cluster_id":
            law = {name: at for at, name in enumerate(_laws(silos))}
            place = {c: law[silos.domain(c)] for c in clients if silos.domain(c) in law}
        return {STATISTICS: _one_hot([place.get(client) for client in clients], count)}


def _laws(silos: Silos) -> list[str]:
    """The domains of the clients that train, sorted."""
    federated = silos.federated()
    return sorted({federated.domain(client) for client in federated.clients})


def _of_another(clients: Sequence[str], known: Known, seed: int) -> dict[str, str]:
    """Everybody gets the statistics of the next client in a random order."""
    tickets = dict(zip(clients, client_streams(seed, clients, 0, "permuted statistics").tolist(), strict=True))
    order = sorted(clients, key=lambda client: (tickets[client], client))
    return {client: known.refs[other] for client, other in zip(order, [*order[1:], order[0]], strict=True)}


def _one_hot(places: Sequence[int | None], count: int) -> Tensor:
    found = torch.zeros(len(places), count)
    for row, place in enumerate(places):
        if place is not None:
            found[row, place] = 1
    return found
