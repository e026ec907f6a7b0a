"""Trains a stack of clients with differential privacy: clipped rows, noise, and a constant divisor (Abadi et al. 2016).

repeat for each local epoch: g_i = gradient of row i's loss at w
    w <- w - rate (sum_i g_i min(1, C / |g_i|) / m_i + sigma C noise) / N

A step takes all rows of a client, so nothing has to be sampled in secret. C is the clip norm, and sigma the noise
multiplier. N is the same for every client, so that it depends on no client's number of rows. m_i is the number of rows
of the same unit, such as a patient, or 1. One row, or all rows of one unit, change the sum by at most C.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..networks.network import Network, learned
from ..networks.network_abilities import ClippedGradients, RowScale
from ..server_state import Weights
from .engine import Privacy, Rows, Trained, Training
from .execution_plan import Plan, resolve
from .objectives import Batch, Objective, loss_and_gradient
from .optimizers import OptimiserState, expand_clients

_GRADIENTS_PER_CHUNK = 2**20  # numbers of one client's row gradients that the general form holds at a time
_NUMBERS_PER_CHUNK = {"cpu": 2**17, "cuda": 2**22}  # of one layer and one client, which stay in the cache of a CPU
_LEAST_ROWS = 32  # of a chunk, below which products are slow
_MOST_ROWS = 1024  # of a chunk, whose float32 sum changes by little more than the clip norm if a row does
_PIECE = 2**15  # numbers that get their noise at a time on a CPU
_FINE_GRID = 16  # as _GRID, of integers that clients add up; each has up to half of a grid of error
_MOST_INTEGER = 2**52  # a float64 has no finer integers, and sums of many clients stay below 2^63
_GRID = 6  # noise is rounded to multiples of 2^-6 of its deviation, or a little less; a finer grid shows float32

Noise = Callable[[Mapping[str, torch.Size]], Mapping[str, Tensor]]
"""Returns standard normal noise for a step: the names and shapes of the gradients to tensors of these shapes."""


def refusal(network: Network, training: Training) -> str:
    """Say why a network or its training cannot be private, and the way out; empty if they can."""
    if network.buffers:
        return (
            "model: got a network with running statistics of its batches, which reveal rows. Use one without batch "
            "normalisation, such as model.kind mlp or cnn"
        )
    if network.random:
        return "model.dropout: got dropout, expected 0, since its masks depend on the order of rows. Set it to 0"
    if len(network.single_networks) > 1:
        return "model.members: got an ensemble, expected 1, since all members would share one clip norm. Set it to 1"
    if training.rows != "shuffled":
        return (
            f"training.rows: got {training.rows}, expected shuffled, since the numbers of rows by class would decide what "
            "a row counts. Set it to shuffled"
        )
    return ""


@dataclass(frozen=True)
class _Clipping:
    """Computes each client's sum of clipped row gradients."""

    plan: Plan
    objective: Objective
    clip: float

    def sums(self, weights: Weights, context: Weights, rows: Rows, shares: Tensor) -> dict[str, Tensor]:
        """Return the sums by name, (clients, ...), in float64 if there are several chunks.

        shares: (clients, width), what a clipped row counts, 0 for padding.
        """
        fused = self.plan.network if self.plan.kind == "batched" else None
        total: dict[str, Tensor] = {}
        chunk = self._chunk(weights, rows.x.device.type)
        for start in range(0, rows.y.shape[1], chunk):
            part = slice(start, start + chunk)
            batch = (rows.x[:, part], rows.y[:, part], shares[:, part])
            if isinstance(fused, ClippedGradients):
                sums = self._in_one_pass(fused, weights, context, *batch)
            else:
                sums = self._row_by_row(weights, context, *batch)
            # in float32 a row can move a total across a power of 2, from where all later chunks round otherwise
            total = {name: total[name].double().add_(value) for name, value in sums.items()} if total else sums
        return total

    def _chunk(self, weights: Weights, device: str) -> int:
        """Return the rows of a chunk; it follows from one client alone, so sums do not depend on the stack."""
        size, network = sum(w[0].numel() for w in weights.values()), self.plan.network
        if self.plan.kind != "batched" or not isinstance(network, ClippedGradients):
            return min(max(1, _GRADIENTS_PER_CHUNK // size), _MOST_ROWS)
        # each chunk adds to sums as large as the weights, which pays for more numbers of rows
        return min(
            max(_LEAST_ROWS, (_NUMBERS_PER_CHUNK.get(device, 2**17) + 4 * size) // network.clipped_width), _MOST_ROWS
        )

    def _scale(self, squares: Tensor, shares: Tensor) -> Tensor:
        """Return the factors of rows with these squared norms; a gradient that is not finite is left out."""
        scale = (self.clip / squares.sqrt().clamp_min(torch.finfo(squares.dtype).tiny)).clamp_max(1.0) * shares
        return torch.where(squares.isfinite(), scale, 0.0)

    def _in_one_pass(
        self, network: ClippedGradients, weights: Weights, context: Weights, x: Tensor, y: Tensor, shares: Tensor
    ) -> dict[str, Tensor]:
        def logit_gradient(logits: Tensor) -> Tensor:
            _, gradient = loss_and_gradient(self.objective, logits.flatten(0, 1), y.flatten())
            return gradient.view(logits.shape)

        def scale(squares: Tensor) -> Tensor:
            return self._scale(squares, shares)

        return network.clipped_gradients(weights, context, x, RowScale(logit_gradient, scale))

    def _row_by_row(
        self, weights: Weights, context: Weights, x: Tensor, y: Tensor, shares: Tensor
    ) -> dict[str, Tensor]:
        """Compute each row's gradient as that of a client with this row only; any network and form can do that."""
        clients, width = y.shape

        def of_rows(tensor: Tensor) -> Tensor:
            return tensor.repeat_interleave(width, 0)

        ones = torch.ones(clients * width, 1, dtype=x.dtype, device=x.device)
        streams = torch.zeros(clients * width, dtype=torch.int64, device=x.device)  # nothing is drawn
        one_row = Batch(x.flatten(0, 1)[:, None], y.flatten()[:, None], ones, ones[:, 0], streams, True, True)
        leaves = {name: of_rows(w).requires_grad_() for name, w in learned(self.plan.network, weights).items()}
        contexts = {name: of_rows(value) for name, value in context.items()}
        loss, _ = self.plan.cost(leaves, contexts, one_row, self.objective)
        gradients = dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values())), strict=True))
        squares = sum((g.flatten(1).square().sum(1) for g in gradients.values()), torch.zeros_like(ones[:, 0]))
        scale = self._scale(squares, shares.flatten())
        finite = squares.isfinite()
        sums = {}
        for name, gradient in gradients.items():
            clean = torch.where(expand_clients(finite, gradient), gradient, 0.0)  # 0 times infinity is no number
            scaled = clean * expand_clients(scale, gradient)
            sums[name] = scaled.view(clients, width, *gradient.shape[1:]).sum(1)
        return sums


