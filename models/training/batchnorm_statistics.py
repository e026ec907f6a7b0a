"""What normalising layers see of rows: their running statistics measured anew, while nothing else of the weights moves."""

from dataclasses import replace

import torch
from torch import Tensor

from ..networks.network import Network
from ..networks.vision.grouped_layers import MOMENTUM
from ..server_state import Weights
from .engine import Rows, Training, batches
from .execution_plan import resolve
from .optimizers import along


def normalisation_statistics(network: Network) -> tuple[str, ...]:
    """The names of the running statistics of its normalising layers."""
    buffers = set(network.buffers)
    return tuple(name for name in network.normalising if name in buffers)


def measure_batchnorm(
    network: Network, weights: Weights, context: Weights, rows: Rows, training: Training, streams: Tensor
) -> dict[str, Tensor]:
    """The running statistics of every client's rows under its weights, names to (clients, ...).

    The mean over batches of `training.batch`, by rows, of what each is normalised by in training, dropout included, as
    torch.optim.swa_utils.update_bn measures them. A statistic that no batch knows, of a client without rows or of a single
    number a channel, stays as it is.
    """
    plan, names = resolve(network, training.engine), normalisation_statistics(network)
    nothing = {**weights, **{name: torch.zeros_like(weights[name]) for name in names}}
    sums = {name: torch.zeros_like(weights[name], dtype=torch.float64) for name in names}
    seen = {name: torch.zeros_like(total) for name, total in sums.items()}
    with torch.no_grad():
        for batch in batches(network, replace(training, epochs=1, rows="shuffled"), rows, streams) if names else ():
            _, moved = plan.cost(nothing, context, batch, training.objective)
            for name in names:
                count = along(batch.rows, moved[name])
                share = count * ((count > 1) | (moved[name] != 0))  # of one number it has not moved
                sums[name] += share * moved[name] / MOMENTUM
                seen[name] += share
    return {
        name: torch.where(seen[name] > 0, total / seen[name].clamp_min(1), weights[name]).to(weights[name].dtype)
        for name, total in sums.items()
    }
