"""A drawn representation: the divergence against torch's, the cost against the formula, and the plain network without it."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import distributions as laws
from torch.nn.functional import softplus

from models.metrics.uncertainty import predictive, uncertainty_metrics
from models.networks.mlp import MLP
from models.networks.network_factory import from_json, to_json
from models.networks.wrappers.domain_generalisation import DEVIATION, MEAN, SCALE, StochasticRepresentation, divergence
from models.training.engine import Rows, Training, per_example_metrics, train
from models.training.objectives import CrossEntropy, SquaredError
from models.training.optimizers import SGD, Adam

KINDS = ("batched", "sequential")


def plan(optimiser, engine="batched") -> Training:
    return Training(CrossEntropy(), optimiser, 2, 4, engine)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(some.integers(1, 6), some.integers(0, 10**6))
def test_the_divergence_is_torchs_is_never_negative_and_0_for_equal_laws(numbers, seed):
    mean, other_mean = draw(4, numbers, seed=seed), draw(4, numbers, seed=seed + 1)
    deviation, other = draw(4, numbers, seed=seed + 2).exp(), draw(4, numbers, seed=seed + 3).exp()
    found = divergence(mean, deviation, other_mean, other)
    theirs = laws.kl_divergence(laws.Normal(mean, deviation), laws.Normal(other_mean, other)).sum(-1)
    torch.testing.assert_close(found, theirs)
    assert (found >= 0).all()
    torch.testing.assert_close(divergence(mean, deviation, mean, deviation), torch.zeros(4, dtype=torch.float64))


def test_the_divergence_is_the_mean_log_ratio_of_draws():
    mean, deviation, other_mean, other = draw(3), draw(3, seed=1).exp(), draw(3, seed=2), draw(3, seed=3).exp()
    z = mean + deviation * draw(200_000, 3, seed=4)
    ratio = laws.Normal(mean, deviation).log_prob(z) - laws.Normal(other_mean, other).log_prob(z)
    expected, error = ratio.sum(1).mean(), ratio.sum(1).std() / 200_000**0.5
    assert abs(float(divergence(mean, deviation, other_mean, other) - expected)) < 4 * float(error)


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", [SGD(0.1, 0.9), Adam(0.01)])
def test_without_weights_and_draws_it_learns_as_the_inner_network_bit_for_bit(optimiser, inner, images):
    network = StochasticRepresentation(inner, 0, 0, sampled=False)
    weights, rows, streams = images(network, dtype=torch.float32)
    plain = {n: w for n, w in weights.items() if n in inner.init(torch.tensor(0))}
    ours, *_ = train(network, weights, {}, rows, plan(optimiser), streams)
    theirs, *_ = train(inner, plain, {}, rows, plan(optimiser), streams)
    for name, w in theirs.items():
        assert torch.equal(ours[name], w), name
    assert torch.equal(network.apply_stack(ours, {}, rows.x, None), inner.apply_stack(theirs, {}, rows.x, None))


@pytest.mark.parametrize("width", [None, 3])
def test_the_cost_is_the_papers_with_the_z_that_was_drawn(width, images, batch_of):
    """The last layer is the identity, so that the logits are z."""
    network = StochasticRepresentation(MLP(64, (3,), 3), 0.3, 0.2, width=width)
    weights, rows, streams = images(network)
    weights["dense1.weight"] = torch.eye(3, dtype=torch.float64).repeat(3, 1, 1)
    weights["dense1.bias"] = torch.zeros(3, 3, dtype=torch.float64)
    weights |= {MEAN: draw(3, 3, 3), DEVIATION: draw(3, 3, 3, seed=1), SCALE: torch.tensor([[0.7], [1.0], [-1.2]])}
    cost, _ = network.cost_stack(weights, {}, batch_of(rows, streams), CrossEntropy())
    drawn = network.apply_stack(weights, {}, rows.x, streams)
    for client, count in enumerate(rows.counts.tolist()):
        w = {n: t[client] for n, t in weights.items()}
        x, y, z = rows.x[client, :count].flatten(1), rows.y[client, :count], drawn[client, :count]
        read = torch.relu(x @ w["dense0.weight"] + w["dense0.bias"])
        mean = read @ w["centre.weight"] + w["centre.bias"] if width else read
        sigma = softplus(read @ w["spread.weight"] + w["spread.bias"])
        assert not torch.equal(z, mean)
        ours, near = (
            laws.Normal(w[SCALE] * mean, (w[SCALE] * sigma).abs()),
            laws.Normal(w[MEAN][y], softplus(w[DEVIATION][y])),
        )
        expected = torch.nn.functional.cross_entropy(z, y) + 0.3 * z.norm(dim=1).mean()
        expected = expected + 0.2 * laws.kl_divergence(ours, near).sum(1).mean()
        torch.testing.assert_close(cost[client], expected, rtol=1e-5, atol=1e-5)


def test_draws_have_the_rows_mean_and_deviation_and_are_rows_and_streams_own(images):
    network = StochasticRepresentation(MLP(64, (3,), 3))
    weights, _, streams = images(network)
    weights["dense1.weight"] = torch.eye(3, dtype=torch.float64).repeat(3, 1, 1)
    weights["dense1.bias"] = torch.zeros(3, 3, dtype=torch.float64)
    x = draw(3, 1, 8, 8).expand(3, 20_000, 8, 8)
    z, mean = network.apply_stack(weights, {}, x, streams), network.apply_stack(weights, {}, x[:, :1], None)
    deviation = softplus(mean @ weights["spread.weight"] + weights["spread.bias"][:, None])
    standard = (z - mean) / deviation
    assert standard.mean((1, 2)).abs().max() < 0.02
    assert (standard.std((1, 2)) - 1).abs().max() < 0.02
    assert abs(float((standard[0] * standard[1]).mean())) < 0.02
    assert not torch.equal(z[:, 0], z[:, 1])


def test_without_a_stream_it_is_the_inner_network(inner, images):
    network = StochasticRepresentation(inner)
    weights, rows, _ = images(network)
    assert torch.equal(network.apply_stack(weights, {}, rows.x, None), inner.apply_stack(weights, {}, rows.x, None))


def test_passes_draw_the_representation_also_without_dropout(inner, images):
    for sampled in (True, False):
        network = StochasticRepresentation(inner, sampled=sampled)
        weights, rows, streams = images(network)
        found = [predictive(network, weights, {}, rows.x, streams, 5, kind) for kind in KINDS]
        torch.testing.assert_close(found[0].p, found[1].p)
        disagreement = uncertainty_metrics(found[0], rows.y, rows.counts)["mutual_information"]
        assert bool((disagreement > 1e-6).all()) == sampled


def test_references_move_with_a_conditional_weight_only(inner, images):
    for weight in (0.0, 0.1):
        network = StochasticRepresentation(inner, 0.1, weight)
        weights, rows, streams = images(network)
        trained, *_ = train(network, weights, {}, rows, plan(SGD(0.05)), streams)
        assert all(torch.equal(trained[n], weights[n]) == (not weight) for n in network.personal)


def test_no_client_reads_another_clients_references(inner, images):
    network = StochasticRepresentation(inner)
    weights, rows, streams = images(network)
    expected, *_ = train(network, weights, {}, rows, plan(SGD(0.05)), streams)
    for client in range(3):
        others = torch.arange(3) != client
        poisoned = {n: weights[n].clone() for n in network.personal}
        for w in poisoned.values():
            w[others] = torch.nan
        found, *_ = train(network, {**weights, **poisoned}, {}, rows, plan(SGD(0.05)), streams)
        assert all(torch.equal(found[name][client], w[client]) for name, w in expected.items())


@pytest.mark.slow
@pytest.mark.parametrize("width", [None, 4])
def test_a_stack_learns_what_each_client_learns_alone(width, inner, images):
    network = StochasticRepresentation(replace(inner, dropout=0.3), width=width)
    weights, rows, streams = images(network)
    found, reference = (train(network, weights, {}, rows, plan(Adam(0.01), kind), streams)[0] for kind in KINDS)
    for name, w in reference.items():
        torch.testing.assert_close(found[name], w, rtol=0, atol=1e-7, msg=name)
    scored = [per_example_metrics(network, reference, {}, rows, CrossEntropy(), kind)["loss"] for kind in KINDS]
    torch.testing.assert_close(scored[0], scored[1], rtol=0, atol=1e-8)


def test_rows_of_a_regression_have_one_reference(images):
    network = StochasticRepresentation(MLP(64, (4,), 1))
    weights, rows, streams = images(network)
    assert weights[MEAN].shape == (3, 1, 4)
    rows = Rows(rows.x, rows.y.double(), rows.counts)
    trained, *_ = train(network, weights, {}, rows, replace(plan(SGD(0.01)), objective=SquaredError()), streams)
    assert not torch.equal(trained[MEAN], weights[MEAN])


def test_it_comes_back_from_its_json(inner):
    network = StochasticRepresentation(inner, width=5)
    assert from_json(json.loads(json.dumps(to_json(network)))) == network