def clipped_sums(
    network: Network, weights: Weights, context: Weights, rows: Rows, training: Training, shares: Tensor
) -> dict[str, Tensor]:
    """Sum each client's row gradients, each clipped to the L2 norm of `training.privacy.clip`.

    Args:
        network: The network that every client computes.
        weights: Names to (clients, ...).
        context: Inputs that are not trained, names to (clients, ...).
        rows: The clients' padded rows.
        training: The objective, the form and the clip norm.
        shares: (clients, width), what a clipped row counts: 0 for padding, at most 1 for all rows of a unit.

    Returns:
        The sums by name, (clients, ...), float32 or float64. A row with a gradient that is not finite adds nothing.
    """
    assert training.privacy is not None, "the caller has checked"
    plan = resolve(network, training.engine)
    return _Clipping(plan, training.objective, training.privacy.clip).sums(weights, context, rows, shares)


def train_privately(
    network: Network,
    weights: Weights,
    context: Weights,
    rows: Rows,
    training: Training,
    noise: Noise,
    shares: Tensor,
    proximal: float = 0.0,
    anchor: Weights | None = None,
    optimiser: OptimiserState | None = None,
) -> Trained:
    """Train every client of a stack for its local epochs, one noisy step of all rows each.

    Args:
        network: The network that every client trains; see `refusal`.
        weights: Initial weights, names to (clients, ...).
        context: Inputs that are not trained, names to (clients, ...).
        rows: The clients' padded rows.
        training: Objective, optimiser, epochs and form; the batch size has no effect.
        noise: Draws the noise of a step, new at each call.
        shares: As of `clipped_sums`.
        proximal: As of `train`; the term depends on no row.
        anchor: As of `train`.
        optimiser: As of `train`; it follows from noisy gradients.

    Returns:
        The trained weights and the optimiser's state, and no losses, which would reveal rows: (0,).

    Raises:
        ValueError: If the network cannot be trained with privacy.
    """
    privacy = training.privacy
    assert privacy is not None, "the caller has checked"
    if reason := refusal(network, training):
        raise ValueError(reason)
    weights = {name: w.clone(memory_format=torch.contiguous_format) for name, w in weights.items()}
    anchor = weights if anchor is None else anchor
    state = training.optimiser.init(weights, len(rows.y)) if optimiser is None else optimiser
    for _ in range(training.epochs):
        # what follows the noise reads no row, so it costs nothing however often it is done
        sums = clipped_sums(network, weights, context, rows, training, shares)
        drawn = noise({name: total.shape for name, total in sums.items()})
        for name, total in sums.items():
            _add_noise(total, drawn[name], privacy.noise_multiplier * privacy.clip)
        grads = {name: total.div_(privacy.divisor).to(weights[name]) for name, total in sums.items()}
        if proximal:
            grads = {name: g + proximal * (weights[name] - anchor[name]) for name, g in grads.items()}
        weights, state = _take_step(network, training, weights, grads, state)
    return Trained(weights, torch.zeros(0), dict(state))


