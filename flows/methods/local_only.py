"""Local only: every client trains alone and shares nothing; the floor that federation has to beat.

w_k <- init, the same for all; every client k trains w_k on its own rows for E local epochs a round
"""

from flows.methods.base import Method, RoundReport
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.prng import server_stream
from models.server_state import ClientStateRefs, ServerState
from silos.cohort import Silos
from tasks.local_train import local_train


class LocalOnly(Method):
    """No options of its own; the weights stay with the clients, the server knows their hashes."""

    tested_model = "personal"

    def init(self, setup: TrainingSetup) -> ServerState:
        """Nobody has stored weights yet."""
        return ServerState(private={"weights": {}})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train everywhere, keep."""
        updates = round.train(local_train, self.model(state, round.setup))
        for update in updates:
            state = state.with_private("weights", update.private["weights"])
        return state, RoundReport.of(updates)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Each client's own weights; one that has trained never has the start."""
        start = setup.network.init(server_stream(setup.seed, 0, "init"))
        personal = ClientStateRefs("weights", state.private["weights"], start)
        return Model(setup.network, shared={}, personal=personal, clients=setup.silos.clients)

    def silos_with_a_model(self, silos: Silos) -> Silos:
        """A client that never trains has no model."""
        return silos.federated()
