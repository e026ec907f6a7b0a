"""FedAvgM: FedAvg whose server steps with momentum (Hsu, Qi and Brown 2019).

v <- momentum v + (w - average of the clients' weights);  w <- w - learning_rate v
what is not learned, such as running statistics, is the average
"""

from pydantic import Field

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup
from flows.plugins import register_method
from models.networks.network_factory import learned
from models.server_state import ServerState
from tasks.aggregate import aggregate
from tasks.local_train import local_train


@register_method("fedavgm")
class FedAvgM(fedavg.FedAvg):
    """Momentum 0 with learning rate 1 is FedAvg."""

    momentum: float = Field(0.9, ge=0, lt=1)
    learning_rate: float = Field(1.0, gt=0)

    def init(self, setup: TrainingSetup) -> ServerState:
        state = super().init(setup)
        learns = learned(setup.network, state.tensors["weights"])
        return state.with_tensors(velocity={name: w * 0 for name, w in learns.items()})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        w, v = state.tensors["weights"], state.tensors["velocity"]
        updates = round.train(local_train, self.model(state, round.setup))
        average = round.run_on_server(aggregate, updates, w)
        v = {name: self.momentum * v[name] + w[name] - average[name] for name in v}
        stepped = {name: w[name] - self.learning_rate * v[name] for name in v}
        return state.with_tensors(weights={**average, **stepped}, velocity=v), RoundReport.from_updates(updates)
