"""Fine-tuning: FedAvg, then each client trains the shared model on its own rows (Wang et al. 2019; Cheng et al. 2021).

w is trained by FedAvg; the tested model of client k is w_k, trained from w on its own rows for `epochs` epochs
"""

from dataclasses import replace

from pydantic import Field

from flows.core.search_space import axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup, without_noise
from models.client_model import Model
from models.server_state import ClientStateRefs, ServerState
from tasks.local_train import local_train

SECTION = "finetuned"


class FineTune(fedavg.FedAvg):
    """0 epochs is FedAvg. Fresh and unseen clients fine-tune on their training rows, as a new silo would."""

    private_training = "kept"
    pays_as = "fedavg"
    tested_model = "personal"
    tuned = axes(epochs=(1, 5))

    epochs: int = Field(1, ge=0, le=1000, description="epochs on a client's own rows, after the shared training")

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial state; no client has stored weights of its own."""
        return super().init(setup).with_private(SECTION, {})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Run a round of FedAvg."""
        return fedavg.fedavg_round(state, round, super().model(state, round.setup))

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        """Return the shared weights as each client's own, before fine-tuning."""
        start = ClientStateRefs(SECTION, {}, state.tensors["weights"])
        return Model(setup.network, {}, start, clients=setup.silos.clients)

    def scored_model(self, state: ServerState, round: RoundContext) -> Model:
        """Fine-tune the shared weights at every client; the fine-tuned weights stay there."""
        model = self.model(state, round.setup)
        if not self.epochs:
            return model
        training = replace(without_noise(round.setup.training), epochs=self.epochs)
        updates = round.map_clients(local_train, model, training=training, seed=round.setup.seed, round=round.number)
        refs = {client: ref for update in updates for client, ref in update.private[SECTION].items()}
        return replace(model, personal=ClientStateRefs(SECTION, refs, state.tensors["weights"]))
