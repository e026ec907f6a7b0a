"""FedAvg: clients train one model, the server averages the weights (McMahan et al. 2017).

w <- init
repeat: each client k trains w_k from w for E local epochs
        w <- sum_k n_k w_k / sum_k n_k
"""

from typing import Any, ClassVar

from flows.methods.base import Method, PrivateTraining, RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.server_state import ServerState
from tasks.aggregate import aggregate
from tasks.local_train import local_train


def fedavg_round(
    state: ServerState, round: RoundContext, model: Model, section: str | None = None, **options: Any
) -> tuple[ServerState, RoundReport]:
    """Train the model on each client and average its shared weights by rows.

    Args:
        state: The state of the server; `model.shared` is its section `weights`.
        model: The model that clients train.
        section: The section of the clients' stores that keeps the personal weights, if the model has any.
        options: Keyword arguments of `RoundContext.train`.
    """
    updates = round.train(local_train, model, **options)
    if section:
        for update in updates:
            state = state.with_private(section, update.private[section])
    weights = round.run_on_server(aggregate, updates, model.shared)
    return state.with_tensors(weights=weights), RoundReport.from_updates(updates)


class FedAvg(Method):
    """FedAvg has no options."""

    private_training: ClassVar[PrivateTraining] = "noise"

    def init(self, setup: TrainingSetup) -> ServerState:
        """Initialize the weights; they are the same for every method of a seed."""
        return ServerState({"weights": setup.initial_weights()})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train the shared weights on each client and average them."""
        return fedavg_round(state, round, self.model(state, round.setup))

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the shared weights, which are the same for all clients."""
        return Model(setup.network, shared=state.tensors["weights"], clients=setup.silos.clients)
