"""A visit of VIRTUAL: a client divides its site out, trains, and says how its site changed.

cavity = server / site;  q = argmin of the tilted free energy;  new site = q / cavity;  step = share * (new - site)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...gaussians import PRECISION, PULL, Natural, gaussian_names, positive, raw_of
from ...server_state import Weights
from ...training.engine import Rows, Training, train
from ...training.execution_plan import resolve
from ...training.optimizers import along
from .tilted_posterior import MEAN, RAW, WEIGHT, Tilted

_LEAST_SITE = 1e-4  # precision, so that a site that says nothing yet can learn
_LEAST_CAVITY = 1e-6  # precision; only cavities that nothing guards come near


@dataclass(frozen=True)
class SiteTraining:
    """How clients are visited: `kl_weight` is the paper's kappa, `deviation` that of a weight nobody has learned of yet.

    `prior_precision` is that of clients' own columns, which have no cavity. `upload` is the share of the weights of which a
    client sends a step, the largest; the other steps it takes back.
    """

    kl_weight: float
    deviation: float
    prior_precision: float = 1.0
    upload: float = 1.0


class SiteUpdate(NamedTuple):
    """Of every client of a stack, whose axis comes first; what a Tilted network answers with is `before` or `after`."""

    posterior: dict[str, Tensor]  # a Variational network's weights, all of them, whatever is sent
    step: dict[str, Tensor]  # of the site, natural parameters in float64 of float32's digits; 0 where none is sent
    points: dict[str, Tensor]  # step of what is no Gaussian, float64
    nats: Tensor  # (clients,), divergence of the posterior from the cavity
    loss: Tensor  # (clients,), mean in training
    unsent: Tensor  # (clients,) int64: of how many weights no step is sent
    own: dict[str, Tensor]  # the column's weights as they are trained: means, and "….raw"
    before: dict[str, Tensor]  # weights in training
    after: dict[str, Tensor]
    context: dict[str, Tensor]  # of both


def train_site(
    network: Tilted,
    server: Weights,
    sites: Weights,
    own: Weights,
    start: Weights | None,
    rows: Rows,
    training: Training,
    streams: Tensor,
    share: Tensor,
    how: SiteTraining,
) -> SiteUpdate:
    """One visit of all clients of a stack: everything has the clients' axis first.

    server: natural parameters and plain weights; sites: natural parameters; own: what a client has of its own column, means
    and "….raw"; start: the means from which to learn while the server knows nothing, else its own. share: (clients,), what
    of each step counts; of a client without rows nothing does.
    """
    names = sorted(gaussian_names(server, PULL))
    cavities = {name: _cavity(Natural.of(server, name), Natural.of(sites, name)) for name in names}
    points = {name: w for name, w in server.items() if not name.endswith((PULL, PRECISION))}
    weights = _first_weights(network, server, sites, {**points, **own}, start, cavities, how.deviation)
    context = _context(cavities, own, rows, how)
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
    return SiteUpdate(
        posterior=posterior,
        step=kept,
        points=moved,
        nats=nats,
        loss=trained.loss,
        unsent=unsent,
        own={name: trained.weights[name] for name in own},
        before=weights,
        after=trained.weights,
        context=context,
    )


def _first_weights(
    network: Tilted,
    server: Weights,
    sites: Weights,
    plain: Weights,
    start: Weights | None,
    cavities: Mapping[str, Natural],
    deviation: float,
) -> dict[str, Tensor]:
    """What training starts from, names sorted: `plain` as it is, means, and what deviations are trained as."""
    weights = {**plain}
    for name, cavity in cavities.items():
        told, site = Natural.of(server, name), Natural.of(sites, name)
        weights[name] = (told.mean if start is None else start[name]).to(torch.float32)
        weights[name + RAW] = _raw(network, told, site, cavity, deviation, start is None)
    return dict(sorted(weights.items()))


def _context(cavities: Mapping[str, Natural], own: Weights, rows: Rows, how: SiteTraining) -> dict[str, Tensor]:
    """What a Tilted network costs beside its weights: cavities, of a column's weights the prior, and the weight of a nat."""
    context = {WEIGHT: how.kl_weight / rows.counts.clamp_min(1).to(torch.float32)}
    for name, cavity in cavities.items():
        context |= {name + MEAN: cavity.mean.float(), name + PRECISION: cavity.precision.float()}
    for name in gaussian_names(own, RAW):
        prior = torch.full_like(own[name], how.prior_precision)
        context |= {name + MEAN: torch.zeros_like(prior), name + PRECISION: prior}
    return context


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
