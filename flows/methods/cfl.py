"""CFL: FedAvg in one cluster of all clients, which parts in two wherever its clients pull apart (Sattler et al. 2019).

cluster C with clients' updates D_i:  w_C <- w_C + D, the mean D = sum n_i D_i / sum n_i, which is FedAvg
if ||D|| < e1 and max_i ||D_i|| > e2:  C becomes c1 and c2, which minimise  max_{i in c1, j in c2} cos(D_i, D_j)
"""

import math
from typing import Any

import torch
from pydantic import Field

from flows.experiment.comparison.search_space import axes
from flows.methods.base import Method, RoundReport
from flows.methods.common.clusters import Tree, members, model_of_groups, train_together
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.clustering import Linkage
from models.networks.network_factory import learned
from models.prng import server_stream
from models.server_state import ServerState, Weights
from silos import param_types
from tasks.aggregate import aggregate
from tasks.cluster_clients import bipartition, lengths, nearer
from tasks.local_train import local_train
from tasks.messages.update_messages import Update


class CFL(Method):
    """`mean_below` is the paper's e1, `longest_above` its e2; null are shares of the longest update of the first round."""

    tested_model = "personal"
    tuned = axes(mean_share=(0.1, 0.4))

    mean_below: float | None = Field(
        None, ge=0, le=param_types.MAX_REAL, description="the paper's e1: the mean update is shorter; null: mean_share"
    )
    longest_above: float | None = Field(
        None,
        ge=0,
        le=param_types.MAX_REAL,
        description="the paper's e2: the longest update is longer; null: longest_share",
    )
    mean_share: float = Field(
        0.1, ge=0, le=param_types.MAX_REAL, description="e1 as a share of the first round's longest update"
    )
    longest_share: float = Field(
        0.2, ge=0, le=param_types.MAX_REAL, description="e2 as a share of the first round's longest update"
    )
    after_round: int = Field(0, ge=0, le=param_types.TIMES, description="rounds of FedAvg before the first split")
    separation: float = Field(0.0, ge=0, le=1, description="least gap of directions between parts, 0 to 1")
    linkage: Linkage = Field("single", description="how two parts are found: single is the paper's rule")

    def init(self, setup: TrainingSetup) -> ServerState:
        """One cluster, the root of the tree, with FedAvg's start."""
        start = setup.network.init(server_stream(setup.seed, 0, "init"))
        nowhere = {name: torch.zeros_like(w) for name, w in learned(setup.network, start).items()}
        numbers: dict[str, Any] = {"parent": [None], "cluster": {}, "first": None}
        return ServerState({"weights": train_together([start]), "toward": train_together([nowhere])}, numbers)

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """FedAvg in every cluster, then the split of those that stand still while their clients do not."""
        tree, first = Tree.of(state), state.numbers["first"]
        updates: list[Update] = []
        norms: dict[str, float] = {}
        steps: list[float] = []
        called = {client: tree.of_client(client) for client in round.clients}
        for node, clients in enumerate(members(round.clients, called, len(tree.parent))):
            if not clients:
                continue
            current = tree.weights[node]
            sent = round.train(local_train, _model(current, round, clients), round.silos.select(clients), each=True)
            average = round.run_on_server(aggregate, sent, current)
            learns = learned(round.setup.network, current)  # running statistics are the rows', and go no way
            length = round.run_on_server(lengths, sent, learns)
            step = _length(average, learns)
            longest = max(length.values())
            first = longest if first is None else first
            tree.weights[node] = average
            may = len(clients) > 2 and round.number > self.after_round and self._stuck(step, longest, first)
            if may and tree.size(node, len(round.setup.silos.clients)) == len(clients):
                parts = round.run_on_server(bipartition, sent, learns, self.linkage)
                if math.sqrt(max(1 - parts.across, 0) / 2) >= self.separation:
                    tree.split(node, current, average, parts.clients, parts.toward)
            updates += sent
            norms |= length
            steps.append(step)
        report = RoundReport.of(updates)
        clusters = {c: float(tree.of_client(c)) for c in round.clients}
        numbers = {"clusters": float(tree.clusters), "update/mean": max(steps)}
        numbers |= {**report.metrics, "update/longest": max(norms.values())}
        return tree.state(first=first), RoundReport(
            numbers, {**report.client_metrics, "cluster": clusters, "update": norms}
        )

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Each client has its cluster's weights; a fresh one has the root's, where it has not been asked."""
        cluster = state.numbers["cluster"]
        return model_of_groups(setup, state.tensors["weights"], {c: cluster.get(c, 0) for c in setup.silos.clients})

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """A fresh client goes down the tree: it trains from the parent's weights and takes the part that it is like."""
        tree = Tree.of(state)
        cluster = {client: tree.of_client(client) for client in round.clients}
        for node in range(len(tree.parent)):  # parents come before their children
            children = [child for child, parent in enumerate(tree.parent) if parent == node]
            fresh = [c for c in round.clients if c not in tree.cluster and cluster[c] == node]
            if not children or not fresh:
                continue
            current = tree.weights[node]
            sent = round.train(local_train, _model(current, round, fresh), round.silos.select(fresh), each=True)
            learns = learned(round.setup.network, current)
            chosen = round.run_on_server(nearer, sent, learns, [tree.toward[child] for child in children])
            cluster |= {client: children[at] for client, at in chosen.items()}
        return model_of_groups(round.setup, state.tensors["weights"], cluster)

    def _stuck(self, mean: float, longest: float, first: float) -> bool:
        """Whether the cluster stands still (e1) while a client does not (e2)."""
        below = self.mean_share * first if self.mean_below is None else self.mean_below
        above = self.longest_share * first if self.longest_above is None else self.longest_above
        return mean < below and longest > above


def _model(current: Weights, round: RoundContext, clients: list[str]) -> Model:
    return Model(round.setup.network, shared=current, clients=tuple(clients))


def _length(after: Weights, before: Weights) -> float:
    return math.sqrt(sum(float(((after[name].double() - before[name].double()) ** 2).sum()) for name in before))
