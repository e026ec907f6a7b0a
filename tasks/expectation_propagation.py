"""Run the steps of expectation propagation: clients update their sites, and the server adds or removes sites."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from models.client_model import Model
from models.gaussians import PRECISION, plus
from models.networks.wrappers.posterior_update import SiteTraining, SiteUpdate, Tilted, train_site
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Training, broadcast_weights
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack
from tasks.evaluate import ValidationLosses
from tasks.execution.load_client_data import load_client_state, load_stacks, load_streams
from tasks.execution.steps import ByClient, server_step, step
from tasks.local_train import shares_of, store_client_state, weighted_sum
from tasks.messages.round_messages import SiteRemovals, SiteUpdates

POSTERIOR = "posterior"
"""The private section in which a client stores its latest posterior."""


@step
def update_site(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    how: SiteTraining,
    shares: ByClient[float],
    start: Weights | None = None,
    again: int = 0,
    device: str = "cpu",
    validate: bool = False,
) -> list[SiteUpdates]:
    """Divide each client's site out of the server's posterior, train, and send the site's change; one message per stack.

    The client stores its posterior, and its site unless the server holds the sites. The model's shared weights are the
    server's posterior, its context the sites, and its personal weights a client's own column.

    Args:
        shares: The weight of each client's step.
        start: Means to train from before the server has a posterior, the same for all clients.
        again: How many earlier visits of this round the clients have had.
        validate: As in `local_train`, with the server's posterior and the client's.
    """
    messages = []
    losses = ValidationLosses(cohort.silos, model.network, training, private, device, validate)
    purpose = f"visit {again}" if again else "local_train"  # the batches of FedAvg
    for stack, rows, weights, sites in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, purpose, device)
        server = {name: weights[name] for name in model.shared}
        personal = {name: w for name, w in weights.items() if name not in server}
        begin = None if start is None else broadcast_weights({n: t.to(device) for n, t in start.items()}, stack.size)
        share = shares_of(stack.clients, shares, stack.size).to(device)
        network = cast(Tilted, model.network)
        site_update = train_site(network, server, sites, personal, begin, rows, training, streams, share, how)
        message = _store_and_report(stack, model, site_update, rows.counts.cpu(), sites, private)
        message = losses.add(
            message, stack, before=site_update.before, after=site_update.after, context=site_update.context
        )
        messages.append(message)
    return messages


def _store_and_report(
    stack: Stack, model: Model, site_update: SiteUpdate, counts: Tensor, sites: Weights, private: ClientStore
) -> SiteUpdates:
    """Let the clients of a stack store their private results, and return the stack's message.

    `counts` (stack size,) holds the clients' training rows.
    """
    clients = slice(len(stack.clients))
    steps = {name: t.cpu() for name, t in site_update.step.items()}
    is_client = torch.ones(len(counts), dtype=torch.float64)
    is_client[len(stack.clients) :] = 0  # padding
    held_by_server = not isinstance(model.context, ClientStateRefs)
    summed = {**site_update.points, **({} if held_by_server else steps)}
    message = SiteUpdates(
        stack.clients,
        counts[clients],
        {name: weighted_sum(t.cpu(), is_client) for name, t in summed.items()},
        site_update.loss.cpu()[clients],
        nats=site_update.nats.double().cpu()[clients],
        unsent=site_update.unsent.cpu()[clients],
        steps={name: t[clients] for name, t in steps.items()} if held_by_server else {},
    )
    message = store_client_state(message, POSTERIOR, site_update.posterior, private)
    if isinstance(model.context, ClientStateRefs):
        message = store_client_state(message, model.context.section, plus(sites, site_update.step), private, "sites")
    if isinstance(model.personal, ClientStateRefs):
        message = store_client_state(message, model.personal.section, site_update.own, private)
    return message


_HALVINGS = 10


@server_step
def absorb_sites(messages: Sequence[SiteUpdates] | Sequence[SiteRemovals], server: Weights) -> dict[str, Tensor]:
    """Add every step to the server's natural parameters, and every change of plain weights to its weights, in float64."""
    after = {name: tensor.double() for name, tensor in server.items()}
    for message in messages:
        after |= {name: after[name] + step for name, step in message.sums.items()}
    return {name: after[name].to(tensor.dtype) for name, tensor in server.items()}


