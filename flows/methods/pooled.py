"""Pooled: one model on the rows of all clients together, which federation must do without; the usual ceiling.

w <- E local epochs on the union of the rows, a round; with one client this is local_only
"""

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.context import RoundContext
from models.server_state import ServerState
from tasks.aggregate import aggregate
from tasks.local_train import local_train


class Pooled(fedavg.FedAvg):
    """No options of its own."""

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """The union of the rows trains as one client."""
        model = self.model(state, round.setup)
        updates = round.train(local_train, model, silos=round.silos.pool())
        weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), RoundReport.of(updates)
