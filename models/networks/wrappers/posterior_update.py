"""A client's expectation-propagation update in VIRTUAL: remove its site, train, and send how the site changed.

cavity = server / site; q = argmin of the tilted free energy; new site = q / cavity; step = share * (new - site)

The tilted posterior is the client's likelihood times the cavity, which represents all other clients' information. The
equations of VIRTUAL (Corinzia et al. 2019) are restored in docs/methods/virtual.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ...gaussians import DEVIATION, PRECISION, PULL, Natural, Noisy, divergence, gaussian_names, inverse_softplus
from ...server_state import Weights
from ...training.engine import Rows, Training, train
from ...training.execution_plan import resolve
from ...training.objectives import Batch, ClientBatch, Objective
from ...training.optimizers import expand_clients
from ..network import register
from ..network_abilities import BatchedNetwork
from .variational import GaussianWrapper, is_gaussian, predict

RAW = ".raw"
"""Suffix of the name of the trained parameter of a deviation."""

MEAN = ".mean"
"""Suffix of the name of a cavity's mean in the context, next to its precision."""

WEIGHT = "divergence.weight"
"""Name in the context of the weight of a nat of divergence relative to the mean loss of a row: kl_weight / rows."""

Site = Literal["nonneg", "free", "clipped"]
"""How a client's factor may change precision.

`nonneg`: it only adds precision, by construction. `free`: it may also remove precision. `clipped`: removed precision is
clipped at none.
"""

_MIN_SITE = 1e-4  # precision, so that an empty site can learn
_MIN_CAVITY = 1e-6  # precision; only unguarded cavities come near it


@register("tilted")
@dataclass(frozen=True)
class Tilted(BatchedNetwork, GaussianWrapper):
    """The inner network with means under its weights' names, and the trained parameters of deviations: "….raw".

    The cavity, a precision and mean per weight, is context. With `nonneg`, the posterior's precision is the cavity's
    plus softplus(raw)^-2; otherwise it is softplus(raw)^-2. The cost is the objective of one noisy pass plus the
    divergence from the cavity, in closed form.
    """

    site: Site = "nonneg"
    draws: int = 10

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the means; raw is 0."""
        means = super().init(stream)
        return {**means, **{name + RAW: w * 0 for name, w in means.items() if is_gaussian(name, self.bias)}}

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Predict like Variational with the current posterior."""
        means, variances, _ = self._moments(weights, context)
        return predict(self.inner.apply, means, variances, context, x, stream, self.noise, self.draws, False)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """Predict like Variational with the current posteriors of a stack."""
        means, variances, _ = self._moments_stack(weights, context)
        return predict(self.inner.apply_stack, means, variances, context, x, streams, self.noise, self.draws, True)

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the inner network's loss of one noisy pass plus the weighted divergence: ()."""
        means, variances, nats = self._moments(weights, context)
        loss, _ = self.inner.cost(Noisy(means, variances, batch.stream, self.noise), context, batch, objective)
        return loss + context[WEIGHT] * nats, {}

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        means, variances, nats = self._moments_stack(weights, context)
        loss, _ = self.inner.cost_stack(Noisy(means, variances, batch.streams, self.noise), context, batch, objective)
        return loss + context[WEIGHT] * nats, {}

    def posterior(self, weights: Weights, context: Weights) -> tuple[dict[str, Tensor], Tensor]:
        """Return one client's posterior as a Variational network's weights, and its divergence from the cavity.

        The divergence is in nats, ().
        """
        return _variational_weights(*self._moments(weights, context))

    def posterior_stack(self, weights: Weights, context: Weights) -> tuple[dict[str, Tensor], Tensor]:
        """Run `posterior` for a stack, with divergences (clients,)."""
        return _variational_weights(*self._moments_stack(weights, context))

    def _moments(self, weights: Weights, context: Weights) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """Return one client's means with non-Gaussian weights, variances, and the divergence from the cavity.

        The divergence is in nats, ().
        """
        means = {name: w for name, w in weights.items() if not name.endswith(RAW)}
        variances, nats = {}, []
        for name in sorted(gaussian_names(weights, RAW)):
            variances[name] = softplus(weights[name + RAW]) ** 2
            if self.site == "nonneg":
                variances[name] = variances[name] / (1 + context[name + PRECISION] * variances[name])
            cavity = context[name + MEAN], context[name + PRECISION]
            nats.append(divergence(means[name], variances[name], *cavity).sum())
        return means, variances, sum(nats[1:], nats[0])

    def _moments_stack(self, weights: Weights, context: Weights) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """Run `_moments` for a stack, with divergences (clients,)."""
        means = {name: w for name, w in weights.items() if not name.endswith(RAW)}
        variances, nats = {}, []
        for name in sorted(gaussian_names(weights, RAW)):
            cavity = context[name + MEAN], context[name + PRECISION]
            variances[name], kl = _VarianceAndDivergence.apply(
                means[name], weights[name + RAW], *cavity, self.site == "nonneg"
            )
            nats.append(kl)
        return means, variances, sum(nats[1:], nats[0])


