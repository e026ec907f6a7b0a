"""Runs one client's functions for a whole stack of clients as one batched program.

The form `batched` is a network's hand-written function of a whole stack. `vmap` maps the function of one client.
`sequential` runs clients one after another and is the reference. Methods are written for one client and work with all
three.

The gradient of the summed loss contains each client's own gradient, because no client's loss depends on another's
weights. So autograd runs once for the stack; `torch.func.grad` is avoided, because its first call imports a compiler
for 1.6 s.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..networks.grouped_layers import MOMENTUM
from ..networks.network import Network, learned
from ..networks.network_abilities import SGDStep
from ..prng import fold_in, shuffle, uniform
from ..server_state import Weights
from .execution_plan import Kind, Plan, resolve
from .objectives import Batch, CrossEntropy, Objective, loss_and_gradient, measures
from .optimizers import SGD, OptimiserState, Optimizer, expand_clients, freeze

_FINITE_LOSS = 1e30  # logits that are smaller have finite cross-entropies, so that these need not be computed
_VALUES_PER_CHUNK = 2**22  # of one layer in evaluation; larger activations no longer fit the cache

Metric = Callable[..., Tensor]
"""A per-example metric: logits (rows, outputs) and y (rows,) to values (rows,)."""

Order = Literal["shuffled", "balanced"]
"""Order of the rows in an epoch. `shuffled` visits each row once; `balanced` draws rows with replacement, each of the
client's classes being equally likely.
"""


LEAST_CLIP = 1e-6


@dataclass(frozen=True)
class SecureSums:
    """Lets the server read only sums over clients, whose noise they share.

    Attributes:
        least: The fewest clients whose sum may be read; 0 for all that take part in a round.
        colluders: The most clients that may pass what they know to the server, their own noise included.
    """

    least: int
    colluders: int


@dataclass(frozen=True)
class Privacy:
    """Configures training with differential privacy of rows, or units; see models.training.private_training.

    Attributes:
        clip: The largest L2 norm of a row's gradient.
        noise_multiplier: The deviation of the noise on a sum of gradients, divided by `clip`.
        divisor: What noisy sums are divided by, the same for all clients.
        rounds: The rounds in which a client trains at most.
        secure: If set, clients send masked gradients, and `noise_multiplier` is that of their sum.
    """

    clip: float
    noise_multiplier: float
    divisor: float
    rounds: int
    secure: SecureSums | None = None

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "divisor"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"privacy: {name}: got {getattr(self, name)}, expected a finite number above 0")
        if not LEAST_CLIP <= self.clip < math.inf:  # squares of shorter gradients would be 0 in float32
            raise ValueError(f"privacy: clip: got {self.clip}, expected a finite number of at least {LEAST_CLIP}")
        if self.rounds < 1:
            raise ValueError(f"privacy: rounds: got {self.rounds}, expected at least 1")


@dataclass(frozen=True)
class Training:
    """Configures the local training of one round."""

    objective: Objective
    optimiser: Optimizer
    epochs: int
    batch: int
    engine: Kind = "vmap"
    keeps: bool = False  # whether a client's optimiser state carries over to its next round
    rows: Order = "shuffled"
    privacy: Privacy | None = None
    reports_loss: bool = True  # False where training without noise is to report nothing of training rows

    def __post_init__(self) -> None:
        if self.epochs < 0 or (self.privacy and self.epochs < 1):
            raise ValueError(f"training: epochs: got {self.epochs}, expected at least {1 if self.privacy else 0}")


class Rows(NamedTuple):
    """Padded rows of a stack.

    x: (clients, width, *shape) float32. y: (clients, width) int64, or float32 for regression. counts: (clients,) int64.
    """

    x: Tensor
    y: Tensor
    counts: Tensor


class Trained(NamedTuple):
    """Weights (clients, ...), mean training loss per client (clients,), and the optimiser's final state.

    The state maps names to (clients, ...); a later call of `train` can resume from it.
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
    offset: Weights | None = None,
) -> Trained:
    """Train every client of a stack for its local epochs of mini-batches.

    Args:
        network: The network that every client trains.
        weights: Initial weights, names to (clients, ...).
        context: Inputs that are not trained, names to (clients, ...).
        rows: The clients' padded rows.
        training: Objective, optimiser, epochs, batch size and form.
        streams: Random streams, (clients,) int64.
        proximal: Adds proximal/2 ||w - anchor||^2 to the loss (FedProx, Li et al. 2020).
        anchor: Weights (clients, ...) of the proximal term; by default the initial weights.
        optimiser: Optimiser state returned by an earlier call; by default a fresh one.
        only: Weights that may change, running statistics included; others keep their values and optimiser state.
        offset: Added to the gradients, (clients, ...) by name, such as the control variates of SCAFFOLD. The term
            <offset, w> is not part of the reported loss.

    Returns:
        The trained weights, loss and optimiser state. The loss of a deep ensemble is also averaged over its
        members.

    Raises:
        ValueError: If `only` contains a name that is not a weight, or no trainable weight; if `training` asks for noise.
    """
    if training.privacy:
        raise ValueError("train: training.privacy: got noise to add, expected none: use train_privately")
    # without the optimiser there is no fused step, which updates all weights
    plan = resolve(network, training.engine, training.optimiser if only is None else None)
    trainable = None if only is None else frozenset(only)
    if trainable is not None and not (trainable <= weights.keys() and trainable & learned(network, weights).keys()):
        raise ValueError(
            f"train: only: got {sorted(trainable)}, expected names of weights, of which one is trained at least: "
            f"{list(weights)}"
        )
    trainer = _LocalTrainer(plan, training, proximal, trainable)
    stack = (weights, context, weights if anchor is None else anchor, rows, streams, optimiser, offset)
    if plan.kind == "sequential":
        return _run_sequentially(trainer.run, rows.y.shape[0], *stack)
    return trainer.run(*stack)


