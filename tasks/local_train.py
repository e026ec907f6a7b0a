"""Train each client's model or trees on its own rows, or one model on the pooled rows of all clients."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from models.client_model import Model
from models.networks.statistics_context import STATISTICS
from models.networks.tree_ensemble import TreeEnsemble, fit_trees
from models.networks.wrappers.per_row_context import PerRowContext
from models.prng import client_streams
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Rows, Trained, Training, broadcast_weights, per_example_metrics, train
from silos.client_store import ClientStore, StateKind
from silos.cohort import Cohort, Stack
from tasks.evaluate import ValidationLosses
from tasks.execution.load_client_data import load_client_state, load_rows, load_stacks, load_streams, load_weights
from tasks.execution.steps import ByClient, step
from tasks.messages.round_messages import SentTrees, Update, Updated
from tasks.privacy.train_with_noise import check_received, train_with_noise

_SMALL = 4096  # up to so many values per client, one product is cheaper than adding client by client


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
    shares: ByClient[float] | None = None,
    optimiser: ClientStateRefs | None = None,
    keep: str | None = None,
    validate: bool = False,
) -> list[Update]:
    """Train the model at each client.

    Shared weights are sent as sums over the stack. Personal weights that are private are stored by the client.

    Args:
        cohort: The clients, in stacks.
        model: The model that each client starts from.
        training: The objective, the optimiser, the epochs and the engine of the local training.
        private: Where clients keep private state.
        seed: The seed of the run. With the round and the client's name it gives the client's random stream.
        round: The round of the run.
        device: Where clients are computed, such as "cpu".
        proximal: Factor of the proximal term, which pulls towards `anchor`, or else towards the weights at the start.
        anchor: Weights of the proximal term, the same for all clients.
        each: Whether shared weights are also sent client by client.
        shares: The weight of each client in the sum; by default its number of rows.
        optimiser: Where clients store the optimiser's state between rounds; by default it is reset in every round.
        keep: A private section in which clients store the shared weights and do not send them, until the server has
            formed clusters (see tasks.aggregate).
        validate: Whether clients also report their losses on validation rows (see tasks.evaluate).

    Returns:
        One update per stack.

    Raises:
        ValueError: If `shares` lacks a client, or a share is negative or not finite.
    """
    updates = []
    losses = ValidationLosses(cohort.silos, model.network, training, private, device, validate)
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, "local_train", device)
        centre = None if anchor is None else broadcast_weights({n: t.to(device) for n, t in anchor.items()}, stack.size)
        state = None if optimiser is None else load_client_state(optimiser, stack, private, device, "optimiser")
        if training.privacy is None:
            trained = train(model.network, weights, context, rows, training, streams, proximal, centre, state)
        else:
            check_received(model)
            received = (model.network, weights, context, training)
            trained = train_with_noise(cohort.silos, stack, rows, *received, private, proximal, centre, state)
        # noisy steps have a divisor that depends on no row, and so have their means
        equal = dict.fromkeys(stack.clients, 1.0) if training.privacy and shares is None else shares
        update = build_update(stack, model, trained, rows, private, equal, each, training.reports_loss)
        # a sum over the stack would mix clusters, which are not formed yet
        if keep is not None:
            update = replace(update, sums={}, each={})
            update = store_client_state(
                update, keep, {name: trained.weights[name] for name in model.shared}, private, "sendable"
            )
        if optimiser is not None:
            update = store_client_state(update, optimiser.section, trained.optimiser, private, "optimiser")
        update = losses.add(update, stack, before=weights, after=trained.weights, context=context)
        updates.append(update)
    return updates


def build_update(
    stack: Stack,
    model: Model,
    trained: Trained,
    rows: Rows,
    private: ClientStore,
    shares: ByClient[float] | None = None,
    each: bool = False,
    reports_loss: bool = True,
) -> Update:
    """Build the stack's update: sum the shared weights to send, and store private personal weights at the clients.

    Methods with a training step of their own call it after `train`.

    Args:
        stack: The clients, and the size to which they are padded.
        model: The model that was trained. It says which weights are shared and where personal ones are stored.
        trained: The result of `train`, with weights (stack size, ...).
        rows: The rows that were trained on, whose counts weight the sums.
        private: Where clients keep private state.
        shares: The weight of each client in the sum; by default its number of rows.
        each: Whether shared weights are also sent client by client.
        reports_loss: Whether losses are sent.

    Raises:
        ValueError: If `shares` lacks a client, or a share is negative or not finite.
    """
    clients, counts = stack.clients, rows.counts.cpu()
    # padding is cut off where clients are listed; in sums its factor is 0
    slots = slice(len(clients))
    weights = {name: t.cpu() for name, t in trained.weights.items()}
    share = None if shares is None else shares_of(clients, shares, len(counts))
    factors = counts if share is None else share
    update = Update(
        clients,
        counts[slots],
        {name: weighted_sum(weights[name], factors) for name in model.shared},
        trained.loss.cpu()[slots] if reports_loss else torch.zeros(0),
        each={name: weights[name][slots] for name in model.shared} if each else {},
        shares=None if share is None else share[slots],
    )
    if not isinstance(model.personal, ClientStateRefs):
        return update
    personal = {n: w for n, w in weights.items() if n not in model.shared}
    # a whole model may be sent later, as its update would be; personal layers never leave
    return store_client_state(
        update, model.personal.section, personal, private, "weights" if model.shared else "sendable"
    )


def store_client_state(
    update: Updated, section: str, tensors: Weights, private: ClientStore, kind: StateKind = "weights"
) -> Updated:
    """Store tensors in a private section of the update's clients, and add the references to the update.

    Args:
        update: The update of the clients.
        section: The private section.
        tensors: Names to (clients or stack size, ...); padding is not stored.
        private: Where clients keep private state.
        kind: What the tensors are; a later step reads them as this kind only.

    Raises:
        ValueError: If the update already refers to this section.
        RefusalError: If the section holds another kind.
    """
    if section in update.private:
        raise ValueError(f"private section {section!r}: got two tensors, expected one. Rename one of them")
    arrays = {name: t[: len(update.clients)].cpu().numpy() for name, t in tensors.items()}
    return replace(update, private={**update.private, section: private.save(section, update.clients, arrays, kind)})


def weighted_sum(stack: Tensor, weights: Tensor) -> Tensor:
    """Sum tensors (clients, ...) times weights (clients,) over clients, in float64 and in the stack's order."""
    if stack[0].numel() <= _SMALL:
        return torch.tensordot(weights.double(), stack.double(), 1)
    total = torch.zeros(stack.shape[1:], dtype=torch.float64)
    for tensor, weight in zip(stack, weights.tolist(), strict=True):
        if weight:
            total.add_(tensor, alpha=weight)
    return total


