"""The engine: one client's function, run for a whole stack of clients as one batched program.

`batched` is the form for a whole stack that a network offers where it pays; `vmap` maps the function of one client and
works for every network that has one; `sequential` runs one client after another and is the reference. A method writes
for one client and never sees which. The gradient of the summed loss is each client's own gradient, since no client's loss
holds another's weights; so autograd runs once for the stack, and `torch.func.grad`, whose first call imports a compiler for
1.6 s, is not needed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from ..networks.deep_ensemble import members_of
from ..networks.dense import Descent
from ..networks.registry import Costed, Fused, Network, Stacked, learned
from ..state import Weights
from ..streams import fold, shuffle
from .batch import Batch
from .objectives import Objective, measures, slopes
from .optimisers import SGD, Optimiser, OptimiserState, along, freeze

_NUMBERS_AT_ONCE = 2**22  # of a layer in evaluation; activations of more leave the cache, and then the memory

Kind = Literal["batched", "vmap", "sequential"]


@dataclass(frozen=True)
class Training:
    """How a client trains in one round."""

    objective: Objective
    optimiser: Optimiser
    epochs: int
    batch: int
    engine: Kind = "vmap"


class Rows(NamedTuple):
    """Rows of a stack, padded: x (clients, width, *shape) float32, y (clients, width) int64, or float32 of a regression;
    counts (clients,) int64."""

    x: Tensor
    y: Tensor
    counts: Tensor


class Trained(NamedTuple):
    """Weights (clients, ...), the mean loss over all rows seen (clients,), and the optimiser's state after the last step.

    That state, names to (clients, ...), is what training may go on from.
    """

    weights: dict[str, Tensor]
    loss: Tensor
    optimiser: OptimiserState


def train(
    network: Network,
    weights: Weights,
    context: Weights,
    rows: Rows,
    training: Training,
    streams: Tensor,
    proximal: float = 0.0,
    anchor: Weights | None = None,
    optimiser: OptimiserState | None = None,
) -> Trained:
    """Local epochs of mini-batch training for every client of a stack.

    weights, context: names to (clients, ...); streams: (clients,) int64. `proximal` adds proximal/2 ||w - anchor||^2
    (FedProx, Li et al. 2020), `anchor` having a client axis too and being the start if not given. `optimiser` is the
    optimiser's state to start from, as an earlier call returned it, or fresh. The loss of a deep ensemble is the mean over
    its members besides.
    """
    plan = _Plan(network, training, proximal)
    stack = (weights, context, weights if anchor is None else anchor, rows, streams, optimiser)
    if training.engine == "sequential":
        return cast(Trained, _one_after_another(plan.run, rows.y.shape[0], *stack))
    return plan.run(*stack)


def full_gradient(
    network: Network, weights: Weights, context: Weights, rows: Rows, training: Training, streams: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """The gradient of every client's mean loss over all of its rows, at `weights`: names to (clients, ...).

    Rows are read in batches, whose gradients are added up in float64, so that memory does not grow with them; nobody steps
    in between. Under the name of a buffer is what the batches made of it. Besides the mean loss, as `train` has it.
    """
    whole = replace(training, epochs=1, batch=_rows_at_once(network, weights, training.batch))
    plan = _Plan(network, whole, 0.0)
    if training.engine == "sequential":
        gradient = _one_after_another(plan.gradient, rows.y.shape[0], weights, context, rows, streams)
        return cast(tuple[dict[str, Tensor], Tensor], gradient)
    return plan.gradient(weights, context, rows, streams)


def _rows_at_once(network: Network, weights: Weights, batch: int) -> int:
    """The batch of local training; more if then activations are no larger than the weights, but for batch normalisation.

    From one client's sizes alone: dropout is drawn by batch, and must not depend on who else is in the stack.
    """
    if getattr(network, "buffers", ()):
        return batch
    return max(batch, sum(w[0].numel() for w in weights.values()) // network.widest)


def outcomes(
    network: Network, weights: Weights, context: Weights, rows: Rows, objective: Objective, engine: Kind = "vmap"
) -> dict[str, Tensor]:
    """What the model of each client did on its rows, dropout off: the names of `measures` to (clients, width).

    weights and context: (clients, ...). Padding is 0.
    """
    clients, width = rows.y.shape
    chunk = max(64, _NUMBERS_AT_ONCE // (network.widest * clients))
    logits_of = forward(network, engine)
    if not context and all(w.stride(0) == 0 for w in weights.values()):
        logits_of = _as_one_client(network)
    parts = []
    with torch.no_grad():
        for at in range(0, width, chunk):
            y = rows.y[:, at : at + chunk]
            logits = logits_of(weights, context, rows.x[:, at : at + chunk], None)
            found = measures(objective, logits.flatten(0, 1), y.flatten())
            parts.append({name: value.view(y.shape) for name, value in found.items()})
    used = torch.arange(width, device=rows.y.device) < rows.counts[:, None]
    return {name: torch.cat([part[name] for part in parts], 1).masked_fill(~used, 0) for name in parts[0]}


def stacked(weights: Weights, clients: int) -> dict[str, Tensor]:
    """The same weights for every client, as views with a client axis: (clients, ...)."""
    return {name: w.expand(clients, *w.shape) for name, w in weights.items()}


_Forward = Callable[[Weights, Weights, Tensor, Tensor | None], Tensor]
"""Of a stack: weights, context, x (clients, rows, *shape), streams (clients,) or None to logits (clients, rows, outputs)."""


@dataclass(frozen=True)
class _Plan:
    """The local training of a stack."""

    network: Network
    training: Training
    proximal: float

    def run(
        self,
        weights: Weights,
        context: Weights,
        anchor: Weights,
        rows: Rows,
        streams: Tensor,
        optimiser: OptimiserState | None,
    ) -> Trained:
        """See `train`."""
        seen = torch.zeros(len(streams), device=rows.x.device)
        fused = self._fuses()
        weights = {name: w.clone(memory_format=torch.contiguous_format) for name, w in weights.items()}
        state = optimiser
        if state is None:
            state = self.training.optimiser.init(learned(self.network, weights), len(streams))
        for batch in _batches(self.network, self.training, rows, streams):
            if fused:
                loss = self._descend(weights, context, anchor, batch)
            else:
                weights, state, loss = self._step(weights, context, anchor, state, batch)
            seen += loss * batch.rows
        members = len(members_of(self.network))  # what an ensemble minimises is their sum
        return Trained(weights, seen / (rows.counts * self.training.epochs * members).clamp_min(1), state)

    def gradient(
        self, weights: Weights, context: Weights, rows: Rows, streams: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """See `full_gradient`."""
        leaves = {name: w.clone().requires_grad_() for name, w in learned(self.network, weights).items()}
        buffers = {name: w for name, w in weights.items() if name not in leaves}
        sums = {name: torch.zeros(w.shape, dtype=torch.float64, device=w.device) for name, w in leaves.items()}
        seen = torch.zeros(len(streams), device=rows.x.device)
        for batch in _batches(self.network, self.training, rows, streams):
            loss, moved = self._cost({**leaves, **buffers}, context, batch)
            found = torch.autograd.grad((loss * batch.rows).sum(), list(leaves.values()))
            for total, part in zip(sums.values(), found, strict=True):
                total += part
            buffers |= moved
            seen += loss.detach() * batch.rows
        count = rows.counts.clamp_min(1)
        means = {name: (total / along(count, total)).to(leaves[name].dtype) for name, total in sums.items()}
        return {**means, **buffers}, seen / (count * len(members_of(self.network)))

    def _cost(self, weights: Weights, context: Weights, batch: Batch) -> tuple[Tensor, Weights]:
        """Each client's mean loss, (clients,), and the buffers that the step moved."""
        if hasattr(self.network, "cost_stack"):
            return cast(Costed, self.network).cost_stack(weights, context, batch, self.training.objective)
        logits = forward(self.network, self.training.engine)(weights, context, batch.x, batch.streams)
        return batch.loss(self.training.objective, logits), {}

    def _fuses(self) -> bool:
        """Plain gradient descent needs no gradient in memory."""
        optimiser = self.training.optimiser
        plain = isinstance(optimiser, SGD) and not optimiser.momentum
        return plain and self.training.engine == "batched" and hasattr(self.network, "descend")

    def _step(
        self, weights: dict[str, Tensor], context: Weights, anchor: Weights, state: OptimiserState, batch: Batch
    ) -> tuple[dict[str, Tensor], OptimiserState, Tensor]:
        """One step of the optimiser; the loss is each client's mean, (clients,)."""
        leaves = {name: w.requires_grad_() for name, w in learned(self.network, weights).items()}
        buffers = {name: w for name, w in weights.items() if name not in leaves}
        loss, moved = self._cost({**leaves, **buffers}, context, batch)
        total = loss.sum()
        if self.proximal:
            total = total + self.proximal / 2 * sum(((w - anchor[n]) ** 2).sum() for n, w in leaves.items())
        grads = dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))
        trained = {name: w.detach() for name, w in leaves.items()}
        new, new_state = self.training.optimiser.step(trained, grads, state)
        for name, rate in getattr(self.network, "rates", {}).items():
            new[name] = trained[name].lerp(new[name], rate)
        new, weights = {**new, **buffers, **moved}, {**trained, **buffers}
        if batch.full:
            return new, new_state, loss.detach()
        active = batch.rows > 0
        return freeze(active, new, weights), freeze(active, new_state, state), loss.detach()

    def _descend(self, weights: dict[str, Tensor], context: Weights, anchor: Weights, batch: Batch) -> Tensor:
        """The same step of plain gradient descent, in place."""
        optimiser, network = cast(SGD, self.training.optimiser), cast(Fused, self.network)
        losses = []

        def slopes_of(logits: Tensor) -> Tensor:
            loss, slope = slopes(self.training.objective, logits.flatten(0, 1), batch.y.flatten())
            losses.append(batch.mean(loss.view(batch.y.shape)))
            share = batch.used.to(slope.dtype) / batch.rows.clamp_min(1)[:, None]
            return slope.view(logits.shape).mul_(share.unsqueeze(-1))

        pull = optimiser.weight_decay + self.proximal
        done = None if batch.full or not pull else batch.rows == 0
        kept = {} if done is None else {name: w[done] for name, w in weights.items()}
        rate = optimiser.learning_rate
        network.descend(weights, context, batch.x, Descent(batch.streams, slopes_of, rate, 1 - rate * pull))
        if self.proximal:
            for name, w in weights.items():
                w.add_(anchor[name], alpha=rate * self.proximal)
        for name, w in kept.items():
            weights[name][done] = w
        return losses[0]


