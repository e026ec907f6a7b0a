"""Pooled: one model on the rows of all clients together, which federation must do without; the usual ceiling.

w <- E local epochs on the union of the rows, a round; with one client this is local_only
"""

from flows.methods import fedavg
from flows.methods.base import Report
from flows.methods.context import Round
from models.state import State
from tasks.aggregate import aggregate
from tasks.local_train import local_train


class Pooled(fedavg.FedAvg):
    """No options of its own."""

    def one_round(self, state: State, round: Round) -> tuple[State, Report]:
        """The union of the rows trains as one client."""
        model = self.model(state, round.problem)
        updates = round.train(local_train, model, silos=round.silos.pool())
        weights = round.once(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), Report.of(updates)
