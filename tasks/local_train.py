"""Each client of a cohort trains its copy of the model on its own rows.

The rows of all clients train one model together, each row beside its own client's context.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from models.client_model import Model
from models.networks.wrappers.per_row_context import STATISTICS, PerRowContext
from models.prng import client_streams
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Rows, Trained, Training, broadcast_weights, train
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack
from tasks.evaluate import validation_losses
from tasks.execution.load_client_data import load_client_state, load_rows, load_stacks, load_streams, load_weights
from tasks.execution.task_types import step
from tasks.messages.update_messages import Update

Updated = TypeVar("Updated", bound=Update)

_SMALL = 4096  # numbers of a client that are cheaper to convert for one product than to add client by client


@step
def local_train(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    device: str = "cpu",
    proximal: float = 0.0,
    anchor: Weights | None = None,
    each: bool = False,
    shares: Mapping[str, float] | None = None,
    optimiser: ClientStateRefs | None = None,
    keep: str | None = None,
    validate: bool = False,
) -> list[Update]:
    """One update a stack. Shared weights leave as sums; personal weights that are private are stored with the client.

    `keep` names a section in which the client stores shared weights, too, in place of sending them: until the server has
    decided with whose they are averaged (see tasks.aggregate).

    The proximal term pulls towards `anchor`, the same for all clients, or else towards the weights at the start. With
    `each` the shared weights also leave client by client. `shares`: client to what its weights count in the sum, in place
    of its rows. `optimiser`: where clients keep the optimiser's state from one round to the next; else it starts fresh.
    `validate`: clients also tell their losses on validation rows (see tasks.evaluate).
    """
    updates = []
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, "local_train", device)
        held = None if anchor is None else broadcast_weights({n: t.to(device) for n, t in anchor.items()}, stack.size)
        before = None if optimiser is None else load_client_state(optimiser, stack, private, device)
        trained = train(model.network, weights, context, rows, training, streams, proximal, held, before)
        update = build_update(stack, model, trained, rows, private, shares, each)
        if keep is not None:
            update = replace(update, sums={}, each={})
            update = store_client_state(update, keep, {name: trained.weights[name] for name in model.shared}, private)
        if optimiser is not None:
            update = store_client_state(update, optimiser.section, trained.optimiser, private)
        if validate:
            both = (weights, trained.weights)
            told = validation_losses(cohort.silos, stack, model.network, *both, context, training, device)
            update = replace(update, validation=told)
        updates.append(update)
    return updates


def build_update(
    stack: Stack,
    model: Model,
    trained: Trained,
    rows: Rows,
    private: ClientStore,
    shares: Mapping[str, float] | None = None,
    each: bool = False,
) -> Update:
    """What is shared is summed over the stack and sent, what is personal and private stays with its client.

    For a page with a training step of its own; `each` and `shares` as in `local_train`.
    """
    clients, counts = stack.clients, rows.counts.cpu()
    places = slice(len(clients))
    weights = {name: t.cpu() for name, t in trained.weights.items()}
    share = None if shares is None else shares_of(clients, shares, len(counts))
    by = counts if share is None else share
    update = Update(
        clients,
        counts[places],
        {name: weighted_sum(weights[name], by) for name in model.shared},
        trained.loss.cpu()[places],
        each={name: weights[name][places] for name in model.shared} if each else {},
        shares=None if share is None else share[places],
    )
    if not isinstance(model.personal, ClientStateRefs):
        return update
    return store_client_state(
        update, model.personal.section, {n: w for n, w in weights.items() if n not in model.shared}, private
    )


def store_client_state(update: Updated, section: str, tensors: Weights, private: ClientStore) -> Updated:
    """The update of clients that also keep these tensors, (clients, ...), in a section of what is private to them.

    ValueError for a section that they keep something else in.
    """
    if section in update.private:
        raise ValueError(f"clients keep two things in the private section {section!r}; give one of them another name")
    arrays = {name: t[: len(update.clients)].cpu().numpy() for name, t in tensors.items()}
    return replace(update, private={**update.private, section: private.save(section, update.clients, arrays)})


def weighted_sum(stack: Tensor, weights: Tensor) -> Tensor:
    """Sum over clients of tensors (clients, ...) times weights (clients,), in float64 and in the stack's order."""
    if stack[0].numel() <= _SMALL:
        return torch.tensordot(weights.double(), stack.double(), 1)
    total = torch.zeros(stack.shape[1:], dtype=torch.float64)
    for tensor, weight in zip(stack, weights.tolist(), strict=True):
        if weight:
            total.add_(tensor, alpha=weight)
    return total


def shares_of(clients: tuple[str, ...], shares: Mapping[str, float], size: int) -> Tensor:
    """(size,) float64, zeros behind the clients'.

    ValueError for a client that has none, or one that is no number from 0 on.
    """
    for client in clients:
        share = shares.get(client, math.nan)
        if not 0 <= share < math.inf:
            raise ValueError(f"the share of client {client} is {share}; give every client a number from 0 on")
    given = [float(shares[client]) for client in clients]
    return torch.tensor([*given, *[0.0] * (size - len(given))], dtype=torch.float64)


@step
def pooled_train(
    cohort: Cohort,
    model: Model,
    context: Weights | ClientStateRefs,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    device: str = "cpu",
    optimiser: ClientStateRefs | None = None,
    validate: bool = False,
) -> list[Update]:
    """One update, of the pooled client; `context` is its members', with an axis over them or private, or there is none.

    `optimiser` and `validate` as of local_train.
    """
    silos, (stack,) = cohort.silos, cohort.stacks
    members = silos.members or silos.clients
    rows = load_rows(silos, stack, "train", device)
    own = replace(model, shared={}, context=context, clients=members)
    _, opened = load_weights(own, Stack(members, len(members)), private, device)
    network, together = model.network, rows
    if opened:
        counts = torch.tensor([silos.manifest.client(name).rows["train"] for name in members], device=device)
        beside = opened[STATISTICS].repeat_interleave(counts, 0).to(rows.x.dtype)
        together = rows._replace(x=torch.cat([rows.x.flatten(2), beside[None]], -1))
        network = PerRowContext(network, silos.manifest.shape, beside.shape[1])
    weights = {name: w[None].to(device) for name, w in model.shared.items()}
    streams = client_streams(seed, stack.clients, round, "local_train").to(device)
    before = None if optimiser is None else load_client_state(optimiser, stack, private, device)
    trained = train(network, weights, {}, together, training, streams, optimiser=before)
    sums = {name: w[0].cpu().double() * int(rows.counts[0]) for name, w in trained.weights.items()}
    update = Update(stack.clients, rows.counts.cpu(), sums, trained.loss.cpu())
    if optimiser is not None:
        update = store_client_state(update, optimiser.section, trained.optimiser, private)
    if validate:
        both = (weights, trained.weights)
        told = validation_losses(silos, stack, model.network, *both, opened, training, device)
        update = replace(update, validation=told)
    return [update]
