"""Ditto: FedAvg plus personal weights that stay near the shared ones (Li et al. 2021).

w is trained by FedAvg; each participating client k also trains personal weights v_k, which stay with the client:
v_k minimizes  F_k(v_k) + lambda/2 ||v_k - w||^2  from its last v_k, with w as received; lambda = 0 is local_only
"""

from pydantic import Field

from flows.core.search_space import axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.server_state import ClientStateRefs, ServerState
from silos import param_limits
from tasks.aggregate import aggregate
from tasks.local_train import local_train


class Ditto(fedavg.FedAvg):
    """`personal_weight` is the paper's lambda; the paper tries 0.1, 1 and 2."""

    tested_model = "personal"
    tuned = axes(personal_weight=(0.1, 1.0))

    personal_weight: float = Field(
        1.0,
        ge=0,
        le=param_limits.MAX_REAL,
        description="lambda: pull towards the global model; 0 is local_only, a large value fedavg",
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial state; no client has stored personal weights."""
        return super().init(setup).with_private("personal", {})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Run a round of FedAvg, then train the personal weights on the same batches."""
        setup, w = round.setup, state.tensors["weights"]
        updates = round.train(local_train, super().model(state, setup))
        start = setup.initial_weights()
        model = Model(
            setup.network, {}, ClientStateRefs("personal", state.private["personal"], start), clients=round.clients
        )
        personal_updates = round.train(local_train, model, proximal=self.personal_weight, anchor=w)
        for update in personal_updates:
            state = state.with_private("personal", update.private["personal"])
        report = RoundReport.from_updates(personal_updates)
        shared_loss = RoundReport.from_updates(updates).metrics["loss/train"]
        weights = round.run_on_server(aggregate, updates, w)
        return state.with_tensors(weights=weights), report.merge(RoundReport({"loss/train_shared": shared_loss}))

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the personal weights; a client that has not trained has the shared ones."""
        personal = ClientStateRefs("personal", state.private["personal"], state.tensors["weights"])
        return Model(setup.network, shared={}, personal=personal, clients=setup.silos.clients)
