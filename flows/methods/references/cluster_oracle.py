"""Cluster oracle: one FedAvg for each true group of clients, which no method is told; the ceiling of clustered methods.

the groups are the domains that the partition wrote down; every group g:  w_g <- a round of FedAvg among its clients
"""

from flows.methods.base import Method, RoundReport
from flows.methods.common.clusters import members, model_of_groups, train_groups, train_together
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.prng import server_stream
from models.server_state import ServerState
from silos.cohort import Silos


class ClusterOracle(Method):
    """No options of its own."""

    tested_model = "personal"

    def init(self, setup: TrainingSetup) -> ServerState:
        """FedAvg's start for every group."""
        start = setup.network.init(server_stream(setup.seed, 0, "init"))
        groups = setup.silos.training_domains()
        return ServerState({"weights": train_together([start] * len(groups))}, {"groups": groups})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """FedAvg, group by group."""
        names = state.numbers["groups"]
        groups = members(round.clients, _group_of(round.setup.silos, names), len(names))
        weights, updates = train_groups(round, state.tensors["weights"], groups)
        return state.with_tensors(weights=weights), RoundReport.of(updates)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Each client has its group's weights."""
        return model_of_groups(setup, state.tensors["weights"], _group_of(setup.silos, state.numbers["groups"]))

    def silos_with_a_model(self, silos: Silos) -> Silos:
        """A client of a group that nobody trained on has no model."""
        known = silos.training_domains()
        return silos.select([client for client in silos.clients if silos.domain(client) in known])


def _group_of(silos: Silos, groups: list[str]) -> dict[str, int]:
    return {client: groups.index(silos.domain(client)) for client in silos.clients}