def shares_of(clients: tuple[str, ...], shares: Mapping[str, float], size: int) -> Tensor:
    """Return the clients' shares as (size,) float64, padded with zeros.

    Args:
        clients: The clients of a stack.
        shares: The share of each client, by name.
        size: The size to which the stack is padded.

    Raises:
        ValueError: If a client has no share, or one that is negative or not finite.
    """
    for client in clients:
        share = shares.get(client, math.nan)
        if not 0 <= share < math.inf:
            raise ValueError(f"shares: got {share} for client {client}, expected numbers of at least 0")
    values = [float(shares[client]) for client in clients]
    return torch.tensor([*values, *[0.0] * (size - len(values))], dtype=torch.float64)


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
    """Train one model on the pooled client's rows, and return its update.

    Args:
        cohort: The pooled client, as the only client of one stack.
        model: The model that training starts from.
        context: The context of the pooled members, with an axis over them, or private; it may be empty.
        training: The local training.
        private: Where clients keep private state.
        seed: The seed of the run.
        round: The round of the run.
        device: Where the client is computed, such as "cpu".
        optimiser: Where the optimiser's state is stored between rounds; by default it is reset in every round.
        validate: Whether members also report their losses on validation rows (see tasks.evaluate).
    """
    silos, (stack,) = cohort.silos, cohort.stacks
    members = silos.members or silos.clients
    rows = load_rows(silos, stack, "train", device)
    members_model = replace(model, shared={}, context=context, clients=members)
    _, contexts = load_weights(members_model, Stack(members, len(members)), private, device)
    network, training_rows = model.network, rows
    if contexts:
        # the rows of all members train one model, so each row carries its member's context as further columns
        counts = torch.tensor([silos.manifest.client(name).rows["train"] for name in members], device=device)
        row_context = contexts[STATISTICS].repeat_interleave(counts, 0).to(rows.x.dtype)
        training_rows = rows._replace(x=torch.cat([rows.x.flatten(2), row_context[None]], -1))
        network = PerRowContext(network, silos.manifest.shape, row_context.shape[1])
    weights = {name: w[None].to(device) for name, w in model.shared.items()}
    streams = client_streams(seed, stack.clients, round, "local_train").to(device)
    optimiser_state = None if optimiser is None else load_client_state(optimiser, stack, private, device, "optimiser")
    if training.privacy is None:
        trained = train(network, weights, {}, training_rows, training, streams, optimiser=optimiser_state)
    else:
        check_received(members_model)
        trained = train_with_noise(
            silos, stack, training_rows, network, weights, {}, training, private, optimiser=optimiser_state
        )
    # times the rows, as clients' sums are, since the server divides by them
    sums = {name: w[0].cpu().double() * int(rows.counts[0]) for name, w in trained.weights.items()}
    update = Update(stack.clients, rows.counts.cpu(), sums, trained.loss.cpu())
    if optimiser is not None:
        update = store_client_state(update, optimiser.section, trained.optimiser, private, "optimiser")
    losses = ValidationLosses(silos, model.network, training, private, device, validate)
    update = losses.add(update, stack, before=weights, after=trained.weights, context=contexts)
    return [update]


@step
def train_trees(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    rate: float,
    least_rows: int,
    device: str = "cpu",
) -> list[SentTrees]:
    """Train trees on each client's rows; one message per stack. Private personal weights stay with the client.

    Args:
        model: The sizes of the trees; its personal weights are private if trees stay with clients.
        rate: The learning rate.
        least_rows: The least rows of a leaf.
    """
    messages, network = [], cast(TreeEnsemble, model.network)
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, "train", "cpu")
        counts = rows.counts[: len(stack.clients)]
        fitted, losses = [], []
        # one client after another and without padding: trees have no batched form, and would split on padding
        for x, y, count in zip(rows.x, rows.y, counts.tolist(), strict=False):
            own = fit_trees(network, x[:count].numpy(), y[:count].numpy(), rate, least_rows)
            one = {name: w[None] for name, w in own.items()}
            alone = Rows(x[None, :count], y[None, :count], torch.tensor([count]))
            found = per_example_metrics(network, one, {}, alone, training.objective, "sequential")
            fitted.append(own)
            losses.append(float(found["loss"].double().sum()) / max(count, 1))
        trees = {name: torch.stack([own[name] for own in fitted]) for name in fitted[0]}
        message = SentTrees(stack.clients, counts, {}, torch.tensor(losses))
        if isinstance(model.personal, ClientStateRefs):
            messages.append(store_client_state(message, model.personal.section, trees, private))
        else:
            messages.append(replace(message, trees=trees))
    return messages
