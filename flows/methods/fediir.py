"""FedIIR: clients hold the last layer's gradient near the mean over all of them (Guo et al. 2023).

w <- init, g <- 0
repeat: every client k sends G_k, the gradient at w of its mean loss in the last layer's weights
        g <- decay g + (1 - decay) sum_k n_k G_k / sum_k n_k
        every client k trains w_k from w for E local epochs on  loss(batch) + lambda ||grad_W loss(batch) - g||^2
        w <- sum_k n_k w_k / sum_k n_k
"""

import torch
from pydantic import Field

from flows.experiment.comparison.search_space import axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.common.network_checks import ending_in_a_layer
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.wrappers.fediir_network import GradientMatching
from models.server_state import ServerState
from silos import param_types
from tasks.aggregate import aggregate
from tasks.gradients import head_gradient
from tasks.local_train import local_train


class FedIIR(fedavg.FedAvg):
    """`penalty` is the paper's lambda; `decay` keeps that much of the last round's g."""

    takes_members = False

    tuned = axes(penalty=(0.001, 0.01))

    penalty: float = Field(
        0.01, ge=0, le=param_types.MAX_REAL, description="lambda: weight of the distance to the mean gradient"
    )
    decay: float = Field(0.95, ge=0, lt=1, description="how much of the last round's mean gradient is kept")

    def init(self, setup: TrainingSetup) -> ServerState:
        """FedAvg's start, and g = 0."""
        state = super().init(setup)
        weights = state.tensors["weights"]
        return state.with_tensors(target={n: torch.zeros_like(weights[n]) for n in self._network(setup).parts})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Ask for gradients, move g, train towards it, average."""
        network, model = self._network(round.setup), self.model(state, round.setup)
        g, now = state.tensors["target"], Model(network, model.shared, clients=round.clients)
        sent = round.map_clients(head_gradient, now, training=round.setup.training)
        mean = round.run_on_server(aggregate, sent, g)
        g = {name: self.decay * g[name] + (1 - self.decay) * mean[name] for name in g}
        everybodys = {name: t.expand(len(round.clients), *t.shape) for name, t in g.items()}
        updates = round.train(local_train, Model(network, model.shared, context=everybodys, clients=round.clients))
        weights = round.run_on_server(aggregate, updates, model.shared)
        report, size = RoundReport.of(updates), sum(float((t.double() ** 2).sum()) for t in g.values()) ** 0.5
        return state.with_tensors(weights=weights, target=g), RoundReport(
            {**report.metrics, "gradient/norm": size}, report.client_metrics
        )

    def _network(self, setup: TrainingSetup) -> GradientMatching:
        return GradientMatching(ending_in_a_layer(setup), self.penalty)
