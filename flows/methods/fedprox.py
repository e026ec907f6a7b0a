"""FedProx: FedAvg whose clients are held near the server's weights (Li et al. 2020).

every client k minimises F_k(w_k) + mu/2 ||w_k - w||^2 in its local epochs; mu = 0 is FedAvg
"""

from pydantic import Field

from flows.experiment.comparison.search_space import axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.context import RoundContext
from models.server_state import ServerState
from silos import param_types
from tasks.aggregate import aggregate
from tasks.local_train import local_train


class FedProx(fedavg.FedAvg):
    """`proximal` is the paper's mu; its grid is 0.001, 0.01, 0.1, 1."""

    tuned = axes(proximal=(0.01, 0.1))

    proximal: float = Field(
        0.01, ge=0, le=param_types.MAX_REAL, description="mu: how strongly clients are held near the server's weights"
    )

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train everywhere with the proximal term, average."""
        model = self.model(state, round.setup)
        updates = round.train(local_train, model, proximal=self.proximal)
        weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), RoundReport.of(updates)
