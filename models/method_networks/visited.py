"""A visit of VIRTUAL: a client divides its site out, trains, and says how its site changed.

cavity = server / site;  q = argmin of the tilted free energy;  new site = q / cavity;  step = share * (new - site)
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..gaussians import PRECISION, PULL, Natural, gaussian_names, positive, raw_of
from ..state import Weights
from ..training.engine import Rows, Training, train
from ..training.optimisers import along
from ..training.plan import resolve
from .tilted import MEAN, RAW, WEIGHT, Tilted

_LEAST_SITE = 1e-4  # precision, so that a site that says nothing yet can learn
_LEAST_CAVITY = 1e-6  # precision; only cavities that nothing guards come near


@dataclass(frozen=True)
class Visiting:
    """How clients are visited: `kl_weight` is the paper's kappa, `deviation` that of a weight nobody has learned of yet.

    `prior_precision` is that of clients' own columns, which have no cavity. `upload` is the share of the weights of which a
    client sends a step, the largest; the other steps it takes back.
    """

    kl_weight: float
    deviation: float
    prior_precision: float = 1.0
    upload: float = 1.0


class Visit(NamedTuple):
    """Of every client of a stack: its posterior as a Variational network's weights, the step of its site in natural
    parameters, float64 of float32's digits, the step of what is no Gaussian, the divergence of posterior and cavity in nats,
    the mean training loss, of how many weights no step is sent, and its own column's as it is trained; and what a Tilted
    network answers with before and after: weights, and the context of both.
    """

    posterior: dict[str, Tensor]
    step: dict[str, Tensor]
    points: dict[str, Tensor]
    nats: Tensor
    loss: Tensor
    unsent: Tensor
    own: dict[str, Tensor]
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    context: dict[str, Tensor]


def visited(
    network: Tilted,
    server: Weights,
    sites: Weights,
    own: Weights,
    start: Weights | None,
    rows: Rows,
    training: Training,
    streams: Tensor,
    share: Tensor,
    how: Visiting,
) -> Visit:
    """One visit of all clients of a stack: everything has the clients' axis first.

    server: natural parameters and plain weights; sites: natural parameters; own: what a client has of its own column, means
    and "….raw"; start: the means from which to learn while the server knows nothing, else its own. share: (clients,), what
    of each step counts; of a client without rows nothing does.
    """
    names = sorted(gaussian_names(server, PULL))
    cavities = {name: _cavity(Natural.of(server, name), Natural.of(sites, name)) for name in names}
    points = {name: w for name, w in server.items() if not name.endswith((PULL, PRECISION))}
    weights, context = {**points, **own}, {WEIGHT: how.kl_weight / rows.counts.clamp_min(1).to(torch.float32)}
    for name in names:
        told, site, cavity = Natural.of(server, name), Natural.of(sites, name), cavities[name]
        weights[name] = (told.mean if start is None else start[name]).to(torch.float32)
        weights[name + RAW] = _raw(network, told, site, cavity, how.deviation, start is None)
        context |= {name + MEAN: cavity.mean.float(), name + PRECISION: cavity.precision.float()}
    for name in gaussian_names(own, RAW):
        prior = torch.full_like(own[name], how.prior_precision)
        context |= {name + MEAN: torch.zeros_like(prior), name + PRECISION: prior}
    weights = dict(sorted(weights.items()))
    trained = train(network, weights, context, rows, training, streams)
    of_stack, of_one = network.posterior_stack, network.posterior
    posterior, nats = resolve(network, training.engine).run(of_stack, of_one, trained.weights, context)
    share = share.double() * (rows.counts > 0)
    step: dict[str, Tensor] = {}
    for name in names:
        site, cavity = Natural.of(sites, name), cavities[name]
        new = _site(network, trained.weights[name], trained.weights[name + RAW], cavity)
        parts = Natural(*(along(share, a) * (a - b) for a, b in zip(new, site, strict=True)))
        step |= parts.named(name)
    kept, unsent = _largest(step, server, names, how.upload)
    moved = {name: along(share, w) * (trained.weights[name] - w).double() for name, w in points.items()}
    column = {name: trained.weights[name] for name in own}
    answers = (weights, trained.weights, context)
    return Visit(posterior, kept, moved, nats, trained.loss, unsent, column, *answers)


def _cavity(told: Natural, site: Natural) -> Natural:
    return Natural(told.pull - site.pull, (told.precision - site.precision).clamp_min(_LEAST_CAVITY))


def _raw(network: Tilted, told: Natural, site: Natural, cavity: Natural, deviation: float, informed: bool) -> Tensor:
    """Where training starts: at the server's deviation, or at one that can be trained while it has only the prior's."""
    fresh = torch.full_like(told.precision, deviation**-2)
    if network.site == "nonneg":
        precision = torch.maximum(site.precision, fresh - cavity.precision).clamp_min(_LEAST_SITE)
    else:
        precision = told.precision.clamp_min(_LEAST_CAVITY) if informed else fresh
    return raw_of(precision.rsqrt()).to(torch.float32)


def _site(network: Tilted, mean: Tensor, raw: Tensor, cavity: Natural) -> Natural:
    """posterior / cavity; `nonneg` knows the site's precision, of which a difference in float32 would leave little."""
    precision = positive(raw.double()) ** -2
    if network.site != "nonneg":
        precision = precision - cavity.precision
    if network.site == "clipped":  # with the trained mean: the precision alone would move it
        precision = precision.clamp_min(0)
    return Natural((cavity.precision + precision) * mean.double() - cavity.pull, precision)


def _largest(step: Weights, server: Weights, names: list[str], upload: float) -> tuple[dict[str, Tensor], Tensor]:
    """The steps that are sent, rounded to float32 as they travel, others 0; and of how many weights of a client none is.

    Steps are compared by what they move a mean in units of its deviation, |step of the pull| / √precision.
    """
    steps = {name: t.float().double() for name, t in step.items()}
    clients = len(next(iter(steps.values())))
    total = sum(server[name + PULL][0].numel() for name in names)
    if upload == 1:
        return steps, torch.zeros(clients, dtype=torch.int64)
    sizes = {n: steps[n + PULL].abs() * server[n + PRECISION].clamp_min(_LEAST_CAVITY).rsqrt() for n in names}
    count = max(1, round(upload * total))
    flat = torch.cat([sizes[name].flatten(1) for name in names], 1)
    limit = flat.topk(count, 1).values[:, -1]
    kept = {name: sizes[name] >= along(limit, sizes[name]) for name in names}
    steps = {n + part: steps[n + part].where(kept[n], 0.0) for n in names for part in (PULL, PRECISION)}
    return steps, total - torch.stack([mask.flatten(1).sum(1) for mask in kept.values()]).sum(0)
