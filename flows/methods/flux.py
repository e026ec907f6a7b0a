"""FLUX: clients are clustered once by descriptors of their rows, a new client by its features alone (Fenoglio et al. 2025).

w <- FedAvg over all clients for the warm-up;  e <- w, whose encoder stays fixed
once:   each client k sends d_k: mean and deviation of l components of e's features, over its rows and by class
        clusters <- connected points d_k, scaled, within the elbow (Kneedle's) of the distances to the nearest neighbour
        w_c <- w for each cluster c
repeat: w_c <- a round of FedAvg over the clients of cluster c
test:   a client that never trained takes the cluster whose mean of d is nearest in the part that reads no label
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from flows.core.search_space import axes
from flows.methods.base import Method, RoundReport
from flows.methods.common.group_training import group_members, grouped_model, select_group, stack_groups, train_groups
from flows.methods.common.network_checks import require_part
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.server_state import ServerState
from silos import param_limits
from tasks.cluster_clients import assign_descriptors, cluster_descriptors
from tasks.messages.message_policy import messages_of
from tasks.messages.round_messages import Descriptor
from tasks.report_evidence import report_descriptor, report_evidence

_POINTS = 200  # random points whose principal components are the axes, as in the authors' code


class Flux(Method):
    """`radius` multiplies the radius within which descriptors are neighbours; one cluster is FedAvg."""

    tested_model = "personal"
    takes_members = False

    tuned = axes(radius=(1.0, 2.0))

    warm_up: int = Field(3, ge=0, le=param_limits.TIMES, description="rounds of FedAvg before clients are clustered")
    components: int = Field(
        10, ge=1, le=_POINTS - 1, description="l: components of the encoder's features that a descriptor summarizes"
    )
    radius: float = Field(
        1.0,
        gt=0,
        le=param_limits.MAX_REAL,
        description="factor of the neighbourhood's radius: a larger one gives fewer clusters",
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial weights as the only cluster's; no client is in it."""
        require_part(setup.network, setup.network.encoder_head, "encoder whose features describe a client")
        return ServerState({"weights": stack_groups([setup.initial_weights()])}, {"cluster": {}})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Cluster the clients once after the warm-up, or assign new ones, and run FedAvg within clusters."""
        due = round.number > self.warm_up and "encoder" not in state.tensors and bool(round.clients)
        state = self._cluster(state, round) if due else self._admit(state, round)
        cluster, weights = state.numbers["cluster"], state.tensors["weights"]
        groups = group_members(round.clients, {c: cluster.get(c, 0) for c in round.clients}, _num_clusters(state))
        weights, updates = train_groups(round, weights, groups, received=due)
        numbers = {"clusters": float(len(groups))}
        report = RoundReport(numbers, {"cluster": {c: float(cluster.get(c, 0)) for c in round.clients}})
        return state.with_tensors(weights=weights), RoundReport.from_updates(updates).merge(report)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return each client's cluster weights; a client that is in none has those of the cluster with most rows."""
        cluster = state.numbers["cluster"]
        return grouped_model(setup, state.tensors["weights"], {c: cluster.get(c, 0) for c in setup.silos.clients})

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """Assign clients that never trained by the features of their training rows, without labels."""
        new = [client for client in round.setup.silos.clients if client not in state.numbers["cluster"]]
        cluster = {**state.numbers["cluster"], **self._assign(state, round, new, classes=0)}
        return self.model(state.with_numbers(cluster=cluster), round.setup)

    def _cluster(self, state: ServerState, round: RoundContext) -> ServerState:
        encoder = select_group(state.tensors["weights"], 0)
        width = math.prod(require_part(round.setup.network, round.setup.network.encoder_head, "encoder").encoded)
        shared = _axes(width, self.components)
        sent = _describe(round, Model(round.setup.network, encoder, clients=round.clients), shared, _classes(round))
        found = round.run_on_server(cluster_descriptors, sent, self.radius)
        descriptor = {"axes": shared, "centroids": found.centroids, "lowest": found.lowest, "span": found.span}
        weights = stack_groups([encoder] * len(found.centroids))
        state = state.with_tensors(weights=weights, encoder=encoder, descriptor=descriptor)
        return state.with_numbers(cluster=found.cluster)

    def _admit(self, state: ServerState, round: RoundContext) -> ServerState:
        """Assign clients that train for the first time, by whole descriptors."""
        new = [client for client in round.clients if client not in state.numbers["cluster"]]
        assigned = self._assign(state, round, new, _classes(round))
        return state.with_numbers(cluster={**state.numbers["cluster"], **assigned})

    def _assign(self, state: ServerState, round: RoundContext, new: Sequence[str], classes: int) -> dict[str, int]:
        if "encoder" not in state.tensors or not new:
            return {}
        found = state.tensors["descriptor"]
        model = Model(round.setup.network, state.tensors["encoder"], clients=tuple(new))
        sent = _describe(round, model, found["axes"], classes)
        where = (found["centroids"], found["lowest"], found["span"])
        assigned: dict[str, int] = round.run_on_server(assign_descriptors, sent, *where)
        return assigned


def _num_clusters(state: ServerState) -> int:
    return len(next(iter(state.tensors["weights"].values())))


def _classes(round: RoundContext) -> int:
    return len(round.setup.silos.manifest.classes)


def _describe(round: RoundContext, model: Model, shared: Tensor, classes: int) -> list[Descriptor]:
    evidence, silos = partial(report_descriptor, axes=shared, classes=classes), round.setup.silos.select(model.clients)
    sent = round.map_clients(report_evidence, model, silos, training=round.setup.training, evidence=evidence)
    return messages_of(Descriptor, sent)


def _axes(width: int, components: int) -> Tensor:
    """Return principal components of random points, the same for every client and run: (width, components) float64.

    The largest loading of each is positive, since the sign of a component is free and decides how means are scaled.
    """
    points = np.random.default_rng(1).uniform(size=(_POINTS, width))
    axes = np.linalg.svd(points - points.mean(0), full_matrices=False)[2][:components].T
    largest = axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])]
    return torch.from_numpy(axes * np.sign(largest))
