"""FedOpt: the server steps with an adaptive optimizer along the mean change of the clients (Reddi et al. 2021).

w <- init
repeat: each client k trains w_k from w for E local epochs;  d <- sum_k n_k (w_k - w) / sum_k n_k
        m <- beta1 m + (1 - beta1) d
        adagrad: v <- v + d^2;  adam: v <- beta2 v + (1 - beta2) d^2;  yogi: v <- v - (1 - beta2) d^2 sign(v - d^2)
        w <- w + rate m / (sqrt(v) + tau);  sgd: w <- w + rate d
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from flows.core.search_space import axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup
from models.networks.network_factory import learned
from models.server_state import ServerState
from silos import param_limits
from tasks.aggregate import aggregate
from tasks.local_train import local_train


class FedOpt(fedavg.FedAvg):
    """`sgd` with rate 1 is FedAvg. Tensors that are not learned, such as running statistics, are averaged."""

    private_training = "noise"
    tuned = axes(rate=(0.01, 0.1))

    server: Literal["adam", "yogi", "adagrad", "sgd"] = Field("adam", description="the server's optimizer")
    rate: float = Field(0.03, gt=0, le=param_limits.MAX_REAL, description="the server's learning rate")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the mean change; sgd does not use it")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the mean square; adam and yogi use it")
    tau: float = Field(
        0.001, gt=0, le=param_limits.MAX_REAL, description="added to the root of the mean square: adaptivity"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial state; the mean change is 0 and the mean square tau^2, the least that the paper allows."""
        state = super().init(setup)
        if self.server == "sgd":
            return state
        weights = learned(setup.network, state.tensors["weights"])
        return state.with_tensors(
            mean={name: torch.zeros_like(w) for name, w in weights.items()},
            square={name: torch.full_like(w, self.tau**2) for name, w in weights.items()},
        )

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Train on each client as in FedAvg, and step along the mean change of the weights."""
        w = state.tensors["weights"]
        updates = round.train(local_train, self.model(state, round.setup))
        average, report = round.run_on_server(aggregate, updates, w), RoundReport.from_updates(updates)
        if not updates:
            return state, report
        change = {name: average[name] - w[name] for name in learned(round.setup.network, w)}
        if self.server == "sgd":
            moved = {name: w[name] + self.rate * d for name, d in change.items()} if self.rate != 1 else {}
            return state.with_tensors(weights={**average, **moved}), report
        mean, square = state.tensors["mean"], state.tensors["square"]
        mean = {name: self.beta1 * mean[name] + (1 - self.beta1) * d for name, d in change.items()}
        square = {name: self._mean_square(square[name], d * d) for name, d in change.items()}
        moved = {name: w[name] + self.rate * mean[name] / (square[name].sqrt() + self.tau) for name in change}
        return state.with_tensors(weights={**average, **moved}, mean=mean, square=square), report

    def _mean_square(self, before: Tensor, squared: Tensor) -> Tensor:
        if self.server == "adagrad":
            return before + squared
        if self.server == "yogi":
            return before - (1 - self.beta2) * squared * torch.sign(before - squared)
        return self.beta2 * before + (1 - self.beta2) * squared
