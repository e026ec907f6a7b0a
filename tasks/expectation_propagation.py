"""Each client of a cohort is visited: it divides its site out of what the server knows, trains, and tells what changed.

Update the server's posterior by the sites that clients send, and remove the sites of clients that leave for good.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from models.client_model import Model
from models.gaussians import PRECISION, plus
from models.networks.wrappers.ep_update import SiteTraining, SiteUpdate, train_site
from models.networks.wrappers.tilted_posterior import Tilted
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Training, broadcast_weights
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack
from tasks.evaluate import validation_losses
from tasks.execution.load_client_data import load_client_state, load_stacks, load_streams
from tasks.execution.task_types import server_step, step
from tasks.local_train import shares_of, store_client_state, weighted_sum
from tasks.messages.update_messages import SiteRemovals, SiteUpdates

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


_HALVINGS = 10


@server_step
def absorb_sites(messages: Sequence[SiteUpdates] | Sequence[SiteRemovals], known: Weights) -> dict[str, Tensor]:
    """What the server knows, with every step added: natural parameters, and plain weights with theirs in float64."""
    after = {name: now.double() for name, now in known.items()}
    for message in messages:
        after |= {name: after[name] + step for name, step in message.sums.items()}
    return {name: after[name].to(now.dtype) for name, now in known.items()}


class Absorbed(NamedTuple):
    """What the server knows and the sites that it holds, (clients, ...), after steps of which `damping` was taken."""

    known: dict[str, Tensor]
    sites: dict[str, Tensor]
    damping: float


@server_step
def absorb_apart(
    messages: Sequence[SiteUpdates],
    known: Weights,
    sites: Weights,
    place: Mapping[str, int],
    least: float | None,
    kept: float = 1.0,
) -> Absorbed:
    """`absorb` where the server holds the sites, which may have negative precisions.

    place: client to its place in `sites`. `least`: of the steps the largest share of 1, 1/2 ... 1/1024 is taken that leaves
    the server, and the server without any one site, that precision everywhere; none of them if there is no such share. None
    takes them whole. `kept`: the share of its step by which a site changes; other than 1 it breaks s = prior * sites.
    """
    steps = {name: torch.zeros_like(site) for name, site in sites.items()}
    points = {name: now.double() for name, now in known.items() if name not in sites}
    for message in messages:
        at = [place[client] for client in message.clients]
        for name, change in message.steps.items():
            steps[name][at] += change
        points = {name: now + message.sums[name] for name, now in points.items()}
    damping = 1.0 if least is None else _admissible(known, sites, steps, least)
    if not damping:
        return Absorbed(dict(known), dict(sites), 0.0)
    after = {name: known[name] + damping * step.sum(0) for name, step in steps.items()}
    after |= {
        name: (known[name] + damping * (now - known[name].double())).to(known[name].dtype)
        for name, now in points.items()
    }
    return Absorbed(after, {name: site + kept * damping * steps[name] for name, site in sites.items()}, damping)


@server_step
def divide_out(
    clients: Sequence[str], known: Weights, sites: Weights, place: Mapping[str, int], least: float | None
) -> Absorbed:
    """What the server knows without the sites of these clients, where it holds them; `place` and `least` as above.

    What cannot be taken out stays with the site.
    """
    steps = {name: torch.zeros_like(site) for name, site in sites.items()}
    at = [place[client] for client in clients]
    for name, change in steps.items():
        change[at] = -sites[name][at]
    damping = 1.0 if least is None else _admissible(known, sites, steps, least)
    after = {name: known[name] + damping * step.sum(0) for name, step in steps.items()}
    left = {name: site + damping * steps[name] for name, site in sites.items()}
    return Absorbed({**known, **after}, left, damping)


def _admissible(known: Weights, sites: Weights, steps: Weights, least: float) -> float:
    """The largest share of the steps after which every precision is at least so much; 0 if none is."""
    for halving in range(_HALVINGS + 1):
        share = 2.0**-halving
        if all(
            _lowest(known[name], sites[name], steps[name], share) >= least for name in sites if name.endswith(PRECISION)
        ):
            return share
    return 0.0


def _lowest(known: Tensor, sites: Tensor, steps: Tensor, share: float) -> float:
    """Of the server's precision and of all cavities'."""
    after = known + share * steps.sum(0)
    cavities = after - sites - share * steps
    return min(float(after.min()), float(cavities.min()))


@step
def remove_sites(cohort: Cohort, model: Model, private: ClientStore, device: str = "cpu") -> list[SiteRemovals]:
    """One message a stack; the model's context is where its clients keep their sites. No rows are opened."""
    messages = []
    for stack in cohort.stacks:
        sites = load_client_state(cast(ClientStateRefs, model.context), stack, private, device)
        count = len(stack.clients)
        back = -torch.ones(count, dtype=torch.float64)
        sums = {name: weighted_sum(site[:count].cpu(), back) for name, site in sites.items()}
        messages.append(SiteRemovals(stack.clients, sums))
    return messages
