"""Several models side by side, one for each group of clients: what the pages of clustered methods share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model, OfGroups
from models.server_state import ServerState, Weights
from tasks.aggregate import aggregate
from tasks.local_train import local_train
from tasks.messages.update_messages import Update


def of_group(weights: Weights, group: int) -> Weights:
    """One group's weights out of (groups, ...)."""
    return {name: w[group] for name, w in weights.items()}


def train_together(groups: Sequence[Weights]) -> Weights:
    """Weights side by side: (groups, ...)."""
    return {name: torch.stack([weights[name] for weights in groups]) for name in groups[0]}


def members(clients: Sequence[str], group_of: Mapping[str, int], groups: int) -> list[list[str]]:
    """The clients of each group, in the order given."""
    return [[client for client in clients if group_of[client] == group] for group in range(groups)]


def train_groups(
    round: RoundContext, weights: Weights, members: Sequence[Sequence[str]], **options: Any
) -> tuple[Weights, list[Update]]:
    """One round of FedAvg within every group; a group of whom nobody takes part keeps its weights.

    weights: (groups, ...), before and after. `options` are those of `RoundContext.train`.
    """
    after: list[Weights] = []
    updates: list[Update] = []
    for group, clients in enumerate(members):
        current = of_group(weights, group)
        if clients:
            model = Model(round.setup.network, shared=current, clients=tuple(clients))
            mine = round.train(local_train, model, round.silos.select(clients), **options)
            current = round.run_on_server(aggregate, mine, current)
            updates += mine
        after.append(current)
    return train_together(after), updates


def model_of_groups(setup: TrainingSetup, weights: Weights, group_of: Mapping[str, int]) -> Model:
    """Every client with its group's weights, out of (groups, ...); no client has a copy."""
    clients = setup.silos.clients
    personal = OfGroups(weights, tuple(group_of[client] for client in clients))
    return Model(setup.network, shared={}, personal=personal, clients=clients)


@dataclass
class Tree:
    """Clusters as nodes in order of birth; one that was split keeps the weights that its clients' updates left from."""

    weights: list[Weights]
    toward: list[Weights]  # mean direction of the clients' updates at the split that made the node
    parent: list[int | None]
    cluster: Mapping[str, int]  # of each client, once its first cluster, the root, was split

    @classmethod
    def of(cls, state: ServerState) -> "Tree":
        """The tree that `state` wrote."""
        parent, cluster = state.numbers["parent"], state.numbers["cluster"]
        weights, toward = (
            [of_group(state.tensors[section], node) for node in range(len(parent))] for section in ("weights", "toward")
        )
        return cls(weights, toward, list(parent), cluster)

    def of_client(self, client: str) -> int:
        """The node that the client is in: one without children, or the root of one that never was in any."""
        return self.cluster.get(client, 0)

    @property
    def clusters(self) -> int:
        """How many nodes have clients: those without children."""
        return len(self.parent) - len({*self.parent} - {None})

    def size(self, node: int, everybody: int) -> int:
        """How many of all clients are in a cluster: looks at every client where the root is split."""
        return everybody if node == 0 else sum(held == node for held in self.cluster.values())

    def split(
        self,
        node: int,
        before: Weights,
        after: Weights,
        clients: tuple[tuple[str, ...], ...],
        toward: tuple[Weights, ...],
    ) -> None:
        """Both children go on from the cluster's new weights."""
        self.weights[node] = before
        for names, direction in zip(clients, toward, strict=True):
            self.cluster = {**self.cluster, **dict.fromkeys(names, len(self.parent))}
            self.weights.append(after)
            self.toward.append(direction)
            self.parent.append(node)

    def state(self, **numbers: float | None) -> ServerState:
        """The tree and some numbers, as a state."""
        sections = {"weights": train_together(self.weights), "toward": train_together(self.toward)}
        return ServerState(sections, {"parent": self.parent, "cluster": self.cluster, **numbers})
