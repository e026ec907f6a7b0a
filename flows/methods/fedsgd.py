"""FedSGD: every client sends one gradient over all of its rows, the server steps (McMahan et al. 2017).

w <- init
repeat: every client k computes g_k = gradient of its mean training loss at w
        w <- a step of `training.optimiser` along sum_k n_k g_k / sum_k n_k
"""

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.common.gradient_round import gradient_round
from flows.methods.context import RoundContext
from models.server_state import ServerState


class FedSGD(fedavg.FedAvg):
    """No options of its own; the server keeps the optimiser's state from round to round. Epochs and batch do not count."""

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """A gradient from everywhere, one step."""
        return gradient_round(state, round, self.model(state, round.setup))
