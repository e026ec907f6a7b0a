"""Cluster oracle: one FedAvg for each true group; an upper reference.

the groups are the domains that the partition recorded, which no method may read
w_g <- init;  repeat: in each group g:  w_g <- a round of FedAvg among its clients
"""

from flows.methods.base import Method, RoundReport
from flows.methods.common.group_training import (
    domain_indices,
    group_members,
    grouped_model,
    select_trained_domains,
    stack_groups,
    train_groups,
)
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.server_state import ServerState
from silos.cohort import Silos


class ClusterOracle(Method):
    """The cluster oracle has no options."""

    tested_model = "personal"
    is_bound = True

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial weights for each group."""
        groups = setup.silos.training_domains()
        return ServerState({"weights": stack_groups([setup.initial_weights()] * len(groups))}, {"groups": groups})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Run a round of FedAvg in each group."""
        names = state.numbers["groups"]
        groups = group_members(round.clients, domain_indices(round.setup.silos, names), len(names))
        weights, updates = train_groups(round, state.tensors["weights"], groups)
        return state.with_tensors(weights=weights), RoundReport.from_updates(updates)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return each client's group weights."""
        return grouped_model(setup, state.tensors["weights"], domain_indices(setup.silos, state.numbers["groups"]))

    def silos_with_a_model(self, silos: Silos) -> Silos:
        """Select the clients of groups that have a training client; other groups have no model."""
        return select_trained_domains(silos)
