"""A network of Gaussian weights answers with the mean over draws of them, wherever it is asked."""

from dataclasses import replace

import pytest
import torch

from models.gaussians import DEVIATION, Noisy
from models.metrics.uncertainty import predictive
from models.networks.cnn import CNN
from models.networks.exported_network import ExportedModel
from models.networks.mlp import MLP
from models.networks.wrappers.variational import Variational, split_deviations
from models.prng import fold_in, server_stream
from models.training.engine import broadcast_weights, per_example_metrics
from models.training.execution_plan import forms
from models.training.objectives import CrossEntropy, SquaredError

INNER = {
    "mlp": MLP(64, (6,), 3, 0.3),
    "cnn": CNN((8, 8), (3, 4), (6,), 3, kernel=3, padding=True, dropout=0.3),
}
INIT = server_stream(0, 0, "init")


@pytest.fixture(params=INNER.values(), ids=INNER)
def network(request):
    """Wide laws, so that draws matter."""
    return Variational(request.param, bias="gaussian", draws=4, deviation=0.3)


def drawn(weights, number):
    """Draw number `number` of the weights, the same at every call."""
    means, variances = split_deviations(weights)
    return dict(Noisy(means, variances, fold_in(server_stream(0, 0, "prediction"), number), "naive"))


def mean_of_softmax(network, weights, x):
    """(rows, classes), over the network's draws, one after another."""
    total = sum(
        torch.softmax(network.inner.apply(drawn(weights, number), {}, x, None), -1) for number in range(network.draws)
    )
    return total / network.draws


def test_without_a_stream_it_answers_the_log_mean_of_softmax_over_its_draws(network, images):
    weights, rows, _ = images(network)
    for at in range(len(rows.counts)):
        own = {n: w[at] for n, w in weights.items()}
        found = network.apply(own, {}, rows.x[at], None)
        torch.testing.assert_close(found.exp(), mean_of_softmax(network, own, rows.x[at]), rtol=0, atol=1e-12)
        torch.testing.assert_close(network.apply(own, {}, rows.x[at], None), found, rtol=0, atol=0)


@pytest.mark.slow
def test_many_draws_answer_as_weights_that_torch_draws(images):
    """Within 5 standard errors of two means over 600 draws."""
    network = Variational(INNER["mlp"], bias="gaussian", draws=600, deviation=0.3)
    weights, rows, _ = images(network)
    own, x = {n: w[0] for n, w in weights.items()}, rows.x[0, :2]
    means = {n: w for n, w in own.items() if not n.endswith(DEVIATION)}
    draw = torch.Generator().manual_seed(1)
    of_torch = []
    for _ in range(600):
        some = {n: w + own[n + DEVIATION] * torch.randn(w.shape, generator=draw) for n, w in means.items()}
        of_torch.append(torch.softmax(network.inner.apply(some, {}, x, None), -1))
    p = torch.stack(of_torch)
    found = network.apply(own, {}, x, None).exp()
    assert ((found - p.mean(0)).abs() <= 5 * p.std(0) * (2 / 600) ** 0.5).all()
    assert (found - torch.softmax(network.inner.apply(means, {}, x, None), -1)).abs().max() > 0.01


def test_no_draws_are_the_network_of_the_means(network, images):
    weights, rows, _ = images(network)
    own = {n: w[0] for n, w in weights.items()}
    means = {n: w for n, w in own.items() if not n.endswith(DEVIATION)}
    found = replace(network, draws=0).apply(own, {}, rows.x[0], None)
    torch.testing.assert_close(found, network.inner.apply(means, {}, rows.x[0], None), rtol=0, atol=0)


