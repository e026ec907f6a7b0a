"""FedRep: one shared representation, and a head of its own for each client (Collins et al. 2021, algorithm 1).

w, v_k <- init, the same v_k for all k; v_k are the last dense layers, w all other weights
repeat: each client k trains v_k for `head_epochs` epochs with w fixed, then w_k from w for E local epochs with v_k fixed
        w <- sum_k n_k w_k / sum_k n_k;  v_k stays with the client
"""

from pydantic import Field

from flows.core.search_space import axes
from flows.methods import fedper
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup
from models.networks.network_factory import kind_of
from models.server_state import ServerState
from silos import param_limits
from silos.errors import UserError
from tasks.aggregate import aggregate
from tasks.personal_layers import head_then_body


class FedRep(fedper.FedPer):
    """`head_epochs` is the paper's tau; its experiments take 10, and 1 or 5 epochs of the representation."""

    tuned = axes(head_epochs=(1, 10))

    layers: int = Field(1, ge=1, le=param_limits.LAYERS, description="how many of the last dense layers are personal")
    head_epochs: int = Field(
        10, ge=1, le=param_limits.TIMES, description="epochs of the personal layers in a round, before training.epochs"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedPer's initial state.

        Raises:
            UserError: If no layer is left to share.
        """
        state = super().init(setup)
        if not state.tensors["weights"]:
            raise UserError(
                f"params.yaml: method.fedrep.layers: got {self.layers}, all layers of this {kind_of(setup.network)}, "
                "expected one layer less at least, since fedrep shares the others. Lower it, or add a layer to "
                "model.hidden."
            )
        return state

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train the head, then the representation, on each client, and average the representations."""
        model, epochs = self.model(state, round.setup), self.head_epochs + round.setup.training.epochs
        updates = round.train(head_then_body, model, epochs=epochs, head_epochs=self.head_epochs)
        for update in updates:
            state = state.with_private(self.section, update.private[self.section])
        weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), RoundReport.from_updates(updates)
