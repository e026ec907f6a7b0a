"""FedDyn: a linear and a quadratic term let every client's optimum meet the server's (Acar et al. 2021).

w <- init; h <- 0; g_k <- 0
repeat: each client k minimizes  F_k(w_k) - <g_k, w_k> + alpha/2 ||w_k - w||^2  from w for E local epochs
        g_k <- g_k - alpha (w_k - w)
        h <- h - alpha/m sum_k (w_k - w), over all m clients;  w <- mean_k w_k - h / alpha
alpha = 0 is FedAvg with clients of equal weight
"""

from pydantic import Field

from flows.core.search_space import axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup
from models.networks.network_factory import learned
from models.server_state import ClientStateRefs, ServerState
from silos import param_limits
from tasks.aggregate import aggregate
from tasks.gradients import dynamic_train, zero_terms

SECTION = "duals"


class FedDyn(fedavg.FedAvg):
    """`alpha` is the paper's, with the grid 0.001, 0.01, 0.1. All clients count equally, whatever their rows."""

    takes_aggregation = False

    tuned = axes(alpha=(0.01, 0.1))

    alpha: float = Field(
        0.01, ge=0, le=param_limits.MAX_REAL, description="how strongly clients are held near the server's weights"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial state with h / alpha = 0 and zero duals."""
        state = super().init(setup)
        return state.with_tensors(shift=zero_terms(super().model(state, setup))).with_private(SECTION, {})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train with the dynamic regulariser, average the weights and correct the mean by the shift h / alpha."""
        model, w, shift = self.model(state, round.setup), state.tensors["weights"], state.tensors["shift"]
        duals = ClientStateRefs(SECTION, state.private[SECTION], zero_terms(model))
        updates = round.train(dynamic_train, model, duals=duals, alpha=self.alpha)
        for update in updates:
            state = state.with_private(SECTION, update.private[SECTION])
        mean = round.run_on_server(aggregate, updates, w)
        if self.alpha and updates:
            share = len(round.clients) / len(round.setup.silos.federated().clients)
            trained = learned(round.setup.network, w)
            shift = {name: shift[name] - share * (mean[name] - w[name]) for name in trained}
            mean = {**mean, **{name: mean[name] - shift[name] for name in trained}}
        return state.with_tensors(weights=mean, shift=shift), RoundReport.from_updates(updates)
