"""Local only: each client trains alone; the lower reference for federation.

w_k <- init, the same for all k
repeat: each client k trains w_k on its own rows for E local epochs
"""

from dataclasses import replace

from flows.methods.base import Method, RoundReport
from flows.methods.client_sampler import FractionSampler, Sampler
from flows.methods.round_context import RoundContext, TrainingSetup, without_noise
from models.client_model import Model
from models.server_state import ClientStateRefs, ServerState
from silos.cohort import Silos
from tasks.local_train import local_train


class LocalOnly(Method):
    """Local only has no options; weights stay with the clients, and the server has their hashes."""

    private_training = "kept"
    pays_as = None
    tested_model = "personal"

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return a state in which no client has stored weights."""
        return ServerState(private={"weights": {}})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train each client's weights, which stay with the client."""
        alone = without_noise(round.setup.training)
        updates = round.train(local_train, self.model(state, round.setup), training=alone)
        for update in updates:
            state = state.with_private("weights", update.private["weights"])
        return state, RoundReport.from_updates(updates)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return each client's own weights; a client that has not trained has the initial ones."""
        start = setup.initial_weights()
        personal = ClientStateRefs("weights", state.private["weights"], start)
        return Model(setup.network, shared={}, personal=personal, clients=setup.silos.clients)

    def sampler(self, usual: Sampler) -> Sampler:
        """Return a sampler from which no client leaves in round 1: one that takes no part in a federation trains alone."""
        if not isinstance(usual, FractionSampler):
            return usual
        return replace(usual, leave={client: left for client, left in usual.leave.items() if left > 1})

    def silos_with_a_model(self, silos: Silos) -> Silos:
        """Select the federated clients: other clients never train and have no model."""
        return silos.federated()
