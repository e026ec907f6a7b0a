"""Half step: FedAvg whose server goes part of the way to the average of the clients' weights."""

from pydantic import Field

from flows.methods import fedavg
from flows.methods.base import Report
from flows.methods.context import Round
from flows.plugins import register_method
from models.state import State


@register_method("half_step")
class HalfStep(fedavg.FedAvg):
    """FedAvg is `share` 1."""

    share: float = Field(0.5, gt=0, le=1, description="how far the server goes")

    def one_round(self, state: State, round: Round) -> tuple[State, Report]:
        averaged, report = super().one_round(state, round)
        old, mean = state.tensors["weights"], averaged.tensors["weights"]
        return averaged.with_tensors(weights={name: w.lerp(mean[name], self.share) for name, w in old.items()}), report
