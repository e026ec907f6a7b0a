"""Server-side batch norm: FedAvg whose server measures the running statistics of the average, on rows that are nobody's.

repeat: a round of FedAvg;  running statistics of w <- those of the common validation rows under w
"""

from flows.method import Report
from flows.methods import fedavg
from flows.methods.shared import own_norms
from flows.round import Problem, Round
from models.state import State


class ServerBN(fedavg.FedAvg):
    """No options of its own; a network without batch normalisation is FedAvg's."""

    def init(self, problem: Problem) -> State:
        """FedAvg's; UserError where there are statistics to measure, and no rows that are nobody's."""
        own_norms.check_common_norms(problem)
        return super().init(problem)

    def one_round(self, state: State, round: Round) -> tuple[State, Report]:
        """FedAvg's, then the statistics."""
        state, report = super().one_round(state, round)
        return state.with_tensors(weights=own_norms.measured_in_common(state.tensors["weights"], round)), report
