"""Noise of weights as rows meet it: moments over 20,000 draws against closed forms."""

import pytest
import torch
from torch.nn.functional import unfold

from models.gaussians import Noisy
from models.networks.grouped_layers import PlainLayers
from models.networks.mlp import linear
from models.prng import fold_in, server_stream

DRAWS = 20_000
NOISES = ("local", "flipout", "naive")

each_noise = pytest.mark.parametrize("noise", NOISES)
each_bias = pytest.mark.parametrize("gaussian_bias", [False, True], ids=["point bias", "gaussian bias"])


def streams(count=DRAWS):
    return fold_in(server_stream(0, 1, "t"), torch.arange(count))


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense_weights(gaussian_bias):
    means = {"dense0.weight": drawn(4, 2), "dense0.bias": drawn(2, seed=1)}
    return means, {n: drawn(*w.shape, seed=2).abs() + 0.1 for n, w in means.items() if gaussian_bias or "weight" in n}


def kernels(gaussian_bias):
    means = {"conv0.weight": drawn(2, 3, 3, 3), "conv0.bias": drawn(2, seed=1)}
    return means, {n: drawn(*w.shape, seed=2).abs() + 0.1 for n, w in means.items() if gaussian_bias or "weight" in n}


def mapped(function):
    """What a function of one stream gives for each of the draws: (draws, ...)."""
    return torch.func.vmap(function)(streams())


def of_dense(noise, gaussian_bias, x):
    """(draws, rows, units)."""
    means, variances = dense_weights(gaussian_bias)
    return mapped(lambda stream: linear(Noisy(means, variances, stream, noise), "dense0", x))


def of_convolution(noise, gaussian_bias, x):
    """(draws, rows, channels, places)."""
    means, variances = kernels(gaussian_bias)
    noisy = mapped(lambda s: PlainLayers(Noisy(means, variances, s, noise)).convolve("conv0", x, padding=1))
    return noisy.flatten(3)


def as_product(x):
    """Rows of pictures as what a kernel reads at every place: (rows, places, channels * 9)."""
    return unfold(x, 3, padding=1).transpose(1, 2)


def covariance(first, second):
    """Over the draws, (draws, ...)."""
    return ((first - first.mean(0)) * (second - second.mean(0))).mean(0)


def agree(found, expected, error):
    """Within 4.5 standard errors: of hundreds of numbers that are compared one is beyond 4 now and then."""
    assert found.shape == expected.shape
    assert ((found - expected).abs() <= 4.5 * error).all(), ((found - expected).abs() / error).max()


def error_of_covariance(first, second, both):
    """Of two normal numbers with these variances, and this covariance."""
    return ((first * second + both**2) / DRAWS).sqrt()


@each_bias
@each_noise
def test_a_dense_layer_has_the_mean_and_the_variance_of_its_weights_law(noise, gaussian_bias):
    x = drawn(3, 4, seed=3)
    means, variances = dense_weights(gaussian_bias)
    found = of_dense(noise, gaussian_bias, x)
    variance = x**2 @ variances["dense0.weight"] + variances.get("dense0.bias", 0)
    agree(found.mean(0), x @ means["dense0.weight"] + means["dense0.bias"], (variance / DRAWS).sqrt())
    agree(covariance(found, found), variance, error_of_covariance(variance, variance, variance))


@each_bias
@each_noise
def test_rows_of_a_dense_layer_vary_together_where_they_share_a_draw(noise, gaussian_bias):
    """Signs that change from row to row take the covariance away, noise of the layer's own never has any."""
    x = drawn(3, 4, seed=3)
    _, variances = dense_weights(gaussian_bias)
    found = of_dense(noise, gaussian_bias, x)
    own = x**2 @ variances["dense0.weight"] + variances.get("dense0.bias", 0)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        both = (x[a] * x[b]) @ variances["dense0.weight"] if noise == "naive" else torch.zeros(2).double()
        if noise != "local":  # a bias is drawn once for all rows
            both = both + variances.get("dense0.bias", 0)
        agree(covariance(found[:, a], found[:, b]), both, error_of_covariance(own[a], own[b], both))


@each_noise
def test_units_of_a_layer_vary_apart(noise):
    x = drawn(3, 4, seed=3)
    _, variances = dense_weights(True)
    found = of_dense(noise, True, x)
    own = x**2 @ variances["dense0.weight"] + variances["dense0.bias"]
    nothing = torch.zeros(3).double()
    error = error_of_covariance(own[:, 0], own[:, 1], nothing)
    agree(covariance(found[..., 0], found[..., 1]), nothing, error)


@each_bias
@each_noise
def test_a_convolution_has_the_mean_and_the_variance_of_its_weights_law(noise, gaussian_bias):
    x = drawn(2, 3, 4, 4, seed=3)
    means, variances = kernels(gaussian_bias)
    found, read = of_convolution(noise, gaussian_bias, x), as_product(x)
    of_kernels, spread = (part["conv0.weight"].flatten(1).T for part in (means, variances))
    mean = (read @ of_kernels + means["conv0.bias"]).transpose(1, 2)
    variance = (read**2 @ spread + variances.get("conv0.bias", 0)).transpose(1, 2)
    agree(found.mean(0), mean, (variance / DRAWS).sqrt())
    agree(covariance(found, found), variance, error_of_covariance(variance, variance, variance))


