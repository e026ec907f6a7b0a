"""Half step: FedAvg whose server goes part of the way to the average of the clients' weights."""

from pydantic import Field

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext
from flows.plugins import register_method
from models.server_state import ServerState


@register_method("half_step")
class HalfStep(fedavg.FedAvg):
    """FedAvg is `share` 1."""

    share: float = Field(0.5, gt=0, le=1, description="how far the server goes")

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        averaged, report = super().run_round(state, round)
        old, mean = state.tensors["weights"], averaged.tensors["weights"]
        return averaged.with_tensors(weights={name: w.lerp(mean[name], self.share) for name, w in old.items()}), report
