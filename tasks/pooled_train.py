"""The rows of all clients train one model together, each row beside its own client's context."""

from dataclasses import replace

import torch

from models.client_model import Model
from models.networks.wrappers.per_row_context import STATISTICS, PerRowContext
from models.prng import client_streams
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Training, train
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack
from tasks.evaluation.validation_losses import validation_losses
from tasks.execution.load_client_data import load_client_state, load_rows, load_weights
from tasks.execution.task_types import step
from tasks.local_train import store_client_state
from tasks.messages.update_messages import Update


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
