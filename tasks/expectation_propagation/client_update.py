"""Each client of a cohort is visited: it divides its site out of what the server knows, trains, and tells what changed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from models.client_model import Model
from models.gaussians import plus
from models.networks.wrappers.ep_update import SiteTraining, SiteUpdate, train_site
from models.networks.wrappers.tilted_posterior import Tilted
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Training, broadcast_weights
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack
from tasks.evaluation.validation_losses import validation_losses
from tasks.execution.load_client_data import load_stacks, load_streams
from tasks.execution.task_types import step
from tasks.local_train import shares_of, store_client_state, weighted_sum
from tasks.messages.update_messages import SiteUpdates

POSTERIOR = "posterior"
"""The section in which a client keeps what it last believed itself."""


@step
def update_site(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    how: SiteTraining,
    shares: Mapping[str, float],
    start: Weights | None = None,
    again: int = 0,
    device: str = "cpu",
    validate: bool = False,
) -> list[SiteUpdates]:
    """One message a stack; the client stores its posterior, and its site unless the server holds it.

    The model's shared weights are what the server knows, its context the sites, and what is personal a client's own column.
    `shares`: what of its step counts for each client. `start`: the means to learn from while the server knows nothing, which
    everybody draws alike. `again`: how many visits of this round the clients have had.
    `validate` as of local_train, of what the server knows and of the posterior.
    """
    messages = []
    purpose = f"visit {again}" if again else "local_train"  # the batches of FedAvg
    for stack, rows, weights, sites in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, purpose, device)
        server = {name: weights[name] for name in model.shared}
        own = {name: w for name, w in weights.items() if name not in server}
        begin = None if start is None else broadcast_weights({n: t.to(device) for n, t in start.items()}, stack.size)
        share = shares_of(stack.clients, shares, stack.size).to(device)
        found = train_site(cast(Tilted, model.network), server, sites, own, begin, rows, training, streams, share, how)
        message = _told(stack, model, found, rows.counts.cpu(), sites, private)
        if validate:
            answers = (found.before, found.after, found.context)
            told = validation_losses(cohort.silos, stack, model.network, *answers, training, device)
            message = replace(message, validation=told)
        messages.append(message)
    return messages


def _told(
    stack: Stack, model: Model, found: SiteUpdate, counts: Tensor, sites: Weights, private: ClientStore
) -> SiteUpdates:
    """The stack's message, after its clients have stored what stays; counts: (stack size,), their rows."""
    places = slice(len(stack.clients))
    steps = {name: t.cpu() for name, t in found.step.items()}
    every = torch.ones(len(counts), dtype=torch.float64)
    every[len(stack.clients) :] = 0  # dummies
    held_by_server = not isinstance(model.context, ClientStateRefs)
    summed = {**found.points, **({} if held_by_server else steps)}
    message = SiteUpdates(
        stack.clients,
        counts[places],
        {name: weighted_sum(t.cpu(), every) for name, t in summed.items()},
        found.loss.cpu()[places],
        nats=found.nats.double().cpu()[places],
        unsent=found.unsent.cpu()[places],
        steps={name: t[places] for name, t in steps.items()} if held_by_server else {},
    )
    message = store_client_state(message, POSTERIOR, found.posterior, private)
    if isinstance(model.context, ClientStateRefs):
        message = store_client_state(message, model.context.section, plus(sites, found.step), private)
    if isinstance(model.personal, ClientStateRefs):
        message = store_client_state(message, model.personal.section, found.own, private)
    return message
