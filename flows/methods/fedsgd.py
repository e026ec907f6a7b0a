"""FedSGD: each client sends one gradient, the server takes a step (McMahan et al. 2017).

w <- init
repeat: each client k computes g_k = gradient of its mean training loss at w
        w <- one step of `training.optimiser` along sum_k n_k g_k / sum_k n_k
"""

import torch

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.round_context import RoundContext
from models.client_model import Model
from models.networks.network_factory import learned
from models.server_state import ServerState, Weights
from tasks.aggregate import aggregate
from tasks.gradients import full_gradient


def gradient_round(state: ServerState, round: RoundContext, model: Model) -> tuple[ServerState, RoundReport]:
    """Run a round of FedSGD; the server keeps the state of `training.optimiser` in the section `server`.

    Gradients are averaged by rows. Tensors without a gradient, such as running statistics, are averaged as in FedAvg.
    """
    setup, current = round.setup, state.tensors["weights"]
    gradients = round.map_clients(full_gradient, model, **round.training_arguments)
    for client in round.clients:
        round.tally.add_steps(client, 1)
    trainable = {name: w[None] for name, w in learned(model.network, current).items()}
    zeros = {name: torch.zeros_like(w) if name in trainable else w for name, w in current.items()}
    mean = round.run_on_server(aggregate, gradients, zeros)
    optimiser = setup.training.optimiser
    optimizer_state: Weights = state.tensors.get("server") or optimiser.init(trainable, 1)
    stepped, server = optimiser.step(trainable, {name: mean[name][None] for name in trainable}, optimizer_state)
    sections: dict[str, Weights] = {"weights": {**mean, **{name: w[0] for name, w in stepped.items()}}}
    if server:
        sections["server"] = server
    return state.with_tensors(**sections), RoundReport.from_updates(gradients)


class FedSGD(fedavg.FedAvg):
    """FedSGD has no options, and ignores local epochs and the batch size; the server keeps the optimizer's state."""

    takes_aggregation = False

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """Collect one gradient from each client and take one step."""
        return gradient_round(state, round, self.model(state, round.setup))
