"""CFL: FedAvg that splits clusters whose updates point apart (Sattler et al. 2019).

C <- all clients, w_C <- init
repeat: in each cluster C with updates D_i of its clients:  w_C <- w_C + D,  D = sum_i n_i D_i / sum_i n_i  (FedAvg)
        if ||D|| < e1 and max_i ||D_i|| > e2:  split C into c1, c2 that minimize  max_{i in c1, j in c2} cos(D_i, D_j)
"""

import math
from dataclasses import replace

import torch
from pydantic import Field

from flows.core.search_space import axes
from flows.methods.base import Method, RoundReport
from flows.methods.client_sampler import FractionSampler, Sampler
from flows.methods.common.group_training import Tree, group_members, grouped_model, stack_groups
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.clustering import Linkage
from models.networks.network_factory import learned
from models.server_state import ServerState, Weights
from silos import param_limits
from tasks.aggregate import aggregate
from tasks.cluster_clients import bipartition, lengths, nearer
from tasks.local_train import local_train
from tasks.messages.round_messages import Update


class CFL(Method):
    """`mean_below` is the paper's e1, `longest_above` its e2; null takes a share of the first round's longest update."""

    tested_model = "personal"
    tuned = axes(mean_share=(0.1, 0.4))

    mean_below: float | None = Field(
        None,
        ge=0,
        le=param_limits.MAX_REAL,
        description="e1 of the paper: split only if the mean update is shorter; null: mean_share",
    )
    longest_above: float | None = Field(
        None,
        ge=0,
        le=param_limits.MAX_REAL,
        description="e2 of the paper: split only if the longest update is longer; null: longest_share",
    )
    mean_share: float = Field(
        0.1, ge=0, le=param_limits.MAX_REAL, description="e1 as a share of the first round's longest update"
    )
    longest_share: float = Field(
        0.2, ge=0, le=param_limits.MAX_REAL, description="e2 as a share of the first round's longest update"
    )
    after_round: int = Field(0, ge=0, le=param_limits.TIMES, description="rounds of FedAvg before the first split")
    separation: float = Field(0.0, ge=0, le=1, description="smallest gap between the directions of two parts, 0 to 1")
    linkage: Linkage = Field("single", description="how to find two parts: single is the paper's rule")

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return one cluster, the root of the tree, with FedAvg's initial weights."""
        weights = setup.initial_weights()
        zeros = {name: torch.zeros_like(w) for name, w in learned(setup.network, weights).items()}
        numbers: dict[str, object] = {"parent": [None], "cluster": {}, "first": None}
        return ServerState({"weights": stack_groups([weights]), "toward": stack_groups([zeros])}, numbers)

    def sampler(self, usual: Sampler) -> Sampler:
        """Return a sampler that also names the clients that never train, for which no split must wait."""
        return replace(usual, names_absent=True) if isinstance(usual, FractionSampler) else usual

    def leave(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Record that these clients train no more, so that no split waits for them."""
        return state.with_numbers(left=[*state.numbers.get("left", ()), *round.clients]), RoundReport()

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Run FedAvg in each cluster, then split clusters whose mean update is short while a client's is long."""
        tree, first = Tree.from_state(state), state.numbers["first"]
        updates: list[Update] = []
        norms: dict[str, float] = {}
        steps: list[float] = []
        node_of = {client: tree.node_of(client) for client in round.clients}
        left = state.numbers.get("left", ())
        remaining = {*round.setup.silos.clients}.difference(left)
        for node, clients in enumerate(group_members(round.clients, node_of, len(tree.parent))):
            if not clients:
                continue
            current = tree.weights[node]
            sent = round.train(local_train, _model(current, round, clients), round.silos.select(clients), each=True)
            average = round.run_on_server(aggregate, sent, current)
            trainable = learned(round.setup.network, current)  # without running statistics, which have no direction
            lengths_of = round.run_on_server(lengths, sent, trainable)
            step = _distance(average, trainable)
            longest = max(lengths_of.values())
            first = longest if first is None else first
            tree.weights[node] = average
            may_split = (
                len(clients) > 2 and round.number > self.after_round and self._is_stationary(step, longest, first)
            )
            if may_split and tree.num_clients(node, remaining) == len(clients):
                parts = round.run_on_server(bipartition, sent, trainable, self.linkage)
                if math.sqrt(max(1 - parts.across, 0) / 2) >= self.separation:
                    tree.split(node, current, average, parts.clients, parts.toward)
            updates += sent
            norms |= lengths_of
            steps.append(step)
        report = RoundReport.from_updates(updates)
        clusters = {c: float(tree.node_of(c)) for c in round.clients}
        numbers = {"clusters": float(tree.num_clusters), "update/mean": max(steps)}
        numbers |= {**report.metrics, "update/longest": max(norms.values())}
        return tree.to_state(first=first, **({"left": left} if left else {})), RoundReport(
            numbers, {**report.client_metrics, "cluster": clusters, "update": norms}
        )

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return each client's cluster weights; a client that never took part has the root's."""
        cluster = state.numbers["cluster"]
        return grouped_model(setup, state.tensors["weights"], {c: cluster.get(c, 0) for c in setup.silos.clients})

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """Send each client that is not at a leaf down to one.

        It trains from a node's weights and takes the child whose direction is most similar to its update.
        """
        tree = Tree.from_state(state)
        cluster = {client: tree.node_of(client) for client in round.clients}
        for node in range(len(tree.parent)):  # parents come before their children
            children = [child for child, parent in enumerate(tree.parent) if parent == node]
            fresh = [c for c in round.clients if cluster[c] == node]
            if not children or not fresh:
                continue
            current = tree.weights[node]
            sent = round.train(local_train, _model(current, round, fresh), round.silos.select(fresh), each=True)
            trainable = learned(round.setup.network, current)
            chosen = round.run_on_server(nearer, sent, trainable, [tree.toward[child] for child in children])
            cluster |= {client: children[index] for client, index in chosen.items()}
        return grouped_model(round.setup, state.tensors["weights"], cluster)

    def _is_stationary(self, mean: float, longest: float, first: float) -> bool:
        """Return whether the mean update is below e1 while the longest is above e2."""
        below = self.mean_share * first if self.mean_below is None else self.mean_below
        above = self.longest_share * first if self.longest_above is None else self.longest_above
        return mean < below and longest > above


def _model(current: Weights, round: RoundContext, clients: list[str]) -> Model:
    return Model(round.setup.network, shared=current, clients=tuple(clients))


def _distance(after: Weights, before: Weights) -> float:
    return math.sqrt(sum(float(((after[name].double() - before[name].double()) ** 2).sum()) for name in before))
