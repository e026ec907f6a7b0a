"""FedBN: FedAvg in which each client keeps its own batch normalization (Li et al. 2021).

w, v_k <- init, the same v_k for all k; v_k are the personal weights of the normalization layers, w all other weights
repeat: each client k trains (w_k, v_k) from (w, v_k) for E local epochs
        w <- sum_k n_k w_k / sum_k n_k;  v_k stays with the client
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from flows.methods.common.network_checks import split_personal
from flows.methods.common.personal_weights import PersonalWeights
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.server_state import ClientStateRefs, ServerState, Weights
from models.training.engine import normalisation_statistics
from tasks.personal_layers import local_batchnorm_statistics


class FedBN(PersonalWeights):
    """`keep` all of the normalization `layers`, or their running `statistics`; then their weights and biases are averaged.

    A network without batch normalization is trained by FedAvg.
    """

    section = "norms"

    keep: Literal["layers", "statistics"] = Field(
        "layers", description="what stays private of normalisation layers: all, or running statistics"
    )

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """Return the model, with statistics of their own training rows for clients that never trained.

        Their scales are the initial ones.
        """
        model, setup = self.model(state, round.setup), round.setup
        if not isinstance(model.personal, ClientStateRefs):
            return model
        refs = dict(model.personal.refs)
        missing = setup.silos.select([client for client in setup.silos.clients if client not in refs])
        for message in round.map_clients(local_batchnorm_statistics, model, missing, **round.training_arguments):
            refs |= message.refs
        return replace(model, personal=replace(model.personal, refs=refs))

    def initial_weights(self, setup: TrainingSetup) -> tuple[dict[str, Weights], Weights]:
        names = setup.network.normalising if self.keep == "layers" else normalisation_statistics(setup.network)
        return split_personal(setup.initial_weights(), names)
