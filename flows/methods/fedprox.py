"""FedProx: FedAvg that keeps clients near the server's weights (Li et al. 2020).

each client k minimizes F_k(w_k) + mu/2 ||w_k - w||^2 in its local epochs; mu = 0 is FedAvg
"""

from pydantic import Field

from flows.core.search_space import axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext
from models.server_state import ServerState
from silos import param_limits


class FedProx(fedavg.FedAvg):
    """`proximal` is the paper's mu, with the grid 0.001, 0.01, 0.1, 1."""

    private_training = "noise"
    tuned = axes(proximal=(0.01, 0.1))

    proximal: float = Field(
        0.01,
        ge=0,
        le=param_limits.MAX_REAL,
        description="mu: how strongly weights are pulled to the server's",
    )

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train with the proximal term on each client and average the weights."""
        return fedavg.fedavg_round(state, round, self.model(state, round.setup), proximal=self.proximal)
