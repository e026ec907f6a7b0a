"""Defines the base of methods that average some weights by FedAvg while each client keeps the others."""

from abc import abstractmethod
from typing import ClassVar

from flows.methods.base import Method, RoundReport
from flows.methods.fedavg import fedavg_round
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.server_state import ClientStateRefs, ServerState, Weights


class PersonalWeights(Method):
    """Weights are shared but for those that a subclass names; without personal weights it is FedAvg."""

    tested_model = "personal"

    section: ClassVar[str]
    """The section of clients' private state that has the personal weights."""

    @abstractmethod
    def initial_weights(self, setup: TrainingSetup) -> tuple[dict[str, Weights], Weights]:
        """Return the initial weights: the shared ones as the section `weights` of a state, and the personal ones."""

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial state without the personal weights, which no client has stored."""
        sections, personal = self.initial_weights(setup)
        return ServerState(sections, private={self.section: {}} if personal else {})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train all weights on each client, and average the shared ones; personal weights stay with the clients."""
        model = self.model(state, round.setup)
        return fedavg_round(state, round, model, self.section if model.is_personal else None)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the shared weights with each client's personal ones; a client that has none has the initial ones."""
        _, initial = self.initial_weights(setup)
        personal: Weights | ClientStateRefs = {}
        if initial:
            personal = ClientStateRefs(self.section, state.private[self.section], initial)
        return Model(setup.network, state.tensors["weights"], personal, clients=setup.silos.clients)