def _batches(network: Network, training: Training, rows: Rows, streams: Tensor) -> Iterator[Batch]:
    """Every epoch's batches in each client's own order; all have the same clients, also those without rows left."""
    clients, width = rows.y.shape
    size = min(training.batch, width)
    fewest, most = int(rows.counts.min()), int(rows.counts.max())
    in_order = size == width and not network.dropout  # then an order of its own would change nothing
    place = torch.arange(width, device=rows.x.device)
    first = torch.arange(clients, device=rows.x.device)[:, None] * width
    x, y = rows.x.flatten(0, 1), rows.y.flatten()
    for epoch in range(training.epochs):
        epoch_streams = fold(streams, epoch)
        order = None if in_order else first + shuffle(epoch_streams, width, rows.counts)
        for number, at in enumerate(range(0, most, size)):
            used = (place[at : at + size] < rows.counts[:, None]).to(rows.x.dtype)
            batch_x, batch_y = rows.x, rows.y
            if order is not None:
                index = order[:, at : at + size].flatten()
                batch_x = x.index_select(0, index).view(clients, -1, *rows.x.shape[2:])
                batch_y = y.index_select(0, index).view(clients, -1)
            whole = at + used.shape[1] <= fewest
            yield Batch(batch_x, batch_y, used, used.sum(1), fold(epoch_streams, number), at < fewest, whole)


