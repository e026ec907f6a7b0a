"""FedRep: one shared representation, a head of its own for each client (Collins et al. 2021, algorithm 1).

every client: its head steps for `head_epochs` epochs, the representation fixed; then the representation, the head fixed
the server:   averages representations, by rows; heads stay with their clients"""

from dataclasses import replace

from pydantic import Field

from flows.methods.base import Method, RoundReport
from flows.methods.common.network_checks import require_linear_head, split_personal
from flows.methods.context import RoundContext, TrainingSetup
from flows.plugins import register_method
from models.client_model import Model
from models.prng import fold_in, server_stream
from models.server_state import ClientStateRefs, ServerState
from models.training.engine import Training, train
from silos.cohort import Cohort
from tasks.aggregate import aggregate
from tasks.execution.load_client_data import load_stacks, load_streams
from tasks.execution.task_types import step
from tasks.local_train import build_update


@step
def head_then_body(cohort: Cohort, model: Model, training: Training, private, seed, round, head_epochs, device="cpu"):
    updates, heads = [], replace(training, epochs=head_epochs)
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, "local_train", device)
        head = [name for name in weights if name not in model.shared]
        weights = train(model.network, weights, context, rows, heads, fold_in(streams, 1), only=head).weights
        trained = train(model.network, weights, context, rows, training, streams, only=model.shared)
        updates.append(build_update(stack, model, trained, rows, private))
    return updates


@register_method("fedrep")
class FedRep(Method):
    tested_model, takes_members = "personal", False
    head_epochs: int = Field(10, ge=1)

    def init(self, setup: TrainingSetup) -> ServerState:
        return ServerState(split_personal(*self._drawn(setup))[0]).with_private("heads", {})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        epochs = {"head_epochs": self.head_epochs, "epochs": self.head_epochs + round.setup.training.epochs}
        updates = round.train(head_then_body, self.model(state, round.setup), **epochs)
        for update in updates:
            state = state.with_private("heads", update.private["heads"])
        weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), RoundReport.from_updates(updates)

    def model(self, state: ServerState, setup: TrainingSetup) -> Model:
        heads = ClientStateRefs("heads", state.private["heads"], split_personal(*self._drawn(setup))[1])
        return Model(setup.network, state.tensors["weights"], heads, clients=setup.silos.clients)

    def _drawn(self, setup: TrainingSetup) -> tuple[dict, list[str]]:
        names = [f"dense{require_linear_head(setup).last}.{part}" for part in ("weight", "bias")]
        return setup.network.init(server_stream(setup.seed, 0, "init")), names
