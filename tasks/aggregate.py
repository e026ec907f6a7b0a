"""Average clients' weights on the server, and send the weights that clients stored until the server formed clusters."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from models.client_model import Model
from models.server_state import Weights
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.errors import UserError
from tasks.execution.load_client_data import load_rows, load_weights
from tasks.execution.steps import ByClient, server_step, step
from tasks.local_train import shares_of, weighted_sum
from tasks.messages.round_messages import SentWeights, SummedMessage, Update


@dataclass(frozen=True)
class Aggregation:
    """How the server averages clients; by default the mean weighted by rows.

    Attributes:
        clip: The largest L2 norm of a client's update; None leaves updates as they are.
        rule: The mean, or the coordinate-wise median or trimmed mean of Yin et al. (2018), in which all clients count
            equally.
        trim: The share of clients that the trimmed mean leaves out at each end of a coordinate, rounded up.
    """

    clip: float | None = None
    rule: Literal["mean", "median", "trimmed_mean"] = "mean"
    trim: float = 0.2

    @property
    def is_robust(self) -> bool:
        """Return whether the server needs the weights of each client."""
        return self.clip is not None or self.rule != "mean"

    @property
    def setting(self) -> str:
        """Describe the settings that differ from the default."""
        clip = [] if self.clip is None else [f"clip: {self.clip:g}"]
        return ", ".join([*clip, *([] if self.rule == "mean" else [f"rule: {self.rule}"])])


@server_step
def aggregate(
    updates: Sequence[SummedMessage],
    current: Weights,
    robust: Aggregation | None = None,
    buffers: Collection[str] = (),
) -> Weights:
    """Average the updates by sum_k n_k w_k / sum_k n_k (McMahan et al. 2017), or robustly.

    n_k are the rows of a client, or the shares that its update was weighted by. Stacks are added in order, in float64.

    Args:
        updates: The messages of the clients.
        current: The server's weights, from which clients started.
        robust: Clips the updates or takes another rule; then every update needs each client's weights.
        buffers: Weights without gradients, such as running statistics. They are not clipped.

    Returns:
        The averaged weights, with the names, shapes and types of `current`; `current` if the updates have no rows.

    Raises:
        ValueError: If a shape differs from the server's.
        UserError: If `robust` needs weights that the method's clients do not send.
    """
    total = sum(u.total for u in updates)
    if not total:
        return dict(current)
    for name, tensor in current.items():
        if any(name not in u.sums or u.sums[name].shape != tensor.shape for u in updates):
            raise ValueError(
                f"aggregate: {name}: got the shape of another model, expected the server's, {tuple(tensor.shape)}"
            )
    if robust is not None and current:
        return _average_robustly(updates, current, robust, buffers)
    return _mean(updates, current, total)


def _mean(updates: Sequence[SummedMessage], current: Weights, total: float) -> dict[str, Tensor]:
    sums = {name: sum((u.sums[name] for u in updates[1:]), updates[0].sums[name]) for name in current}
    return {name: (sums[name] / total).to(tensor.dtype) for name, tensor in current.items()}


def _average_robustly(
    updates: Sequence[SummedMessage], current: Weights, robust: Aggregation, buffers: Collection[str]
) -> dict[str, Tensor]:
    """Average the clients' own weights; clients without rows, or with weights that are not finite, do not count."""
    if sum(len(u.clients) for u in updates) == 1 and isinstance(updates[0], Update) and not updates[0].each:
        return _mean(updates, current, updates[0].total)  # the pooled rows, which are no client's
    sent = [u for u in updates if isinstance(u, Update) and current.keys() <= u.each.keys()]
    if len(sent) < len(updates):
        raise UserError(
            f"params.yaml: aggregation: got {robust.setting}, expected clip: null and rule: mean, since this method "
            "averages messages that are sums over clients. Use these, or another method."
        )
    factors = torch.cat([u.rows if u.shares is None else u.shares for u in sent]).double()
    each = {name: torch.cat([u.each[name] for u in sent]).double() for name in current}
    counts = factors > 0
    for weights in each.values():
        counts &= weights.flatten(1).isfinite().all(1)
    if not counts.any():
        return dict(current)
    clipped = []
    if robust.clip is not None:
        moved = {name: weights - current[name].double() for name, weights in each.items() if name not in buffers}
        norms = sum((change.flatten(1).square().sum(1) for change in moved.values()), torch.zeros(len(counts))).sqrt()
        clipped = torch.nonzero(norms > robust.clip).flatten().tolist()
        for client in clipped:
            for name, change in moved.items():
                each[name][client] = current[name].double() + change[client] * (robust.clip / norms[client])
    if robust.rule == "mean" and not clipped and bool((counts | (factors == 0)).all()):
        return _mean(updates, current, float(factors.sum()))
    factors, each = factors[counts], {name: weights[counts] for name, weights in each.items()}
    means = {name: _center(weights, factors, robust) for name, weights in each.items()}
    return {name: mean.to(current[name].dtype) for name, mean in means.items()}


def _center(weights: Tensor, factors: Tensor, robust: Aggregation) -> Tensor:
    """Return the mean, median or trimmed mean of (clients, ...) over clients, coordinate by coordinate."""
    if robust.rule == "mean":
        return weighted_sum(weights, factors) / float(factors.sum())
    half = (len(weights) - 1) // 2
    left_out = half if robust.rule == "median" else min(math.ceil(robust.trim * len(weights)), half)
    return weights.sort(0).values[left_out : len(weights) - left_out].mean(0)


@step
def send_weights(
    cohort: Cohort, model: Model, private: ClientStore, device: str = "cpu", shares: ByClient[float] | None = None
) -> list[SentWeights]:
    """Send the model's personal weights, which clients stored with `local_train(keep=...)`.

    Args:
        cohort: The clients, in stacks.
        model: The model whose personal weights are sent.
        private: Where clients keep these weights.
        device: Where weights are loaded, such as "cpu".
        shares: The weight of each client in the sum; by default its number of training rows.

    Returns:
        One record per stack, with weights summed over its clients.

    Raises:
        RefusalError: If the section holds what clients do not send, such as weights of a personal layer.
    """
    messages = []
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, "train", device)
        weights, _ = load_weights(model, stack, private, device, "sendable")
        counts, clients = rows.counts.cpu(), slice(len(stack.clients))
        share = None if shares is None else shares_of(stack.clients, shares, len(counts))
        sums = {name: weighted_sum(w.cpu(), counts if share is None else share) for name, w in weights.items()}
        reported = None if share is None else share[clients]
        messages.append(SentWeights(stack.clients, counts[clients], sums, shares=reported))
    return messages