def full_gradient(
    network: Network, weights: Weights, context: Weights, rows: Rows, training: Training, streams: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Compute the gradient of every client's mean loss over all its rows, without updating the weights.

    Rows are read in batches, so memory does not grow with them; batch gradients are summed in float64.

    Args:
        network: The network that every client computes.
        weights: Names to (clients, ...).
        context: Inputs that are not trained, names to (clients, ...).
        rows: The clients' padded rows.
        training: The objective, the batch size and the form.
        streams: Random streams, (clients,) int64.

    Returns:
        Gradients by name, (clients, ...), and the mean loss per client as in `train`. Buffers are returned under
        their own names, as updated by the batches.

    Raises:
        ValueError: If `training` asks for noise.
    """
    if training.privacy:
        raise ValueError("full_gradient: training.privacy: got noise to add, expected none")
    one_epoch = replace(
        training, epochs=1, batch=_gradient_batch_size(network, weights, training.batch), rows="shuffled"
    )
    trainer = _LocalTrainer(resolve(network, training.engine), one_epoch, 0.0)
    if trainer.plan.kind == "sequential":
        return _run_sequentially(trainer.gradient, rows.y.shape[0], weights, context, rows, streams)
    return trainer.gradient(weights, context, rows, streams)


def _gradient_batch_size(network: Network, weights: Weights, batch: int) -> int:
    """Return the training batch size, or more rows if their activations are no larger than the weights.

    Networks with buffers keep the training batch size, because batch normalisation depends on it. The size follows from
    one client alone: dropout is drawn per batch and must not depend on the other clients of the stack.
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
    outputs: list[Tensor] | None = None,
) -> dict[str, Tensor]:
    """Evaluate each client's model on its rows with dropout off.

    Args:
        network: The network that every client computes.
        weights: Names to (clients, ...).
        context: Inputs that are not trained, names to (clients, ...).
        rows: The clients' padded rows.
        objective: The loss, which also decides the measures.
        engine: The form in which the network is computed.
        shared: Whether all clients have the same weights and no context, so that one product computes all rows.
        metrics: Further per-example metrics by name.
        outputs: Receives the logits of each chunk of rows, (clients, rows, outputs).

    Returns:
        The names of `measures` and of `metrics` to (clients, width); padding is 0.

    Raises:
        ValueError: If one of `metrics` does not return a number for each row.
    """
    clients, width = rows.y.shape
    # chunks keep activations in the cache; without dropout and running statistics they do not affect a row
    chunk = max(64, _VALUES_PER_CHUNK // (network.max_width * clients))
    plan = resolve(network, engine, shared=shared and clients > 1)
    parts = []
    with torch.no_grad():
        for start in range(0, width, chunk):
            y = rows.y[:, start : start + chunk]
            logits = plan.logits(weights, context, rows.x[:, start : start + chunk], None)
            if outputs is not None:
                outputs.append(logits)
            values = measures(objective, logits.flatten(0, 1), y.flatten())
            values |= {name: _metric_values(name, metric, logits, y) for name, metric in (metrics or {}).items()}
            parts.append({name: value.view(y.shape) for name, value in values.items()})
    real = torch.arange(width, device=rows.y.device) < rows.counts[:, None]
    return {name: torch.cat([part[name] for part in parts], 1).masked_fill(~real, 0) for name in parts[0]}


def correct_on_common_rows(
    network: Network,
    weights: Weights,
    context: Weights,
    rows: tuple[Tensor, Tensor],
    objective: Objective,
    engine: Kind = "vmap",
) -> tuple[Tensor, Tensor]:
    """Evaluate, with dropout off, which of some common rows each client's model classifies correctly.

    Args:
        network: The network that every client computes.
        weights: Names to (clients, ...).
        context: Inputs that are not trained, names to (clients, ...).
        rows: The common rows, x (rows, *shape), and their classes, (rows,).
        objective: The loss of a row.
        engine: The form in which the network is computed.

    Returns:
        The measure `correct`, (clients, rows) bool, and whether all losses of a client are finite, (clients,) bool.
    """
    clients = len(next(iter(weights.values())))
    chunk = max(64, _VALUES_PER_CHUNK // (network.max_width * clients))
    plan, correct = resolve(network, engine), []
    finite = torch.ones(clients, dtype=torch.bool, device=rows[1].device)
    with torch.no_grad():
        for x, y in zip(*(part.split(chunk) for part in rows), strict=True):
            logits = plan.common_logits(weights, context, x)
            correct.append((logits.argmax(-1) == y) & torch.isfinite(logits).all(-1))
            if not (isinstance(objective, CrossEntropy) and logits.abs().max() < _FINITE_LOSS):
                loss = objective(logits.flatten(0, 1), y.repeat(clients)).view(clients, -1)
                finite &= torch.isfinite(loss).all(1)
    return torch.cat(correct, 1), finite


def _metric_values(name: str, metric: Metric, logits: Tensor, y: Tensor) -> Tensor:
    """Call a metric and check that it returns one value per row."""
    values = metric(logits=logits.flatten(0, 1), y=y.flatten())
    if not isinstance(values, Tensor) or values.shape != (y.numel(),):
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"metric {name!r}: got {got}, expected a tensor with a number for each row, (rows,)")
    return values.float()


def broadcast_weights(weights: Weights, clients: int) -> dict[str, Tensor]:
    """Expand the same weights to every client, as views (clients, ...)."""
    return {name: w.expand(clients, *w.shape) for name, w in weights.items()}


@dataclass(frozen=True)
class _LocalTrainer:
    """Trains a stack of clients locally."""

    plan: Plan
    training: Training
    proximal: float
    only: frozenset[str] | None = None

    @property
    def network(self) -> Network:
        """Return the plan's network."""
        return self.plan.network

    def run(
        self,
        weights: Weights,
        context: Weights,
        anchor: Weights,
        rows: Rows,
        streams: Tensor,
        optimiser: OptimiserState | None,
        offset: Weights | None = None,
    ) -> Trained:
        """Run `train`."""
        loss_sum = torch.zeros(len(streams), device=rows.x.device)
        weights = {name: w.clone(memory_format=torch.contiguous_format) for name, w in weights.items()}
        state = optimiser
        if state is None:
            state = self.training.optimiser.init(self._trainable(weights), len(streams))
        for batch in batches(self.network, self.training, rows, streams):
            if self.plan.fused_sgd:
                loss = self._fused_step(weights, context, anchor, offset, batch)
            else:
                weights, state, loss = self._step(weights, context, anchor, offset, state, batch)
            loss_sum += loss * batch.rows
        count = rows.counts * self.training.epochs * self.network.num_losses
        return Trained(weights, loss_sum / count.clamp_min(1), {**(optimiser or {}), **state})

    def gradient(
        self, weights: Weights, context: Weights, rows: Rows, streams: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Run `full_gradient`."""
        leaves = {name: w.clone().requires_grad_() for name, w in learned(self.network, weights).items()}
        buffers = {name: w for name, w in weights.items() if name not in leaves}
        sums = {name: torch.zeros(w.shape, dtype=torch.float64, device=w.device) for name, w in leaves.items()}
        loss_sum = torch.zeros(len(streams), device=rows.x.device)
        for batch in batches(self.network, self.training, rows, streams):
            loss, new_buffers = self.plan.cost({**leaves, **buffers}, context, batch, self.training.objective)
            gradients = torch.autograd.grad((loss * batch.rows).sum(), list(leaves.values()))
            for total, gradient in zip(sums.values(), gradients, strict=True):
                total += gradient
            buffers |= new_buffers
            loss_sum += loss.detach() * batch.rows
        count = rows.counts.clamp_min(1)
        means = {name: (total / expand_clients(count, total)).to(leaves[name].dtype) for name, total in sums.items()}
        return {**means, **buffers}, loss_sum / (count * self.network.num_losses)

    def _trainable(self, weights: Weights) -> dict[str, Tensor]:
        """Select the weights that receive gradients."""
        trainable = learned(self.network, weights)
        return trainable if self.only is None else {name: w for name, w in trainable.items() if name in self.only}

    def _step(
        self,
        weights: dict[str, Tensor],
        context: Weights,
        anchor: Weights,
        offset: Weights | None,
        state: OptimiserState,
        batch: Batch,
    ) -> tuple[dict[str, Tensor], OptimiserState, Tensor]:
        """Run one optimiser step and return the weights, the optimiser state and each client's mean loss (clients,)."""
        leaves = {name: w.requires_grad_() for name, w in self._trainable(weights).items()}
        buffers = {name: w for name, w in weights.items() if name not in leaves}
        loss, new_buffers = self.plan.cost({**leaves, **buffers}, context, batch, self.training.objective)
        new_buffers = {name: w for name, w in new_buffers.items() if self.only is None or name in self.only}
        total = loss.sum()
        if self.proximal:
            total = total + self.proximal / 2 * sum(((w - anchor[name]) ** 2).sum() for name, w in leaves.items())
        grads = dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))
        if offset is not None:
            grads = {name: gradient + offset[name] for name, gradient in grads.items()}
        trained = {name: w.detach() for name, w in leaves.items()}
        new, new_state = self.training.optimiser.step(trained, grads, state)
        for name, rate in self.network.lr_multipliers.items():
            if name in new:
                new[name] = trained[name].lerp(new[name], rate)
        new, weights = {**new, **buffers, **new_buffers}, {**trained, **buffers}
        if batch.all_active:
            return new, new_state, loss.detach()
        active = batch.rows > 0
        return freeze(active, new, weights), freeze(active, new_state, state), loss.detach()

    def _fused_step(
        self, weights: dict[str, Tensor], context: Weights, anchor: Weights, offset: Weights | None, batch: Batch
    ) -> Tensor:
        """Run one step of plain gradient descent in place and return each client's mean loss (clients,)."""
        optimiser, fused = cast(SGD, self.training.optimiser), self.plan.fused_sgd
        assert fused is not None
        losses = []

        def logit_gradient(logits: Tensor) -> Tensor:
            loss, gradient = loss_and_gradient(self.training.objective, logits.flatten(0, 1), batch.y.flatten())
            losses.append(batch.mean(loss.view(batch.y.shape)))
            share = batch.used.to(gradient.dtype) / batch.rows.clamp_min(1)[:, None]
            return gradient.view(logits.shape).mul_(share.unsqueeze(-1))

        decay = optimiser.weight_decay + self.proximal
        exhausted = None if batch.all_active or not (decay or offset is not None) else batch.rows == 0
        unchanged = {} if exhausted is None else {name: weight[exhausted] for name, weight in weights.items()}
        rate = optimiser.learning_rate
        fused.sgd_step(weights, context, batch.x, SGDStep(batch.streams, logit_gradient, rate, 1 - rate * decay))
        if self.proximal:
            for name, weight in weights.items():
                weight.add_(anchor[name], alpha=rate * self.proximal)
        if offset is not None:
            for name, weight in weights.items():
                weight.sub_(offset[name], alpha=rate)
        for name, weight in unchanged.items():
            weights[name][exhausted] = weight
        return losses[0]