def _variational_weights(means: Weights, variances: Weights, nats: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    return {**means, **{name + DEVIATION: variance.sqrt() for name, variance in variances.items()}}, nats


class _VarianceAndDivergence(torch.autograd.Function):
    """Variance and divergence of one weight as in `Tilted._moments`, with hand-written gradients.

    A step on 10 clients' 89,400 weights takes a third of the time of autograd's gradients. The time is memory traffic:
    new memory costs three times as much as overwritten memory, so operations are in place where possible.
    """

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, raw: Tensor, cavity: Tensor, precision: Tensor, nonneg: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the variance (clients, ...) and the divergence (clients,)."""
        deviation = softplus(raw)
        variance = deviation.square()
        shrinkage = torch.addcmul(variance.new_ones(()), precision, variance).reciprocal_() if nonneg else None
        if shrinkage is not None:
            variance.mul_(shrinkage)
        ratio, offset = precision * variance, mean - cavity
        pull = precision * offset
        nats = ratio.log()
        torch.sub(ratio, nats, out=nats).sub_(1).addcmul_(pull, offset)
        ctx.save_for_backward(raw, deviation, variance, shrinkage, pull, precision)
        return variance, nats.flatten(1).sum(1) / 2

    @staticmethod
    def backward(ctx: Any, grad_variance: Tensor, grad_nats: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the mean and of raw; sigmoid(raw) is the derivative of softplus."""
        raw, deviation, variance, shrinkage, pull, precision = ctx.saved_tensors
        weight = grad_nats.view(-1, *[1] * (pull.dim() - 1))
        gradient = torch.addcmul(grad_variance, weight / 2, precision).addcdiv_(weight / 2, variance, value=-1)
        gradient.mul_(raw.sigmoid()).mul_(deviation).mul_(2)
        if shrinkage is not None:
            gradient.mul_(shrinkage).mul_(shrinkage)
        return pull * weight, gradient, None, None, None


@dataclass(frozen=True)
class SiteTraining:
    """Settings of a client's update.

    `kl_weight` is the paper's kappa, and `deviation` that of a weight without any information yet. `prior_precision` is
    the prior of clients' own columns, which have no cavity. `upload` is the share of weights, those with the largest
    steps, that a client sends; it takes the other steps back.
    """

    kl_weight: float
    deviation: float
    prior_precision: float = 1.0
    upload: float = 1.0


class SiteUpdate(NamedTuple):
    """The updates of a stack's clients, with a leading client axis; a Tilted network computes with `before` or `after`."""

    posterior: dict[str, Tensor]  # all weights of a Variational network, sent or not
    step: dict[str, Tensor]  # of the site: natural parameters in float64, rounded to float32; 0 where not sent
    points: dict[str, Tensor]  # steps of weights that are not Gaussian, float64
    nats: Tensor  # (clients,), divergence of the posterior from the cavity
    loss: Tensor  # (clients,), mean training loss
    unsent: Tensor  # (clients,) int64: count of weights whose step is not sent
    own: dict[str, Tensor]  # the column's trained weights: means, and "….raw"
    before: dict[str, Tensor]  # weights at the start of training
    after: dict[str, Tensor]  # weights at its end
    context: dict[str, Tensor]  # the context of both


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
    """Update the sites of all clients of a stack; all arguments have a leading client axis.

    Args:
        network: The tilted network.
        server: The server's natural parameters and plain weights.
        sites: The clients' natural parameters.
        own: The weights of the clients' own columns, means and "….raw".
        start: Initial means while the server has no information; otherwise None, and training starts from the
            server's means.
        rows: The clients' rows.
        training: The local training.
        streams: Random streams, (clients,).
        share: (clients,), the factor of each step; it is 0 for clients without rows.
        how: Settings of the update.
    """
    names = sorted(gaussian_names(server, PULL))
    # the prior of each client's training is the posterior without its own site, or its rows would count twice
    cavities = {name: _cavity(Natural.of(server, name), Natural.of(sites, name)) for name in names}
    plain = {name: w for name, w in server.items() if not name.endswith((PULL, PRECISION))}
    weights = _first_weights(network, server, sites, {**plain, **own}, start, cavities, how.deviation)
    context = _context(cavities, own, rows, how)
    trained = train(network, weights, context, rows, training, streams)
    plan = resolve(network, training.engine)
    posterior, nats = plan.run(network.posterior_stack, network.posterior, trained.weights, context)
    # a client without rows keeps its site: its step would be where the optimiser started
    share = share.double() * (rows.counts > 0)
    step: dict[str, Tensor] = {}
    for name in names:
        site, cavity = Natural.of(sites, name), cavities[name]
        new = _new_site(network, trained.weights[name], trained.weights[name + RAW], cavity)
        difference = Natural(*(expand_clients(share, a) * (a - b) for a, b in zip(new, site, strict=True)))
        step |= difference.named(name)
    sent, unsent = _largest(step, server, names, how.upload)
    plain_steps = {name: expand_clients(share, w) * (trained.weights[name] - w).double() for name, w in plain.items()}
    return SiteUpdate(
        posterior=posterior,
        step=sent,
        points=plain_steps,
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
    """Assemble initial training weights, sorted by name: `plain` unchanged, means, and raw deviations."""
    weights = {**plain}
    for name, cavity in cavities.items():
        posterior, site = Natural.of(server, name), Natural.of(sites, name)
        weights[name] = (posterior.mean if start is None else start[name]).to(torch.float32)
        weights[name + RAW] = _initial_raw(network, posterior, site, cavity, deviation, start is None)
    return dict(sorted(weights.items()))


def _context(cavities: Mapping[str, Natural], own: Weights, rows: Rows, how: SiteTraining) -> dict[str, Tensor]:
    """Assemble the Tilted network's context: cavities, the prior of column weights, and the weight of a nat."""
    context = {WEIGHT: how.kl_weight / rows.counts.clamp_min(1).to(torch.float32)}
    for name, cavity in cavities.items():
        context |= {name + MEAN: cavity.mean.float(), name + PRECISION: cavity.precision.float()}
    for name in gaussian_names(own, RAW):
        prior = torch.full_like(own[name], how.prior_precision)
        context |= {name + MEAN: torch.zeros_like(prior), name + PRECISION: prior}
    return context


def _cavity(posterior: Natural, site: Natural) -> Natural:
    """Divide a client's site out of the server's posterior."""
    return Natural(posterior.pull - site.pull, (posterior.precision - site.precision).clamp_min(_MIN_CAVITY))


def _initial_raw(
    network: Tilted, posterior: Natural, site: Natural, cavity: Natural, deviation: float, informed: bool
) -> Tensor:
    """Return raw deviations to start from: the server's, or a trainable one while the server only has the prior."""
    fresh = torch.full_like(posterior.precision, deviation**-2)
    if network.site == "nonneg":
        precision = torch.maximum(site.precision, fresh - cavity.precision).clamp_min(_MIN_SITE)
    else:
        precision = posterior.precision.clamp_min(_MIN_CAVITY) if informed else fresh
    return inverse_softplus(precision.rsqrt()).to(torch.float32)


def _new_site(network: Tilted, mean: Tensor, raw: Tensor, cavity: Natural) -> Natural:
    """Compute the new site, posterior / cavity.

    `nonneg` trains the site's precision directly; a difference in float32 would lose most digits.
    """
    precision = softplus(raw.double()) ** -2
    if network.site != "nonneg":
        precision = precision - cavity.precision
    if network.site == "clipped":  # keeps the trained mean, which clipping only the precision would move
        precision = precision.clamp_min(0)
    return Natural((cavity.precision + precision) * mean.double() - cavity.pull, precision)


def _largest(step: Weights, server: Weights, names: list[str], upload: float) -> tuple[dict[str, Tensor], Tensor]:
    """Select the steps to send, rounded to float32, and set the others to 0.

    Also returns how many weights of each client are not sent. Steps are compared by how far they move a mean in units
    of its deviation, |step of the pull| / √precision.
    """
    steps = {name: t.float().double() for name, t in step.items()}
    clients = len(next(iter(steps.values())))
    total = sum(server[name + PULL][0].numel() for name in names)
    if upload == 1:
        return steps, torch.zeros(clients, dtype=torch.int64)
    sizes = {n: steps[n + PULL].abs() * server[n + PRECISION].clamp_min(_MIN_CAVITY).rsqrt() for n in names}
    count = max(1, round(upload * total))
    flat = torch.cat([sizes[name].flatten(1) for name in names], 1)
    limit = flat.topk(count, 1).values[:, -1]
    sent = {name: sizes[name] >= expand_clients(limit, sizes[name]) for name in names}
    steps = {n + part: steps[n + part].where(sent[n], 0.0) for n in names for part in (PULL, PRECISION)}
    return steps, total - torch.stack([mask.flatten(1).sum(1) for mask in sent.values()]).sum(0)
