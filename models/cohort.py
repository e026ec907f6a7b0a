"""The engine: one client's function, run for a whole stack of clients as one batched program.

`batched` maps the function of one client with `torch.func.vmap`; `sequential` runs the same text for one client after
another and is the reference. A method writes for one client and never sees which. The gradient of the summed loss is each
client's own gradient, since no client's loss holds another's weights; so autograd runs once for the stack, and
`torch.func.grad`, whose first call imports a compiler for 1.6 s, is not needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from models.networks import Network
from models.objectives import Objective, measures
from models.optimisers import Optimiser, freeze
from models.state import Weights
from models.streams import fold, shuffle

_ROWS_AT_ONCE = 16384  # of a stack in evaluation; activations of more leave the cache, and then the memory

Kind = Literal["batched", "sequential"]


@dataclass(frozen=True)
class Training:
    """How a client trains in one round; the optimiser's state starts fresh."""

    objective: Objective
    optimiser: Optimiser
    epochs: int
    batch: int
    engine: Kind = "batched"


class Rows(NamedTuple):
    """Rows of a stack, padded: x (clients, width, *shape) float32, y (clients, width) int64, or float32 of a regression;
    counts (clients,) int64."""

    x: Tensor
    y: Tensor
    counts: Tensor


def train(
    network: Network,
    weights: Weights,
    context: Weights,
    rows: Rows,
    training: Training,
    streams: Tensor,
    proximal: float = 0.0,
    anchor: Weights | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Local epochs of mini-batch training for every client of a stack.

    weights, context: names to (clients, ...); streams: (clients,) int64. `proximal` adds proximal/2 ||w - anchor||^2
    (FedProx, Li et al. 2020), `anchor` having a client axis too and being the start if not given.
    Returns trained weights (clients, ...) and the mean training loss over all rows seen (clients,).
    """
    anchor = weights if anchor is None else anchor

    def loss_of_one(
        weights: Weights,
        context: Weights,
        anchor: Weights,
        x: Tensor,
        y: Tensor,
        used: Tensor,
        stream: Tensor,
    ) -> tuple[Tensor, Tensor]:
        per_row = training.objective(network.apply(weights, context, x, stream), y)
        loss = (per_row * used).sum() / used.sum().clamp_min(1)
        total = loss
        if proximal:
            total = loss + proximal / 2 * sum(((w - anchor[n]) ** 2).sum() for n, w in weights.items())
        return total, loss

    def run(mapped: Callable, weights: Weights, context: Weights, anchor: Weights, rows: Rows, streams: Tensor) -> Any:
        """The whole local training of some clients; `mapped` carries a function of one client over them."""
        clients, width = rows.y.shape
        batch = min(training.batch, width)
        steps = -(-int(rows.counts.max()) // batch)
        state = training.optimiser.init(weights, clients)
        seen = torch.zeros(clients, device=rows.x.device)
        every = torch.arange(clients, device=rows.x.device)[:, None]
        for epoch in range(training.epochs):
            epoch_streams = fold(streams, epoch)
            order = torch.func.vmap(lambda s, n: shuffle(s, width, n))(epoch_streams, rows.counts)
            for step in range(steps):
                index = order[:, step * batch : (step + 1) * batch]
                used = torch.arange(step * batch, step * batch + index.shape[1]) < rows.counts.cpu()[:, None]
                used = used.to(rows.x.device)
                weights = {name: w.detach().requires_grad_() for name, w in weights.items()}
                total, loss = mapped(loss_of_one)(
                    weights,
                    context,
                    anchor,
                    rows.x[every, index],
                    rows.y[every, index],
                    used.to(rows.x.dtype),
                    fold(epoch_streams, step),
                )
                grads = dict(zip(weights, torch.autograd.grad(total.sum(), list(weights.values())), strict=True))
                weights = {name: w.detach() for name, w in weights.items()}
                seen += loss.detach() * used.sum(1)
                new, new_state = training.optimiser.step(weights, grads, state)
                active = used[:, 0]
                if bool(active.all()):
                    weights, state = new, new_state
                else:
                    weights, state = freeze(active, new, weights), freeze(active, new_state, state)
        return dict(weights), seen / (rows.counts * training.epochs).clamp_min(1)

    if training.engine == "batched":
        return run(torch.func.vmap, weights, context, anchor, rows, streams)
    return _one_after_another(
        lambda *stack: run(_alone, *stack), rows.y.shape[0], weights, context, anchor, rows, streams
    )


def outcomes(
    network: Network, weights: Weights, context: Weights, rows: Rows, objective: Objective
) -> dict[str, Tensor]:
    """What the model of each client did on its rows, dropout off: the names of `measures` to (clients, width).

    weights and context: (clients, ...). Padding is 0.
    """

    def of_one(weights: Weights, context: Weights, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return measures(objective, network.apply(weights, context, x, None), y)

    clients, width = rows.y.shape
    chunk = max(256, _ROWS_AT_ONCE // clients)
    with torch.no_grad():
        parts = [
            torch.func.vmap(of_one)(weights, context, rows.x[:, at : at + chunk], rows.y[:, at : at + chunk])
            for at in range(0, width, chunk)
        ]
    used = torch.arange(rows.y.shape[1], device=rows.y.device) < rows.counts[:, None]
    return {name: torch.cat([part[name] for part in parts], 1).masked_fill(~used, 0) for name in parts[0]}


def stacked(weights: Weights, clients: int) -> dict[str, Tensor]:
    """The same weights for every client, as views with a client axis: (clients, ...)."""
    return {name: w.expand(clients, *w.shape) for name, w in weights.items()}


def _alone(function: Callable) -> Callable:
    """A function of one client over a stack of one, without vmap."""

    def on_stack(*args: Any) -> Any:
        return torch.utils._pytree.tree_map(lambda t: t[None], function(*_pick(args, 0)))

    return on_stack


def _one_after_another(function: Callable, clients: int, *args: Any) -> Any:
    """The function on each client as a stack of one, results joined along the client axis."""
    each = [function(*_pick(args, slice(i, i + 1))) for i in range(clients)]
    return torch.utils._pytree.tree_map(lambda *parts: torch.cat(parts), *each)


def _pick(args: Any, index: int | slice) -> Any:
    """The client, or the slice of clients, of everything that has a client axis."""
    return torch.utils._pytree.tree_map(lambda t: t[index], args)
