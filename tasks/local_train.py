"""Each client of a cohort trains its copy of the model on its own rows."""

from dataclasses import replace

import torch
from torch import Tensor

from models.model import Model
from models.state import Private, Weights
from models.training.engine import Training, stacked, train
from silos.cohort import Cohort, Stack
from silos.private import PrivateStore
from tasks.messages import Update
from tasks.running.opening import open_stacks, open_streams
from tasks.running.step import step

_SMALL = 4096  # numbers of a client that are cheaper to convert for one product than to add client by client


@step
def local_train(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: PrivateStore,
    seed: int,
    round: int,
    device: str = "cpu",
    proximal: float = 0.0,
    anchor: Weights | None = None,
    each: bool = False,
) -> list[Update]:
    """One update a stack. Shared weights leave as sums; personal weights that are private are stored with the client.

    The proximal term pulls towards `anchor`, the same for all clients, or else towards the weights at the start. With
    `each` the shared weights also leave client by client.
    """
    updates = []
    for stack, rows, weights, context in open_stacks(cohort, model, private, "train", device):
        streams = open_streams(stack, seed, round, "local_train", device)
        held = None if anchor is None else stacked({n: t.to(device) for n, t in anchor.items()}, stack.size)
        found = train(model.network, weights, context, rows, training, streams, proximal, held)
        trained = {name: t.cpu() for name, t in found.weights.items()}
        update = _update(stack, model, trained, rows.counts.cpu(), found.loss.cpu(), private)
        own = {name: trained[name][: len(stack.clients)] for name in model.shared} if each else {}
        updates.append(replace(update, each=own))
    return updates


def weighted_sum(stack: Tensor, rows: Tensor) -> Tensor:
    """Sum over clients of rows times weights, in float64 and in the stack's order."""
    if stack[0].numel() <= _SMALL:
        return torch.tensordot(rows.double(), stack.double(), 1)
    total = torch.zeros(stack.shape[1:], dtype=torch.float64)
    for weights, count in zip(stack, rows.tolist(), strict=True):
        if count:
            total.add_(weights, alpha=count)
    return total


def _update(
    stack: Stack, model: Model, trained: dict[str, Tensor], rows: Tensor, loss: Tensor, private: PrivateStore
) -> Update:
    clients = stack.clients
    kept = {}
    if isinstance(model.personal, Private):
        section = model.personal.section
        own = {name: trained[name][: len(clients)].numpy() for name in trained if name not in model.shared}
        kept[section] = private.save(section, clients, own)
    sums = {name: weighted_sum(trained[name], rows) for name in model.shared}
    return Update(clients, rows[: len(clients)], loss[: len(clients)], sums, kept)