def batches(network: Network, training: Training, rows: Rows, streams: Tensor) -> Iterator[Batch]:
    """Yield the batches of every epoch, each client's rows in the client's own order.

    All batches contain the same clients, including clients that have no rows left.

    Args:
        network: The network; rows stay in order if it is not random and one batch holds them all.
        training: The epochs, the batch size and the order of rows.
        rows: The clients' padded rows.
        streams: Random streams, (clients,) int64; each epoch and step derives its own.
    """
    balanced = _BalancedSampler.from_rows(rows) if training.rows == "balanced" else None
    clients, width = rows.y.shape
    size = min(training.batch, width)
    fewest, most = int(rows.counts.min()), int(rows.counts.max())
    in_order = size == width and not network.random and balanced is None  # then shuffling changes nothing
    position = torch.arange(width, device=rows.x.device)
    first_row = torch.arange(clients, device=rows.x.device)[:, None] * width
    x, y = rows.x.flatten(0, 1), rows.y.flatten()
    for epoch in range(training.epochs):
        epoch_streams = fold_in(streams, epoch)
        order = None
        if not in_order:
            drawn = balanced.sample(epoch_streams) if balanced else shuffle(epoch_streams, width, rows.counts)
            order = first_row + drawn
        for step, start in enumerate(range(0, most, size)):
            used = (position[start : start + size] < rows.counts[:, None]).to(rows.x.dtype)
            batch_x, batch_y = rows.x, rows.y
            if order is not None:
                index = order[:, start : start + size].flatten()
                batch_x = x.index_select(0, index).view(clients, -1, *rows.x.shape[2:])
                batch_y = y.index_select(0, index).view(clients, -1)
            unpadded = start + used.shape[1] <= fewest
            yield Batch(batch_x, batch_y, used, used.sum(1), fold_in(epoch_streams, step), start < fewest, unpadded)


