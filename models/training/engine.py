"""The engine: one client's function, run for a whole stack of clients as one batched program.

`batched` is the form for a whole stack that a network offers where it pays; `vmap` maps the function of one client;
`sequential` runs it for one client after another and is the reference. A method writes for one client and never sees which.
The gradient of the summed loss is each client's own gradient, since no client's loss holds another's weights; so autograd
runs once for the stack, and `torch.func.grad`, whose first call imports a compiler for 1.6 s, is not needed.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from ..networks.network import Network, learned
from ..networks.protocols import Descent
from ..prng import fold_in, shuffle, uniform
from ..server_state import Weights
from .batch import Batch
from .execution_plan import Kind, Plan, resolve
from .objectives import Objective, measures, slopes
from .optimizers import SGD, OptimiserState, Optimizer, along, freeze

_NUMBERS_AT_ONCE = 2**22  # of a layer in evaluation; activations of more leave the cache, and then the memory


Metric = Callable[..., Tensor]
"""A measure of a row: logits (rows, outputs) and y (rows,) to (rows,)."""

Order = Literal["shuffled", "balanced"]
"""Of the rows in an epoch: each once; or as many draws with replacement, a client's classes having the same chance."""


@dataclass(frozen=True)
class Training:
    """How a client trains in one round."""

    objective: Objective
    optimiser: Optimizer
    epochs: int
    batch: int
    engine: Kind = "vmap"
    keeps: bool = False  # whether a client's optimiser goes on in its next round from where it was
    rows: Order = "shuffled"


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
    only: Collection[str] | None = None,
) -> Trained:
    """Local epochs of mini-batch training for every client of a stack.

    weights, context: names to (clients, ...); streams: (clients,) int64. `proximal` adds proximal/2 ||w - anchor||^2
    (FedProx, Li et al. 2020), `anchor` having a client axis too and being the start if not given. `optimiser` is the
    optimiser's state to start from, as an earlier call returned it, or fresh. `only` names the weights that may change,
    running statistics included; the others, and the state of them that was given, stay as they are. The loss of a deep
    ensemble is the mean over its members besides. ValueError if `only` names what is no weight, or none that is learned.
    """
    plan = resolve(network, training.engine, training.optimiser if only is None else None)  # by hand, all weights step
    chosen = None if only is None else frozenset(only)
    if chosen is not None and not (chosen <= weights.keys() and chosen & learned(network, weights).keys()):
        raise ValueError(
            f"train: of {sorted(chosen)} nothing is learned, or some are no weights; there are {list(weights)}"
        )
    local = _Local(plan, training, proximal, chosen)
    stack = (weights, context, weights if anchor is None else anchor, rows, streams, optimiser)
    if local.plan.kind == "sequential":
        return cast(Trained, _one_after_another(local.run, rows.y.shape[0], *stack))
    return local.run(*stack)


