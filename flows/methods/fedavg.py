"""FedAvg: clients train the shared model on their rows, the server averages by rows (McMahan et al. 2017).

w <- init
repeat: every client k trains w_k from w for E local epochs
        w <- sum_k n_k w_k / sum_k n_k
"""

from flows.methods.base import Method, RoundReport
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.prng import server_stream
from models.server_state import ServerState
from tasks.aggregate import aggregate
from tasks.local_train import local_train


class FedAvg(Method):
    """No options of its own."""

    def init(self, setup: TrainingSetup) -> ServerState:
        """One draw of weights, the same for every method of a seed."""
        return ServerState({"weights": setup.network.init(server_stream(setup.seed, 0, "init"))})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train everywhere, average."""
        updates = round.train(local_train, self.model(state, round.setup))
        weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), RoundReport.of(updates)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """The same weights for everybody."""
        return Model(setup.network, shared=state.tensors["weights"], clients=setup.silos.clients)
