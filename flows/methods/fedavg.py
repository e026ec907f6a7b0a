"""FedAvg: clients train the shared model on their rows, the server averages by rows (McMahan et al. 2017).

w <- init
repeat: every client k trains w_k from w for E local epochs
        w <- sum_k n_k w_k / sum_k n_k
"""

from flows.methods.base import Method, Report
from flows.methods.context import Problem, Round
from models.model import Model
from models.prng import server_stream
from models.state import State
from tasks.aggregate import aggregate
from tasks.local_train import local_train


class FedAvg(Method):
    """No options of its own."""

    def init(self, problem: Problem) -> State:
        """One draw of weights, the same for every method of a seed."""
        return State({"weights": problem.network.init(server_stream(problem.seed, 0, "init"))})

    def one_round(self, state: State, round: Round) -> tuple[State, Report]:
        """Train everywhere, average."""
        updates = round.train(local_train, self.model(state, round.problem))
        weights = round.once(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), Report.of(updates)

    def model(self, state: State, problem: Problem) -> Model:
        """The same weights for everybody."""
        return Model(problem.network, shared=state.tensors["weights"], clients=problem.silos.clients)