class _BalancedSampler(NamedTuple):
    """Cumulative sampling weights of each client's rows, (clients, width) float64."""

    cumulative: Tensor

    @classmethod
    def from_rows(cls, rows: Rows) -> "_BalancedSampler":
        """Weight each row by one over the client's row count of its class; padding gets weight 0."""
        real = (torch.arange(rows.y.shape[1], device=rows.y.device) < rows.counts[:, None]).double()
        class_sizes = real.new_zeros(len(real), int(rows.y.max()) + 1).scatter_add_(1, rows.y, real)
        return cls((real / class_sizes.gather(1, rows.y).clamp_min(1)).cumsum(1))

    def sample(self, streams: Tensor) -> Tensor:
        """Draw `width` row indices per client, (clients, width) int64.

        Clients without rows get the last index, which no batch uses.
        """
        targets = uniform(streams, self.cumulative.shape[1:]).double() * self.cumulative[:, -1:]
        index = torch.searchsorted(self.cumulative, targets, right=True)
        return index.clamp_max(self.cumulative.shape[1] - 1)


Result = TypeVar("Result")


def _run_sequentially(function: Callable[..., Result], clients: int, *args: object) -> Result:
    """Run the function for each client as a stack of one and concatenate the results along the client axis."""
    results = []
    for i in range(clients):
        stack_of_one = tree_map(lambda t, i=i: None if t is None else t[i : i + 1], args)
        results.append(function(*stack_of_one))
    return tree_map(lambda *parts: torch.cat(parts), *results)


def normalisation_statistics(network: Network) -> tuple[str, ...]:
    """Return the names of the running statistics of the normalisation layers."""
    buffers = set(network.buffers)
    return tuple(name for name in network.normalising if name in buffers)


def measure_batchnorm(
    network: Network, weights: Weights, context: Weights, rows: Rows, training: Training, streams: Tensor
) -> dict[str, Tensor]:
    """Measure the running statistics of every client's rows under its weights.

    Args:
        network: The network that every client computes.
        weights: Names to (clients, ...).
        context: Inputs that are not trained, names to (clients, ...).
        rows: The clients' padded rows.
        training: The objective, the batch size and the form.
        streams: Random streams, (clients,) int64.

    Returns:
        Names to (clients, ...): the row-weighted mean over batches of `training.batch` rows of the statistics that
        normalise each batch in training, dropout included, as torch.optim.swa_utils.update_bn measures them. A
        statistic that no batch determines stays unchanged: of a client without rows, or with a single value per
        channel.
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
