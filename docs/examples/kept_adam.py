"""FedAvg whose clients keep their optimiser's state from one round to the next; nobody else sees it.

every client: local epochs from the shared weights, Adam's moments and its count of steps from where it left them
"""

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup
from flows.plugins import register_method
from models.networks.network_factory import learned
from models.server_state import ClientStateRefs, ServerState
from models.training.engine import broadcast_weights
from tasks.aggregate import aggregate
from tasks.local_train import local_train


@register_method("kept_adam")
class KeptAdam(fedavg.FedAvg):
    """With SGD without momentum, which has no state, it is FedAvg."""

    def init(self, setup: TrainingSetup) -> ServerState:
        return super().init(setup).with_private("optimiser", {})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        w, setup = state.tensors["weights"], round.setup
        fresh = setup.training.optimiser.init(learned(setup.network, broadcast_weights(w, 1)), 1)
        kept = ClientStateRefs("optimiser", state.private["optimiser"], {name: t[0] for name, t in fresh.items()})
        updates = round.train(local_train, self.model(state, setup), optimiser=kept)
        for update in updates:
            state = state.with_private("optimiser", update.private["optimiser"])
        return state.with_tensors(weights=round.run_on_server(aggregate, updates, w)), RoundReport.from_updates(updates)
