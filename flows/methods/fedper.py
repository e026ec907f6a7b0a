"""FedPer: each client keeps its own last layers, trained together with the shared ones (Arivazhagan et al. 2019).

w, v_k <- init, the same v_k for all k; v_k are the last dense layers, w all other weights
repeat: each client k trains (w_k, v_k) from (w, v_k) for E local epochs
        w <- sum_k n_k w_k / sum_k n_k;  v_k stays with the client
"""

from dataclasses import replace

from pydantic import Field

from flows.methods.common.network_checks import require_part, split_personal
from flows.methods.common.personal_weights import PersonalWeights
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.network_factory import kind_of
from models.server_state import ClientStateRefs, ServerState, Weights
from silos import param_limits
from silos.errors import UserError
from tasks.personal_layers import head_then_body


class FedPer(PersonalWeights):
    """With 0 personal layers it is FedAvg, and with all layers personal local_only."""

    section = "heads"

    layers: int = Field(1, ge=0, le=param_limits.LAYERS, description="how many of the last dense layers are personal")
    fit_epochs: int = Field(
        10, ge=1, le=param_limits.TIMES, description="epochs in which a client that never trained fits these layers"
    )

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """Return the model; clients that never trained fit the personal layers on their own training rows."""
        model, setup = self.model(state, round.setup), round.setup
        if not isinstance(model.personal, ClientStateRefs):
            return model
        refs = dict(model.personal.refs)
        new = setup.silos.select([client for client in setup.silos.clients if client not in refs])
        options = {**round.training_arguments, "head_epochs": self.fit_epochs, "body": False}
        for update in round.map_clients(head_then_body, model, new, **options):
            refs |= update.private[self.section]
        return replace(model, personal=replace(model.personal, refs=refs))

    def initial_weights(self, setup: TrainingSetup) -> tuple[dict[str, Weights], Weights]:
        weights = setup.initial_weights()
        kept = tuple(f"{prefix}dense{layer}." for prefix, layer in self._personal_layers(setup))
        return split_personal(weights, [name for name in weights if name.startswith(kept)])

    def _personal_layers(self, setup: TrainingSetup) -> list[tuple[str, int]]:
        """Return the prefix of the ensemble's member and the number of each personal layer."""
        found = []
        for member in setup.network.single_networks if self.layers else ():
            network = require_part(member.network, member.network.linear_head, "last dense layer to keep at clients")
            if self.layers > network.last + 1:
                raise UserError(
                    f"params.yaml: method.{type(self).__module__.rpartition('.')[2]}.layers: got {self.layers}, "
                    f"expected at most {network.last + 1}, the dense layers of this {kind_of(network)}. Lower it, or "
                    "add a layer to model.hidden."
                )
            found += [(member.prefix, network.last - layer) for layer in range(self.layers)]
        return found
