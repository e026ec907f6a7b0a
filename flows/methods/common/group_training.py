"""Trains one model for each group of clients, and holds the tree of clusters; clustered methods share this module."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import GroupedWeights, Model
from models.server_state import ServerState, Weights
from silos.cohort import Silos
from tasks.aggregate import aggregate
from tasks.local_train import local_train
from tasks.messages.round_messages import Update


def select_group(weights: Weights, group: int) -> Weights:
    """Select one group's weights from (groups, ...)."""
    return {name: w[group] for name, w in weights.items()}


def stack_groups(groups: Sequence[Weights]) -> Weights:
    """Stack the weights of groups: (groups, ...)."""
    return {name: torch.stack([weights[name] for weights in groups]) for name in groups[0]}


def group_members(clients: Sequence[str], group_of: Mapping[str, int], groups: int) -> list[list[str]]:
    """List the clients of each of `groups` groups, in the order of `clients`."""
    return [[client for client in clients if group_of[client] == group] for group in range(groups)]


def participants(groups: Sequence[Sequence[str]], round: RoundContext) -> list[list[str]]:
    """List the clients of each group that take part in the round."""
    return [[client for client in names if client in round.clients] for names in groups]


def domain_indices(silos: Silos, domains: Sequence[str]) -> dict[str, int]:
    """Return client to the index of its domain."""
    return {client: domains.index(silos.domain(client)) for client in silos.clients}


def select_trained_domains(silos: Silos) -> Silos:
    """Select the clients of domains that have a training client."""
    domains = silos.training_domains()
    return silos.select([client for client in silos.clients if silos.domain(client) in domains])


def train_groups(
    round: RoundContext, weights: Weights, members: Sequence[Sequence[str]], **options: Any
) -> tuple[Weights, list[Update]]:
    """Run a round of FedAvg within each group; a group without clients keeps its weights.

    Args:
        weights: The weights of the groups: (groups, ...).
        members: The participating clients of each group.
        options: Keyword arguments of `RoundContext.train`.

    Returns:
        The new weights, (groups, ...), and the updates of all clients.
    """
    after: list[Weights] = []
    updates: list[Update] = []
    for group, clients in enumerate(members):
        current = select_group(weights, group)
        if clients:
            model = Model(round.setup.network, shared=current, clients=tuple(clients))
            sent = round.train(local_train, model, round.silos.select(clients), **options)
            current = round.run_on_server(aggregate, sent, current)
            updates += sent
        after.append(current)
    return stack_groups(after), updates


def grouped_model(setup: TrainingSetup, weights: Weights, group_of: Mapping[str, int]) -> Model:
    """Return a model in which each client has its group's weights, from (groups, ...), without a copy for each client."""
    clients = setup.silos.clients
    personal = GroupedWeights(weights, tuple(group_of[client] for client in clients))
    return Model(setup.network, shared={}, personal=personal, clients=clients)


@dataclass
class Tree:
    """Tree of clusters, as nodes in order of creation; a split node keeps the weights before its clients' last updates."""

    weights: list[Weights]
    toward: list[Weights]  # mean direction of the clients' updates at the split that made the node
    parent: list[int | None]
    cluster: Mapping[str, int]  # client to node; empty until the root is split

    @classmethod
    def from_state(cls, state: ServerState) -> "Tree":
        """Read the tree from a state that `to_state` made."""
        parent, cluster = state.numbers["parent"], state.numbers["cluster"]
        weights, toward = (
            [select_group(state.tensors[section], node) for node in range(len(parent))]
            for section in ("weights", "toward")
        )
        return cls(weights, toward, list(parent), cluster)

    def node_of(self, client: str) -> int:
        """Return the client's node: a leaf, or the root for a client that is not in the tree."""
        return self.cluster.get(client, 0)

    @property
    def num_clusters(self) -> int:
        """The number of leaves, which are the nodes that have clients."""
        return len(self.parent) - len({*self.parent} - {None})

    def num_clients(self, node: int, clients: Collection[str]) -> int:
        """Count those of the clients that are in a leaf; all are in an unsplit root."""
        return len(clients) if node == 0 else sum(self.cluster.get(client) == node for client in clients)

    def split(
        self,
        node: int,
        before: Weights,
        after: Weights,
        clients: tuple[tuple[str, ...], ...],
        toward: tuple[Weights, ...],
    ) -> None:
        """Split a leaf into two children, which both start from the cluster's new weights.

        Args:
            node: The leaf.
            before: Its weights before the round.
            after: Its weights after the round.
            clients: The clients of each child.
            toward: The mean direction of the updates of each child's clients.
        """
        self.weights[node] = before
        for names, direction in zip(clients, toward, strict=True):
            self.cluster = {**self.cluster, **dict.fromkeys(names, len(self.parent))}
            self.weights.append(after)
            self.toward.append(direction)
            self.parent.append(node)

    def to_state(self, **numbers: Any) -> ServerState:
        """Write the tree and further numbers to a state."""
        sections = {"weights": stack_groups(self.weights), "toward": stack_groups(self.toward)}
        return ServerState(sections, {"parent": self.parent, "cluster": self.cluster, **numbers})
