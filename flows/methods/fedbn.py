"""FedBN: FedAvg in which every client keeps its batch normalisation to itself (Li et al. 2021).

w, v_k <- init, v being what is kept of the normalising layers and w all other weights
repeat: every client k trains (w_k, v_k) from (w, v_k) for E local epochs
        w <- sum_k n_k w_k / sum_k n_k;  v_k stays with the client
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from flows.methods.base import Method, RoundReport
from flows.methods.common import local_batchnorm
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.server_state import ServerState
from models.training.batchnorm_statistics import normalisation_statistics
from tasks.aggregate import aggregate
from tasks.local_train import local_train


class FedBN(Method):
    """`keep` all of the normalising `layers`, or their running `statistics`, whose weights and biases are then averaged.

    A network without batch normalisation is FedAvg's.
    """

    tested_model = "personal"

    keep: Literal["layers", "statistics"] = Field(
        "layers", description="what stays of normalising layers: all of it, or running statistics"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """FedAvg's draw; nobody has stored normalising layers yet."""
        return local_batchnorm.start(setup, self._own(setup))

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train everywhere, average what is shared, keep the rest."""
        updates = round.train(local_train, self.model(state, round.setup))
        state = local_batchnorm.with_kept(state, updates, self._own(round.setup))
        weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), RoundReport.of(updates)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """The same weights for everybody, but for what each client keeps."""
        return local_batchnorm.model(state, setup, self._own(setup))

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """A client that never trained has the start's scales, and measures the statistics of its own training rows."""
        return local_batchnorm.measured_where_missing(self.model(state, round.setup), round)

    def _own(self, setup: TrainingSetup) -> Sequence[str]:
        """The names of what clients keep."""
        return setup.network.normalising if self.keep == "layers" else normalisation_statistics(setup.network)
