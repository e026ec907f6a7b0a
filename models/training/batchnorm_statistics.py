"""Measures the running statistics of normalisation layers again, without changing other weights."""

from dataclasses import replace

import torch
from torch import Tensor

from ..networks.grouped_layers import MOMENTUM
from ..networks.network import Network
from ..server_state import Weights
from .engine import Rows, Training, batches
from .execution_plan import resolve
from .optimizers import expand_clients


def normalisation_statistics(network: Network) -> tuple[str, ...]:
    """Return the names of the running statistics of the normalisation layers."""
    buffers = set(network.buffers)
    return tuple(name for name in network.normalising if name in buffers)


def measure_batchnorm(
    network: Network, weights: Weights, context: Weights, rows: Rows, training: Training, streams: Tensor
) -> dict[str, Tensor]:
    """Measure the running statistics of every client's rows under its weights, names to (clients, ...).

    Returns the row-weighted mean over batches of `training.batch` rows of the statistics that normalise each batch in
    training, dropout included, as torch.optim.swa_utils.update_bn measures them. A statistic that no batch determines
    stays unchanged: of a client without rows, or with a single value per channel.
    """
    plan, names = resolve(network, training.engine), normalisation_statistics(network)
    reset = {**weights, **{name: torch.zeros_like(weights[name]) for name in names}}
    sums = {name: torch.zeros_like(weights[name], dtype=torch.float64) for name in names}
    counts = {name: torch.zeros_like(total) for name, total in sums.items()}
    with torch.no_grad():
        for batch in batches(network, replace(training, epochs=1, rows="shuffled"), rows, streams) if names else ():
            _, new_buffers = plan.cost(reset, context, batch, training.objective)
            for name in names:
                count = expand_clients(batch.rows, new_buffers[name])
                share = count * ((count > 1) | (new_buffers[name] != 0))  # a single value per channel leaves it at 0
                sums[name] += share * new_buffers[name] / MOMENTUM
                counts[name] += share
    return {
        name: torch.where(counts[name] > 0, total / counts[name].clamp_min(1), weights[name]).to(weights[name].dtype)
        for name, total in sums.items()
    }