def _take_step(
    network: Network, training: Training, weights: Weights, grads: Weights, state: OptimiserState
) -> tuple[dict[str, Tensor], OptimiserState]:
    new, state = training.optimiser.step(weights, grads, state)
    for name, rate in network.lr_multipliers.items():
        new[name] = weights[name].lerp(new[name], rate)
    return new, state


@dataclass(frozen=True)
class SharedNoise:
    """The noise that each client adds to its sum of clipped gradients, so that sums of `least` clients have enough.

    Sums are integers, multiples of a grid far below the noise. A rounded normal is a normal plus a uniform number, read at
    integers, so that a sum of several hides at least as much as normal noise; the grid adds less than 1e-9 to delta. So the
    sum of least - colluders clients has `noise_multiplier`, and that of more clients has more noise.

    Attributes:
        privacy: The clip norm and the noise multiplier of the sum.
        least: The fewest clients of a sum.
        colluders: The clients that may know their own noise.
    """

    privacy: Privacy
    least: int
    colluders: int

    @property
    def deviation(self) -> float:
        """Return the deviation of one client's noise."""
        return self.privacy.noise_multiplier * self.privacy.clip / math.sqrt(self.least - self.colluders)

    @property
    def grid(self) -> float:
        """Return what an integer stands for."""
        return 2.0 ** (math.floor(math.log2(self.deviation)) - _FINE_GRID)

    def integers(self, sums: Weights, noise: Tensor) -> Tensor:
        """Add noise to sums of gradients and round them.

        Args:
            sums: The sums by name, (clients, ...).
            noise: Standard normal numbers, (clients, count) float64.

        Returns:
            Integers, (clients, count) int64, with weights in the order of their names.
        """
        flat = torch.cat([total.flatten(1) for _, total in sorted(sums.items())], 1).double()
        rounded = flat.cpu().add_(noise, alpha=self.deviation).div_(self.grid).round_()
        # no error, which would depend on rows; `check` has excluded such sums by numbers that do not
        return rounded.clamp_(-_MOST_INTEGER, _MOST_INTEGER).long()

    def check(self, rows: int) -> None:
        """Raise a ValueError if the sum of this many clipped rows could be too large for the grid."""
        largest = (rows * self.privacy.clip + 10 * self.deviation) / self.grid
        if largest >= _MOST_INTEGER:
            raise ValueError(
                f"training.privacy: got noise so small that a sum of {rows} rows has no exact integer, expected more. Lower "
                "training.privacy.epsilon."
            )


def step_with_sum(
    network: Network, weights: Weights, training: Training, noise: SharedNoise, total: Tensor, clients: int
) -> dict[str, Tensor]:
    """Take the step that clients would take together with the mean of their noisy sums.

    Args:
        network: The network.
        weights: The weights, by name.
        training: The training, with the optimiser; its state begins as it does at clients.
        noise: What integers stand for.
        total: The sum of the clients' integers, (count,) int64.
        clients: Their number.
    """
    stacked = {name: w[None] for name, w in weights.items()}
    names = sorted(learned(network, weights))
    parts = total.double().split([weights[name].numel() for name in names])
    scale = noise.grid / (noise.privacy.divisor * clients)
    grads = {
        name: (part * scale).view_as(stacked[name]).to(stacked[name]) for name, part in zip(names, parts, strict=True)
    }
    new, _ = _take_step(network, training, stacked, grads, training.optimiser.init(stacked, 1))
    return {name: w[0] for name, w in new.items()}


def _add_noise(total: Tensor, noise: Tensor, deviation: float) -> None:
    """Add noise in place, rounded to a grid far below it, so that low bits of floats do not reveal sums (Mironov 2012)."""
    grid = 2.0 ** (math.floor(math.log2(deviation)) - _GRID)
    piece = _PIECE if total.device.type == "cpu" else max(1, total.numel())
    for part, drawn in zip(total.view(-1).split(piece), noise.reshape(-1).split(piece), strict=True):
        part.copy_(drawn.double().mul_(deviation / grid).add_(part.double(), alpha=1 / grid).round_().mul_(grid))