def test_a_regression_answers_the_mean_over_its_draws(images):
    network = Variational(MLP(64, (6,), 1), bias="gaussian", draws=4, deviation=0.3)
    weights, rows, _ = images(network)
    own = {n: w[0] for n, w in weights.items()}
    expected = torch.stack([network.inner.apply(drawn(own, n), {}, rows.x[0], None) for n in range(4)]).mean(0)
    torch.testing.assert_close(network.apply(own, {}, rows.x[0], None), expected, rtol=0, atol=1e-12)
    scored = per_example_metrics(network, weights, {}, rows._replace(y=rows.y.double()), SquaredError(), "sequential")
    torch.testing.assert_close(scored["loss"][0], (expected[:, 0] - rows.y[0]) ** 2, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_evaluation_uncertainty_and_the_exported_model_say_what_it_answers(network, images):
    network = replace(network, draws=2)
    weights, rows, _ = images(network, dtype=torch.float32)
    expected = torch.stack(
        [mean_of_softmax(network, {n: w[at] for n, w in weights.items()}, rows.x[at]) for at in range(len(rows.counts))]
    )
    truth = expected.gather(-1, rows.y[..., None])[..., 0]
    used = torch.arange(rows.y.shape[1]) < rows.counts[:, None]
    for kind in forms(network):
        scored = per_example_metrics(network, weights, {}, rows, CrossEntropy(), kind)
        torch.testing.assert_close(scored["loss"], -truth.log() * used, rtol=0, atol=1e-5)
        p = predictive(network, weights, {}, rows.x, None, 0, kind).p
        torch.testing.assert_close(p.float(), expected, rtol=0, atol=1e-5)
    one = {n: w[0] for n, w in weights.items()}
    program = ExportedModel(network, one, {}, classes=3).export(rows.x[0, :2]).module()
    torch.testing.assert_close(program(rows.x[0]), expected[0], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["local", "flipout", "naive"])
def test_passes_with_noise_and_fixed_draws_are_means_over_one_law(noise, images):
    """Of a network of one layer, where all kinds of noise have one law for a row: within 5 standard errors."""
    network = Variational(MLP(64, (), 3), noise, "gaussian", draws=400, deviation=0.2)
    weights, rows, streams = images(network)
    passes = predictive(network, weights, {}, rows.x, streams, 400)
    fixed = predictive(network, weights, {}, rows.x, None, 0)
    torch.testing.assert_close(passes.p, fixed.p, rtol=0, atol=5 * 0.3 * (2 / 400) ** 0.5)
    assert (passes.each < torch.special.entr(passes.p).sum(-1)).all()


def test_shared_draws_leave_a_clients_answer_to_itself(network, images):
    weights, rows, _ = images(network)
    together = network.apply_stack(weights, {}, rows.x, None)
    for at in range(len(rows.counts)):
        alone = network.apply({n: w[at] for n, w in weights.items()}, {}, rows.x[at], None)
        torch.testing.assert_close(together[at], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("bias", "gaussian"), [("point", False), ("gaussian", True), ("none", False)])
def test_it_starts_with_the_inner_networks_weights_as_means_and_one_deviation(bias, gaussian):
    inner = INNER["mlp"]
    weights, plain = Variational(inner, bias=bias, deviation=0.02).init(INIT), inner.init(INIT)
    means = {n: w for n, w in weights.items() if not n.endswith(DEVIATION)}
    assert means.keys() == {n for n in plain if bias != "none" or not n.endswith(".bias")}
    assert all(torch.equal(w, plain[n]) for n, w in means.items())
    assert {n.removesuffix(DEVIATION) for n in weights.keys() - means} == {
        n for n in means if gaussian or not n.endswith(".bias")
    }
    assert all((w == 0.02).all() for n, w in weights.items() if n.endswith(DEVIATION))


def test_very_sure_draws_give_no_infinite_numbers():
    network = Variational(MLP(2, (), 2), draws=3, deviation=0.1)
    weights = broadcast_weights({**network.init(INIT), "dense0.weight": torch.eye(2) * 1e4}, 1)
    said = network.apply_stack(weights, {}, torch.eye(2)[None], None)
    assert torch.isfinite(said).all()
    torch.testing.assert_close(said.exp()[0], torch.eye(2))
