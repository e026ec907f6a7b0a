"""FedSGD: every client sends one gradient over all of its rows, the server steps (McMahan et al. 2017).

w <- init
repeat: every client k computes g_k = gradient of its mean training loss at w
        w <- a step of `training.optimiser` along sum_k n_k g_k / sum_k n_k

One gradient of every client over all of its rows, one step of the server: FedSGD's round (McMahan et al. 2017).
"""

import torch

from flows.methods import fedavg
from flows.methods.base import RoundReport
from flows.methods.context import RoundContext
from models.client_model import Model
from models.networks.network_factory import learned
from models.server_state import ServerState, Weights
from tasks.aggregate import aggregate
from tasks.gradients import full_gradient


def gradient_round(state: ServerState, round: RoundContext, model: Model) -> tuple[ServerState, RoundReport]:
    """The mean gradient by rows goes into `training.optimiser`, whose state the server keeps in the section `server`.

    What no gradient moves, such as running statistics, is averaged as in FedAvg.
    """
    setup, now = round.setup, state.tensors["weights"]
    sent = round.map_clients(full_gradient, model, training=setup.training, seed=setup.seed, round=round.number)
    for client in round.clients:
        round.tally.add_steps(client, 1)
    learns = {name: w[None] for name, w in learned(model.network, now).items()}
    nothing = {name: torch.zeros_like(w) if name in learns else w for name, w in now.items()}
    mean = round.run_on_server(aggregate, sent, nothing)
    optimiser = setup.training.optimiser
    kept: Weights = state.tensors.get("server") or optimiser.init(learns, 1)
    after, server = optimiser.step(learns, {name: mean[name][None] for name in learns}, kept)
    sections: dict[str, Weights] = {"weights": {**mean, **{name: w[0] for name, w in after.items()}}}
    if server:
        sections["server"] = server
    return state.with_tensors(**sections), RoundReport.of(sent)


class FedSGD(fedavg.FedAvg):
    """No options of its own; the server keeps the optimiser's state from round to round. Epochs and batch do not count."""

    def run_round(self, state: ServerState, round: RoundContext) -> tuple[ServerState, RoundReport]:
        """A gradient from everywhere, one step."""
        return gradient_round(state, round, self.model(state, round.setup))