def full_gradient(
    network: Network, weights: Weights, context: Weights, rows: Rows, training: Training, streams: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """The gradient of every client's mean loss over all of its rows, at `weights`: names to (clients, ...).

    Rows are read in batches, whose gradients are added up in float64, so that memory does not grow with them; nobody steps
    in between. Under the name of a buffer is what the batches made of it. Besides the mean loss, as `train` has it.
    """
    whole = replace(training, epochs=1, batch=_rows_at_once(network, weights, training.batch), rows="shuffled")
    local = _Local(resolve(network, training.engine), whole, 0.0)
    if local.plan.kind == "sequential":
        gradient = _one_after_another(local.gradient, rows.y.shape[0], weights, context, rows, streams)
        return cast(tuple[dict[str, Tensor], Tensor], gradient)
    return local.gradient(weights, context, rows, streams)


def _rows_at_once(network: Network, weights: Weights, batch: int) -> int:
    """The batch of local training; more if then activations are no larger than the weights, but for batch normalisation.

    From one client's sizes alone: dropout is drawn by batch, and must not depend on who else is in the stack.
    """
    if network.buffers:
        return batch
    return max(batch, sum(w[0].numel() for w in weights.values()) // network.max_width)


def per_example_metrics(
    network: Network,
    weights: Weights,
    context: Weights,
    rows: Rows,
    objective: Objective,
    engine: Kind = "vmap",
    shared: bool = False,
    metrics: Mapping[str, Metric] | None = None,
) -> dict[str, Tensor]:
    """What the model of each client did on its rows, dropout off: the names of `measures` to (clients, width).

    `metrics` are further measures. weights and context: (clients, ...); `shared` says that all clients have the same
    weights and no context. Padding is 0.
    """
    clients, width = rows.y.shape
    chunk = max(64, _NUMBERS_AT_ONCE // (network.max_width * clients))
    plan = resolve(network, engine, shared=shared and clients > 1)
    parts = []
    with torch.no_grad():
        for at in range(0, width, chunk):
            y = rows.y[:, at : at + chunk]
            logits = plan.logits(weights, context, rows.x[:, at : at + chunk], None)
            values = measures(objective, logits.flatten(0, 1), y.flatten())
            values |= {name: _measured(name, of, logits, y) for name, of in (metrics or {}).items()}
            parts.append({name: value.view(y.shape) for name, value in values.items()})
    used = torch.arange(width, device=rows.y.device) < rows.counts[:, None]
    return {name: torch.cat([part[name] for part in parts], 1).masked_fill(~used, 0) for name in parts[0]}


def _measured(name: str, metric: Metric, logits: Tensor, y: Tensor) -> Tensor:
    value = metric(logits=logits.flatten(0, 1), y=y.flatten())
    if not isinstance(value, Tensor) or value.shape != (y.numel(),):
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"metric {name!r}: got {got}, expected a tensor with a number for each row, (rows,)")
    return value.float()


def broadcast_weights(weights: Weights, clients: int) -> dict[str, Tensor]:
    """The same weights for every client, as views with a client axis: (clients, ...)."""
    return {name: w.expand(clients, *w.shape) for name, w in weights.items()}


@dataclass(frozen=True)
class _Local:
    """The local training of a stack."""

    plan: Plan
    training: Training
    proximal: float
    only: frozenset[str] | None = None

    @property
    def network(self) -> Network:
        """Of the plan."""
        return self.plan.network

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
        weights = {name: w.clone(memory_format=torch.contiguous_format) for name, w in weights.items()}
        state = optimiser
        if state is None:
            state = self.training.optimiser.init(self._learned(weights), len(streams))
        for batch in batches(self.network, self.training, rows, streams):
            if self.plan.fused_sgd:
                loss = self._descend(weights, context, anchor, batch)
            else:
                weights, state, loss = self._step(weights, context, anchor, state, batch)
            seen += loss * batch.rows
        count = rows.counts * self.training.epochs * self.network.costs
        return Trained(weights, seen / count.clamp_min(1), {**(optimiser or {}), **state})

    def gradient(
        self, weights: Weights, context: Weights, rows: Rows, streams: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """See `full_gradient`."""
        leaves = {name: w.clone().requires_grad_() for name, w in learned(self.network, weights).items()}
        buffers = {name: w for name, w in weights.items() if name not in leaves}
        sums = {name: torch.zeros(w.shape, dtype=torch.float64, device=w.device) for name, w in leaves.items()}
        seen = torch.zeros(len(streams), device=rows.x.device)
        for batch in batches(self.network, self.training, rows, streams):
            loss, moved = self.plan.cost({**leaves, **buffers}, context, batch, self.training.objective)
            gradients = torch.autograd.grad((loss * batch.rows).sum(), list(leaves.values()))
            for total, part in zip(sums.values(), gradients, strict=True):
                total += part
            buffers |= moved
            seen += loss.detach() * batch.rows
        count = rows.counts.clamp_min(1)
        means = {name: (total / along(count, total)).to(leaves[name].dtype) for name, total in sums.items()}
        return {**means, **buffers}, seen / (count * self.network.costs)

    def _learned(self, weights: Weights) -> dict[str, Tensor]:
        """Those of the weights that gradients move."""
        parameters = learned(self.network, weights)
        return parameters if self.only is None else {name: w for name, w in parameters.items() if name in self.only}

    def _step(
        self, weights: dict[str, Tensor], context: Weights, anchor: Weights, state: OptimiserState, batch: Batch
    ) -> tuple[dict[str, Tensor], OptimiserState, Tensor]:
        """One step of the optimiser; the loss is each client's mean, (clients,)."""
        leaves = {name: w.requires_grad_() for name, w in self._learned(weights).items()}
        buffers = {name: w for name, w in weights.items() if name not in leaves}
        loss, moved = self.plan.cost({**leaves, **buffers}, context, batch, self.training.objective)
        moved = {name: w for name, w in moved.items() if self.only is None or name in self.only}
        total = loss.sum()
        if self.proximal:
            total = total + self.proximal / 2 * sum(((w - anchor[n]) ** 2).sum() for n, w in leaves.items())
        grads = dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))
        trained = {name: w.detach() for name, w in leaves.items()}
        new, new_state = self.training.optimiser.step(trained, grads, state)
        for name, rate in self.network.rates.items():
            if name in new:
                new[name] = trained[name].lerp(new[name], rate)
        new, weights = {**new, **buffers, **moved}, {**trained, **buffers}
        if batch.full:
            return new, new_state, loss.detach()
        active = batch.rows > 0
        return freeze(active, new, weights), freeze(active, new_state, state), loss.detach()

    def _descend(self, weights: dict[str, Tensor], context: Weights, anchor: Weights, batch: Batch) -> Tensor:
        """The same step of plain gradient descent, in place."""
        optimiser, fused = cast(SGD, self.training.optimiser), self.plan.fused_sgd
        assert fused is not None
        losses = []

        def slopes_of(logits: Tensor) -> Tensor:
            loss, slope = slopes(self.training.objective, logits.flatten(0, 1), batch.y.flatten())
            losses.append(batch.mean(loss.view(batch.y.shape)))
            share = batch.used.to(slope.dtype) / batch.rows.clamp_min(1)[:, None]
            return slope.view(logits.shape).mul_(share.unsqueeze(-1))

        pull = optimiser.weight_decay + self.proximal
        done = None if batch.full or not pull else batch.rows == 0
        copies = {} if done is None else {name: w[done] for name, w in weights.items()}
        rate = optimiser.learning_rate
        fused.descend(weights, context, batch.x, Descent(batch.streams, slopes_of, rate, 1 - rate * pull))
        if self.proximal:
            for name, w in weights.items():
                w.add_(anchor[name], alpha=rate * self.proximal)
        for name, w in copies.items():
            weights[name][done] = w
        return losses[0]


def batches(network: Network, training: Training, rows: Rows, streams: Tensor) -> Iterator[Batch]:
    """Every epoch's batches in each client's own order; all have the same clients, also those without rows left."""
    draw = _Balanced.of(rows) if training.rows == "balanced" else None
    clients, width = rows.y.shape
    size = min(training.batch, width)
    fewest, most = int(rows.counts.min()), int(rows.counts.max())
    in_order = size == width and not network.random and draw is None  # then an order of its own would change nothing
    place = torch.arange(width, device=rows.x.device)
    first = torch.arange(clients, device=rows.x.device)[:, None] * width
    x, y = rows.x.flatten(0, 1), rows.y.flatten()
    for epoch in range(training.epochs):
        epoch_streams = fold_in(streams, epoch)
        order = None
        if not in_order:
            order = first + (draw.places(epoch_streams) if draw else shuffle(epoch_streams, width, rows.counts))
        for number, at in enumerate(range(0, most, size)):
            used = (place[at : at + size] < rows.counts[:, None]).to(rows.x.dtype)
            batch_x, batch_y = rows.x, rows.y
            if order is not None:
                index = order[:, at : at + size].flatten()
                batch_x = x.index_select(0, index).view(clients, -1, *rows.x.shape[2:])
                batch_y = y.index_select(0, index).view(clients, -1)
            whole = at + used.shape[1] <= fewest
            yield Batch(batch_x, batch_y, used, used.sum(1), fold_in(epoch_streams, number), at < fewest, whole)


class _Balanced(NamedTuple):
    """Chances of a stack's rows, added up along each client's: (clients, width) float64."""

    chances: Tensor

    @classmethod
    def of(cls, rows: Rows) -> "_Balanced":
        """One over the client's rows of the same class, and none of padding."""
        there = (torch.arange(rows.y.shape[1], device=rows.y.device) < rows.counts[:, None]).double()
        sizes = there.new_zeros(len(there), int(rows.y.max()) + 1).scatter_add_(1, rows.y, there)
        return cls((there / sizes.gather(1, rows.y).clamp_min(1)).cumsum(1))

    def places(self, streams: Tensor) -> Tensor:
        """As many draws as there are places, (clients, width) int64; the first ones if there are no rows."""
        tickets = uniform(streams, self.chances.shape[1:]).double() * self.chances[:, -1:]
        drawn = torch.searchsorted(self.chances, tickets, right=True)
        return drawn.clamp_max(self.chances.shape[1] - 1)


def _one_after_another(function: Callable, clients: int, *args: Any) -> Any:
    """The function on each client as a stack of one, results joined along the client axis."""
    each = [function(*_pick(args, slice(i, i + 1))) for i in range(clients)]
    return torch.utils._pytree.tree_map(lambda *parts: torch.cat(parts), *each)


def _pick(args: Any, index: int | slice) -> Any:
    """The client, or the slice of clients, of everything that has a client axis; what is None stays so."""
    return torch.utils._pytree.tree_map(lambda t: None if t is None else t[index], args)
