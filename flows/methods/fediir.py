"""FedIIR: clients keep the last layer's gradient near its mean (Guo et al. 2023).

w <- init, g <- 0
repeat: each client k sends G_k, the gradient of its mean loss at w with respect to the last layer's weights
        g <- decay g + (1 - decay) sum_k n_k G_k / sum_k n_k
        each client k trains w_k from w for E local epochs on  loss(batch) + lambda ||grad_W loss(batch) - g||^2
        w <- sum_k n_k w_k / sum_k n_k
"""

import torch
from pydantic import Field

from flows.core.search_space import axes
from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.common.network_checks import require_linear_head
from flows.methods.round_context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.wrappers.domain_generalisation import GradientMatching
from models.server_state import ServerState
from silos import param_limits
from tasks.aggregate import aggregate
from tasks.gradients import head_gradient
from tasks.local_train import local_train


class FedIIR(fedavg.FedAvg):
    """`penalty` is the paper's lambda; `decay` is the weight of the last round's g."""

    takes_aggregation = False

    takes_members = False

    tuned = axes(penalty=(0.001, 0.01))

    penalty: float = Field(
        0.01, ge=0, le=param_limits.MAX_REAL, description="lambda: weight of the distance to the mean gradient"
    )
    decay: float = Field(
        0.95, ge=0, lt=1, description="decay of the mean gradient: the share of the last round's that stays"
    )

    def init(self, setup: TrainingSetup) -> ServerState:
        """Return FedAvg's initial state, with g = 0."""
        state = super().init(setup)
        weights = state.tensors["weights"]
        return state.with_tensors(target={n: torch.zeros_like(weights[n]) for n in self._network(setup).parts})

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Collect gradients, update g, train with the penalty and average the weights."""
        network, model = self._network(round.setup), self.model(state, round.setup)
        g, current = state.tensors["target"], Model(network, model.shared, clients=round.clients)
        gradients = round.map_clients(head_gradient, current, training=round.setup.training)
        mean = round.run_on_server(aggregate, gradients, g)
        g = {name: self.decay * g[name] + (1 - self.decay) * mean[name] for name in g}
        context = {name: t.expand(len(round.clients), *t.shape) for name, t in g.items()}
        updates = round.train(local_train, Model(network, model.shared, context=context, clients=round.clients))
        weights = round.run_on_server(aggregate, updates, model.shared)
        norm = sum(float((t.double() ** 2).sum()) for t in g.values()) ** 0.5
        report = RoundReport.from_updates(updates).merge(RoundReport({"gradient/norm": norm}))
        return state.with_tensors(weights=weights, target=g), report

    def _network(self, setup: TrainingSetup) -> GradientMatching:
        return GradientMatching(require_linear_head(setup), self.penalty)