def forward(network: Network, engine: Kind) -> _Forward:
    """The network on a stack; `batched` is by hand where the network offers that, else mapped."""
    if hasattr(network, "apply_stack") and (engine == "batched" or hasattr(network, "cost_stack")):
        by_hand = cast(Stacked, network)
        return by_hand.apply_stack
    if engine != "sequential":
        return lambda *stack: torch.func.vmap(network.apply, (0, 0, 0, None if stack[3] is None else 0))(*stack)
    return _each_by_itself(network)


def _each_by_itself(network: Network) -> _Forward:
    def each(weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        stream_of = [None] * len(x) if streams is None else list(streams)
        own = (_pick((weights, context, x), i) for i in range(len(x)))
        return torch.stack([network.apply(w, c, rows, s) for (w, c, rows), s in zip(own, stream_of, strict=True)])

    return each


def _as_one_client(network: Network) -> _Forward:
    """For clients that share all weights: their rows are one client's."""

    def shared(weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        logits = network.apply({n: w[0] for n, w in weights.items()}, context, x.flatten(0, 1), streams)
        return logits.view(*x.shape[:2], -1)

    return shared


def _one_after_another(function: Callable, clients: int, *args: Any) -> Any:
    """The function on each client as a stack of one, results joined along the client axis."""
    each = [function(*_pick(args, slice(i, i + 1))) for i in range(clients)]
    return torch.utils._pytree.tree_map(lambda *parts: torch.cat(parts), *each)


def _pick(args: Any, index: int | slice) -> Any:
    """The client, or the slice of clients, of everything that has a client axis; what is None stays so."""
    return torch.utils._pytree.tree_map(lambda t: None if t is None else t[index], args)