class AbsorbedSites(NamedTuple):
    """The server's posterior and the sites, (clients, ...), after the share `damping` of the steps was taken."""

    known: dict[str, Tensor]
    sites: dict[str, Tensor]
    damping: float


@server_step
def absorb_apart(
    messages: Sequence[SiteUpdates],
    server: Weights,
    sites: Weights,
    index_of: Mapping[str, int],
    min_precision: float | None,
    site_share: float = 1.0,
) -> AbsorbedSites:
    """Add the steps if the server holds the sites, (clients, ...), which may have negative precisions.

    Of the shares 1, 1/2 ... 1/1024, the largest is taken that leaves at least `min_precision` everywhere: in the
    posterior, and in the posterior without any one site. If there is none, no step is taken. If
    `min_precision` is None, the steps are taken whole.

    `index_of` is each client's index in `sites`. A site changes by `site_share` of its step; other than 1 it breaks s =
    prior * sites.
    """
    steps = {name: torch.zeros_like(site) for name, site in sites.items()}
    points = {name: value.double() for name, value in server.items() if name not in sites}
    for message in messages:
        indices = [index_of[client] for client in message.clients]
        for name, change in message.steps.items():
            steps[name][indices] += change
        points = {name: value + message.sums[name] for name, value in points.items()}
    damping = 1.0 if min_precision is None else _admissible(server, sites, steps, min_precision)
    if not damping:
        return AbsorbedSites(dict(server), dict(sites), 0.0)
    after = {name: server[name] + damping * step.sum(0) for name, step in steps.items()}
    after |= {
        name: (server[name] + damping * (value - server[name].double())).to(server[name].dtype)
        for name, value in points.items()
    }
    moved = {name: site + site_share * damping * steps[name] for name, site in sites.items()}
    return AbsorbedSites(after, moved, damping)


@server_step
def divide_out(
    clients: Sequence[str], server: Weights, sites: Weights, index_of: Mapping[str, int], min_precision: float | None
) -> AbsorbedSites:
    """Remove the sites of these clients from the posterior, if the server holds the sites.

    `index_of` and `min_precision` are as in `absorb_apart`. A share that cannot be removed stays with the site.
    """
    steps = {name: torch.zeros_like(site) for name, site in sites.items()}
    indices = [index_of[client] for client in clients]
    for name, change in steps.items():
        change[indices] = -sites[name][indices]
    damping = 1.0 if min_precision is None else _admissible(server, sites, steps, min_precision)
    after = {name: server[name] + damping * step.sum(0) for name, step in steps.items()}
    remaining = {name: site + damping * steps[name] for name, site in sites.items()}
    return AbsorbedSites({**server, **after}, remaining, damping)


def _admissible(server: Weights, sites: Weights, steps: Weights, min_precision: float) -> float:
    """Return the largest share of the steps after which every precision is at least `min_precision`; 0 if there is none."""
    for halving in range(_HALVINGS + 1):
        share = 2.0**-halving
        if all(
            _min_precision(server[name], sites[name], steps[name], share) >= min_precision
            for name in sites
            if name.endswith(PRECISION)
        ):
            return share
    return 0.0


def _min_precision(server: Tensor, sites: Tensor, steps: Tensor, share: float) -> float:
    """Return the lowest precision of the server's posterior and of all cavities."""
    after = server + share * steps.sum(0)
    cavities = after - sites - share * steps
    return min(float(after.min()), float(cavities.min()))


@step
def remove_sites(cohort: Cohort, model: Model, private: ClientStore, device: str = "cpu") -> list[SiteRemovals]:
    """Send the negative sum of the clients' sites, one message per stack; no rows are opened.

    The model's context refers to the sites that the clients store.
    """
    messages = []
    for stack in cohort.stacks:
        sites = load_client_state(cast(ClientStateRefs, model.context), stack, private, device, "sites")
        count = len(stack.clients)
        minus_one = -torch.ones(count, dtype=torch.float64)
        sums = {name: weighted_sum(site[:count].cpu(), minus_one) for name, site in sites.items()}
        messages.append(SiteRemovals(stack.clients, sums))
    return messages