@each_noise
def test_places_of_a_row_vary_together_but_with_local_noise(noise):
    """One draw of a kernel is used at every place; local noise drops what places have in common."""
    x = drawn(1, 3, 4, 4, seed=3)
    _, variances = kernels(False)
    found, read = of_convolution(noise, False, x)[:, 0], as_product(x)[0]
    spread = variances["conv0.weight"].flatten(1)
    own = read**2 @ spread.T
    for a, b in ((5, 6), (5, 9), (0, 1)):
        both = (read[a] * read[b]) @ spread.T * (noise != "local")
        agree(covariance(found[..., a], found[..., b]), both, error_of_covariance(own[a], own[b], both))


@each_noise
def test_rows_of_a_convolution_vary_together_with_naive_noise_only(noise):
    x = drawn(2, 3, 4, 4, seed=3)
    _, variances = kernels(False)
    found, read = of_convolution(noise, False, x), as_product(x)
    spread = variances["conv0.weight"].flatten(1).T
    own, both = read**2 @ spread, (read[0] * read[1]) @ spread * (noise == "naive")
    error = error_of_covariance(own[0], own[1], both).T
    agree(covariance(found[:, 0], found[:, 1]), both.T, error)


def test_with_signs_of_their_own_two_rows_are_uncorrelated_and_not_independent():
    """Flipout: two equal rows have the same size of noise in a layer that reads one number."""
    means, variances = {"dense0.weight": torch.zeros(1, 1)}, {"dense0.weight": torch.ones(1, 1)}
    x = torch.tensor([[2.0], [2.0]])
    found = mapped(lambda stream: linear(Noisy(means, variances, stream, "flipout"), "dense0", x))[..., 0]
    assert torch.equal(found[:, 0].abs(), found[:, 1].abs())
    same = (found[:, 0] == found[:, 1]).double().mean()
    agree(same, torch.tensor(0.5).double(), torch.tensor(0.25 / DRAWS).sqrt())


def test_every_row_has_signs_of_its_own_for_each_number_that_a_layer_reads_and_for_each_unit():
    """Flipout; two rows' covariance, and the law of one, are the same without either of them."""

    def found(numbers):
        weights = torch.zeros(numbers, 2)
        noisy = Noisy({"dense0.weight": weights}, {"dense0.weight": weights + 1}, streams(1)[0], "flipout")
        return linear(noisy, "dense0", torch.ones(64, numbers))

    assert [len({f"{size:.4f}" for size in unit.abs().tolist()}) for unit in found(2).T] == [2, 2]  # |a + b|, |a - b|
    assert {*found(1).prod(-1).sign().tolist()} == {1.0, -1.0}


@each_noise
def test_every_client_of_a_stack_gets_the_noise_that_it_gets_alone(noise):
    means, variances = dense_weights(True)
    x, own = drawn(5, 3, 4, seed=3), streams(5)
    noisy = Noisy(*({n: w.expand(5, *w.shape) for n, w in part.items()} for part in (means, variances)), own, noise)
    found = linear(noisy, "dense0", x)
    for at in range(5):
        alone = linear(Noisy(means, variances, own[at], noise), "dense0", x[at])
        torch.testing.assert_close(found[at], alone, rtol=0, atol=1e-12)


def test_a_common_stream_draws_the_same_for_every_client_of_a_stack():
    means, variances = dense_weights(True)
    stacked = [{n: w.expand(3, *w.shape) for n, w in part.items()} for part in (means, variances)]
    stream = streams(1)[0]
    found = Noisy(*stacked, stream, "naive", common=True)
    for name in means:
        torch.testing.assert_close(found[name], Noisy(means, variances, stream, "naive")[name].expand_as(found[name]))


def test_what_has_no_variance_is_as_it_is_and_every_weight_has_noise_of_its_own():
    means, variances = dense_weights(False)
    noisy = Noisy(means, variances, streams(1)[0], "naive")
    assert dict(noisy).keys() == means.keys()
    assert len(noisy) == 2
    assert torch.equal(noisy["dense0.bias"], means["dense0.bias"])
    assert (noisy["dense0.weight"] != means["dense0.weight"]).all()
    alike = {"a": torch.zeros(9), "b": torch.zeros(9)}
    apart = Noisy(alike, {n: w + 1 for n, w in alike.items()}, streams(1)[0], "naive")
    assert (apart["a"] != apart["b"]).all()


@each_noise
def test_without_variance_a_layer_is_the_plain_layer_but_for_a_millionth(noise):
    means, variances = dense_weights(True)
    x = drawn(3, 4, seed=3)
    found = linear(Noisy(means, {n: v * 0 for n, v in variances.items()}, streams(1)[0], noise), "dense0", x)
    torch.testing.assert_close(found, linear(means, "dense0", x), rtol=0, atol=1e-5)


@each_noise
def test_the_noises_slope_in_variance_is_finite_where_a_layer_reads_nothing(noise):
    """As after ReLU: the root of a variance of 0 has no slope."""
    means, variances = dense_weights(False)
    variances = {n: v.requires_grad_() for n, v in variances.items()}
    linear(Noisy(means, variances, streams(1)[0], noise), "dense0", torch.zeros(3, 4).double()).sum().backward()
    assert torch.isfinite(variances["dense0.weight"].grad).all()
