"""FedBN: FedAvg in which every client keeps its batch normalisation to itself (Li et al. 2021).

w, v_k <- init, v being weights, biases and running statistics of the normalising layers and w all other weights
repeat: every client k trains (w_k, v_k) from (w, v_k) for E local epochs
        w <- sum_k n_k w_k / sum_k n_k;  v_k stays with the client
"""

from flows.method import Method, Report
from flows.methods.shared import own_norms
from flows.round import Problem, Round
from models.model import Model
from models.state import State
from tasks.aggregate import aggregate
from tasks.local_train import local_train


class FedBN(Method):
    """No options of its own; a network without batch normalisation is FedAvg's."""

    tested_model = "personal"

    def init(self, problem: Problem) -> State:
        """FedAvg's draw; nobody has stored normalising layers yet."""
        return own_norms.start(problem, problem.network.normalising)

    def one_round(self, state: State, round: Round) -> tuple[State, Report]:
        """Train everywhere, average what is shared, keep the rest."""
        updates = round.train(local_train, self.model(state, round.problem))
        state = own_norms.with_kept(state, updates, round.problem.network.normalising)
        weights = round.once(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), Report.of(updates)

    def model(self, state: State, problem: Problem) -> Model:
        """The same weights for everybody but in normalising layers, which are each client's own."""
        return own_norms.model(state, problem, problem.network.normalising)

    def scored_model(self, state: State, round: Round) -> Model:
        """A client that never trained has the start's scales, and measures the statistics of its own training rows."""
        return own_norms.measured_where_missing(state, round, round.problem.network.normalising)
