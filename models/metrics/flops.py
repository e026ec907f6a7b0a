"""The cost of one row in a network: parameters, and multiply-accumulates, counted and not estimated."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..networks.network import Network, learned
from ..networks.network_factory import num_parameters
from ..server_state import Weights
from ..training.engine import broadcast_weights
from ..training.objectives import Objective
from ..training.optimizers import Optimizer

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class NetworkCost:
    """Trainable parameters, buffers that no gradient changes, and multiply-accumulates of one row.

    `both` is forward and backward. torch's counter counts convolutions and matrix products (two FLOP each) of one
    client's network. Activations, normalisation, dropout and the loss are not counted, nor the gradient of the row
    itself, which training does not need.
    """

    parameters: int
    buffers: int
    forward: int
    both: int


def network_cost(
    network: Network, weights: Weights, context: Weights, x: Tensor, y: Tensor, objective: Objective
) -> NetworkCost:
    """Count the cost of one client's network for one row.

    Args:
        network: The network.
        weights: The client's weights, without a client axis.
        context: The client's context, without a client axis; it may be empty.
        x: (1, *shape).
        y: (1,).
        objective: The loss, from which the backward pass starts.
    """
    leaves = {name: w.clone().requires_grad_() for name, w in learned(network, weights).items()}
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        network.apply(weights, context, x, None)
    with FlopCounterMode(display=False) as both:
        loss = objective(network.apply({**weights, **leaves}, context, x, None), y).sum()
        torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    count = num_parameters(leaves)
    return NetworkCost(
        count, num_parameters(weights) - count, forward.get_total_flops() // 2, both.get_total_flops() // 2
    )


def largest_activation(network: Network, rows: int) -> int:
    """Return the bytes of the network's largest layer, its input included, for `rows` rows at once in float32."""
    return _FLOAT_BYTES * network.max_width * rows


def training_floor(network: Network, weights: Weights, optimiser: Optimizer, rows: int) -> int:
    """Return the least bytes of a training step on `rows` rows.

    They are parameters, gradients, optimizer state and the largest layer; training holds several layers.

    Args:
        network: The network.
        weights: The client's weights, without a client axis.
        optimiser: The optimiser, for the size of its state.
        rows: The rows of a batch.
    """
    leaves = learned(network, weights)
    state = optimiser.init(broadcast_weights(leaves, 1), 1)
    return _FLOAT_BYTES * (2 * num_parameters(leaves) + num_parameters(state)) + largest_activation(network, rows)
