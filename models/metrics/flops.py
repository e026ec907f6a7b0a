"""What one row costs in a network: numbers to keep, and multiplications with an addition each, counted and not estimated."""

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
    """Learned numbers, those that no gradient moves, and multiply-accumulates of one row.

    `both` is forward and backward. Counted are convolutions and products of matrices, as torch's counter has them (two
    FLOP each), on the network of one client: activations, normalisation, dropout and the loss are not, nor the gradient
    in the row itself, which training does not need.
    """

    parameters: int
    buffers: int
    forward: int
    both: int


def network_cost(
    network: Network, weights: Weights, context: Weights, x: Tensor, y: Tensor, objective: Objective
) -> NetworkCost:
    """Of one client's weights, which have no client axis, on one row: x (1, *shape), y (1,)."""
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
    """Bytes of the network's largest layer, its input among them, for so many rows at once in float32."""
    return _FLOAT_BYTES * network.max_width * rows


def training_floor(network: Network, weights: Weights, optimiser: Optimizer, rows: int) -> int:
    """Bytes that a step on so many rows needs at least: learned numbers, gradients, what the optimiser remembers of them.

    And the largest layer, of which training has more than one.
    """
    leaves = learned(network, weights)
    remembered = optimiser.init(broadcast_weights(leaves, 1), 1)
    return _FLOAT_BYTES * (2 * num_parameters(leaves) + num_parameters(remembered)) + largest_activation(network, rows)
