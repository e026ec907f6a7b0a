"""FedBABU: only the body is trained and averaged, the head stays as drawn (Oh, Kim and Yun 2022).

every client: its body steps for the local epochs, the last dense layer fixed
the server:   averages bodies, by rows"""

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.common.network_checks import require_linear_head
from flows.methods.round_context import RoundContext, TrainingSetup
from flows.plugins import register_method
from models.client_model import Model
from models.server_state import ServerState
from models.training.engine import Training, train
from silos.cohort import Cohort
from tasks.aggregate import aggregate
from tasks.execution.load_client_data import load_stacks, load_streams
from tasks.execution.steps import step
from tasks.local_train import build_update


@step
def train_body(cohort: Cohort, model: Model, training: Training, private, seed, round, head, device="cpu"):
    updates = []
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, "local_train", device)
        body = [name for name in weights if name not in head]
        trained = train(model.network, weights, context, rows, training, streams, only=body)
        updates.append(build_update(stack, model, trained, rows, private))
    return updates


@register_method("fedbabu")
class FedBABU(fedavg.FedAvg):
    takes_members = False

    def init(self, setup: TrainingSetup) -> ServerState:
        require_linear_head(setup)
        return super().init(setup)

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        w = state.tensors["weights"]
        last = require_linear_head(round.setup).last
        head = tuple(f"dense{last}.{part}" for part in ("weight", "bias"))
        updates = round.train(train_body, self.model(state, round.setup), head=head)
        average = round.run_on_server(aggregate, updates, w)
        weights = {name: w[name] if name in head else mean for name, mean in average.items()}
        return state.with_tensors(weights=weights), RoundReport.from_updates(updates)
