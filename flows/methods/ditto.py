"""Ditto: FedAvg, and beside it every client's own weights, held near the shared ones (Li et al. 2021).

w is FedAvg's; every client k that takes part also trains its own v_k, which stays with it:
minimise  F_k(v_k) + lambda/2 ||v_k - w||^2  from its last v_k, with w as it was received; lambda = 0 is local_only
"""

from pydantic import Field

from flows.experiment.comparison.search_space import axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.prng import server_stream
from models.server_state import ClientStateRefs, ServerState
from silos import param_types
from tasks.aggregate import aggregate
from tasks.local_train import local_train


class Ditto(fedavg.FedAvg):
    """`personal_weight` is the paper's lambda; it tries .1, 1 and 2."""

    tested_model = "personal"
    tuned = axes(personal_weight=(0.1, 1.0))

    personal_weight: float = Field(
        1.0, ge=0, le=param_types.MAX_REAL, description="lambda: 0 is local_only, a large one fedavg"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """FedAvg's start; nobody has stored weights yet."""
        return super().init(setup).with_private("personal", {})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """FedAvg; then, on the same batches, every client's own weights."""
        setup, w = round.setup, state.tensors["weights"]
        updates = round.train(local_train, super().model(state, setup))
        start = setup.network.init(server_stream(setup.seed, 0, "init"))
        model = Model(
            setup.network, {}, ClientStateRefs("personal", state.private["personal"], start), clients=round.clients
        )
        kept = round.train(local_train, model, proximal=self.personal_weight, anchor=w)
        for update in kept:
            state = state.with_private("personal", update.private["personal"])
        report, shared = RoundReport.of(kept), RoundReport.of(updates).metrics["loss/train"]
        weights = round.run_on_server(aggregate, updates, w)
        return state.with_tensors(weights=weights), RoundReport(
            {**report.metrics, "loss/train_shared": shared}, report.client_metrics
        )

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Each client's own weights; one that has not trained has the shared ones."""
        personal = ClientStateRefs("personal", state.private["personal"], state.tensors["weights"])
        return Model(setup.network, shared={}, personal=personal, clients=setup.silos.clients)
