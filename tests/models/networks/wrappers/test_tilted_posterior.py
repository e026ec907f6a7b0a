"""A client's posterior in training: what it costs, and what it says, against torch.distributions."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from models.gaussians import DEVIATION, PRECISION, Noisy
from models.networks.mlp import MLP
from models.networks.wrappers.posterior_update import MEAN, RAW, WEIGHT, Tilted
from models.networks.wrappers.variational import Variational
from models.training.objectives import CrossEntropy

INNER = MLP(64, (6,), 3)
SITES = ("nonneg", "free", "clipped")
BIASES = ("point", "gaussian", "none")

each_site = pytest.mark.parametrize("site", SITES)


def at_work(network, images, weight=0.01):
    """Weights, a cavity for each of three clients, rows and streams, in float64."""
    weights, rows, streams = images(network)
    draw = torch.Generator().manual_seed(1)
    context = {WEIGHT: torch.tensor([weight, 2 * weight, 3 * weight]).double()}
    for name in [n.removesuffix(RAW) for n in weights if n.endswith(RAW)]:
        weights[name + RAW] = torch.randn(weights[name].shape, generator=draw).double() - 2
        context[name + MEAN] = torch.randn(weights[name].shape, generator=draw).double()
        context[name + PRECISION] = 5 * torch.rand(weights[name].shape, generator=draw).double()
    return weights, context, rows, streams


def law_of(weights, context, site):
    """Name to torch's own Gaussian, and to that of its cavity."""
    found = {}
    for name in [n.removesuffix(RAW) for n in weights if n.endswith(RAW)]:
        precision = softplus(weights[name + RAW]) ** -2
        cavity = context[name + PRECISION]
        precision = precision + cavity if site == "nonneg" else precision
        found[name] = Normal(weights[name], precision**-0.5), Normal(context[name + MEAN], cavity**-0.5)
    return found


@pytest.mark.parametrize("bias", BIASES)
@each_site
def test_its_posterior_is_the_trained_law_and_its_divergence_is_that_of_torch_distributions(site, bias, images):
    network = Tilted(INNER, "local", bias, site)
    weights, context, _, _ = at_work(network, images)
    laws = law_of(weights, context, site)
    assert laws.keys() == {n for n in weights if n.endswith(".weight") or (bias == "gaussian" and n.endswith(".bias"))}
    posterior, nats = network.posterior_stack(weights, context)
    expected = sum(kl_divergence(q, cavity).flatten(1).sum(1) for q, cavity in laws.values())
    torch.testing.assert_close(nats, expected, rtol=1e-6, atol=0)
    for name, (q, _) in laws.items():
        torch.testing.assert_close(posterior[name], q.mean)
        torch.testing.assert_close(posterior[name + DEVIATION], q.stddev)
    assert posterior.keys() == {n for n in weights if not n.endswith(RAW)} | {n + DEVIATION for n in laws}
    alone, own_nats = network.posterior(*({n: t[1] for n, t in part.items()} for part in (weights, context)))
    torch.testing.assert_close(own_nats, nats[1])
    for name, t in alone.items():
        torch.testing.assert_close(t, posterior[name][1])


@each_site
def test_at_its_cavity_a_posterior_does_not_diverge(site, images):
    network = Tilted(INNER, "local", "gaussian", site)
    weights, context, _, _ = at_work(network, images)
    for name in [n.removesuffix(RAW) for n in weights if n.endswith(RAW)]:
        weights[name] = context[name + MEAN]
        deviation = context[name + PRECISION] ** -0.5
        # a site of no precision is one whose deviation has no bound
        raw = torch.full_like(deviation, 1e6) if site == "nonneg" else deviation + torch.log(-torch.expm1(-deviation))
        weights[name + RAW] = raw
    _, nats = network.posterior_stack(weights, context)
    assert nats.abs().max() < 1e-6


@pytest.mark.parametrize("noise", ["local", "flipout", "naive"])
@each_site
def test_it_costs_the_loss_of_one_noisy_pass_and_the_weighed_divergence_once(site, noise, images, batch_of):
    network = Tilted(INNER, noise, "point", site)
    weights, context, rows, streams = at_work(network, images)
    cost, moved = network.cost_stack(weights, context, batch_of(rows, streams), CrossEntropy())
    assert moved == {}
    for at, count in enumerate(rows.counts):
        own, beside = ({n: t[at] for n, t in part.items()} for part in (weights, context))
        laws = law_of(own, beside, site)
        means = {n: w for n, w in own.items() if not n.endswith(RAW)}
        noisy = Noisy(means, {n: q.variance for n, (q, _) in laws.items()}, streams[at], noise)
        logits = network.inner.apply(noisy, {}, rows.x[at], streams[at])[:count]
        nats = sum(kl_divergence(q, cavity).sum() for q, cavity in laws.values())
        expected = cross_entropy(logits, rows.y[at, :count]) + beside[WEIGHT] * nats
        torch.testing.assert_close(cost[at], expected)


@each_site
def test_its_slopes_by_hand_are_those_of_finite_differences(site, images, batch_of):
    network = Tilted(MLP(64, (), 3), "local", "gaussian", site)
    weights, context, rows, streams = at_work(network, images, weight=0.1)
    batch = batch_of(rows, streams)
    small = {n: w.detach()[:, :2] if w.dim() == 3 else w.detach() for n, w in weights.items()}
    names = sorted(small)
    cut = {n: c[:, :2] if c.dim() == 3 else c for n, c in context.items()}
    network = Tilted(MLP(2, (), 3), "local", "gaussian", site)
    batch = batch._replace(x=batch.x.flatten(2)[..., :2])

    def cost(*parts):
        return network.cost_stack(dict(zip(names, parts, strict=True)), cut, batch, CrossEntropy())[0]

    assert torch.autograd.gradcheck(cost, [small[n].clone().requires_grad_() for n in names])


def test_a_nonnegative_site_leaves_every_precision_at_that_of_its_cavity_or_above(images):
    network = Tilted(INNER, site="nonneg")
    weights, context, _, _ = at_work(network, images)
    for raw in (-30.0, 0.0, 30.0, 1e4):
        moved = {n: torch.full_like(w, raw) if n.endswith(RAW) else w for n, w in weights.items()}
        posterior, nats = network.posterior_stack(moved, context)
        assert torch.isfinite(nats).all()
        for name in [n.removesuffix(RAW) for n in weights if n.endswith(RAW)]:
            assert (posterior[name + DEVIATION] ** -2 >= context[name + PRECISION] * (1 - 1e-12)).all()


@each_site
def test_without_a_stream_it_answers_as_the_variational_network_of_its_posterior(site, images):
    network = Tilted(INNER, "local", "point", site, draws=3)
    weights, context, rows, _ = at_work(network, images)
    posterior, _ = network.posterior_stack(weights, context)
    expected = Variational(INNER, "local", "point", draws=3).apply_stack(posterior, {}, rows.x, None)
    torch.testing.assert_close(network.apply_stack(weights, context, rows.x, None), expected)
