"""Diagonal Gaussians: natural parameters against torch.distributions and densities."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

from models.gaussians import Natural, divergence, gaussian_names, inverse_softplus, natural, plus

MEANS = st.floats(-1e3, 1e3)
DEVIATIONS = st.floats(1e-3, 1e2)
LAWS = st.tuples(MEANS, DEVIATIONS)


def law(mean, deviation):
    return natural(torch.tensor([mean]), torch.tensor([deviation]))


def named(mean, deviation):
    return law(mean, deviation).named("w")


def close(found, expected, scale):
    """To 1e-10 of the largest number that took part."""
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, rtol=0, atol=1e-10 * float(scale[name].abs()))


@given(LAWS, LAWS)
def test_a_product_divided_by_a_factor_is_the_other_factor(first, second):
    a, b = named(*first), named(*second)
    product = plus(a, b)
    close({name: product[name] - b[name] for name in b}, a, {name: a[name].abs() + b[name].abs() for name in a})


@given(LAWS, LAWS, LAWS)
def test_factors_may_be_multiplied_in_any_order(first, second, third):
    a, b, c = (named(*one) for one in (first, second, third))
    scale = {name: a[name].abs() + b[name].abs() + c[name].abs() for name in a}
    close(plus(plus(a, b), c), plus(a, plus(c, b)), scale)


@given(LAWS)
def test_means_and_deviations_come_back_from_natural_parameters(one):
    expected = torch.tensor([one[0]]).double(), torch.tensor([one[1]]).double()
    found = Natural.of(law(*one).named("w"), "w")
    assert found.pull.dtype == found.precision.dtype == torch.float64
    torch.testing.assert_close((found.mean, found.deviation), expected, rtol=1e-12, atol=0)


@given(st.tuples(st.floats(-3, 3), st.floats(0.1, 3)), st.tuples(st.floats(-3, 3), st.floats(0.1, 3)))
def test_a_sum_of_natural_parameters_is_the_product_of_the_densities_but_for_a_factor(first, second):
    both = Natural.of(plus(named(*first), named(*second)), "w")
    at = torch.linspace(-2, 2, 9, dtype=torch.float64)

    def height(mean, deviation):
        return Normal(torch.as_tensor(mean).double(), torch.as_tensor(deviation).double()).log_prob(at)

    rounded = [torch.tensor(numbers).double() for numbers in (first, second)]
    apart = height(both.mean, both.deviation) - height(*rounded[0]) - height(*rounded[1])
    torch.testing.assert_close(apart, apart[:1].expand(9), rtol=0, atol=1e-8)


@given(LAWS, LAWS)
def test_the_divergence_is_that_of_torch_distributions(first, second):
    """To 1e-6 of itself, or of the rounding of its parts where they cancel; never less than 0."""
    (m1, d1), (m2, d2) = (torch.tensor(one, dtype=torch.float64) for one in (first, second))
    found = divergence(m1, d1**2, m2, d2**-2)
    torch.testing.assert_close(found, kl_divergence(Normal(m1, d1), Normal(m2, d2)), rtol=1e-6, atol=1e-12)
    assert found >= -1e-14


@given(LAWS)
def test_a_law_does_not_diverge_from_itself_and_does_from_any_other(one):
    mean, deviation = torch.tensor(one, dtype=torch.float64)
    assert divergence(mean, deviation**2, mean, deviation**-2).abs() < 1e-14
    assert divergence(mean + 0.1 * deviation, deviation**2, mean, deviation**-2) > 1e-3
    assert divergence(mean, (1.1 * deviation) ** 2, mean, deviation**-2) > 1e-3


@given(st.floats(1e-6, 300))
def test_a_deviation_comes_back_from_what_it_is_trained_as(deviation):
    for kind, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        given_one = torch.tensor(deviation, dtype=kind)
        torch.testing.assert_close(
            torch.nn.functional.softplus(inverse_softplus(given_one)), given_one, rtol=tolerance, atol=0
        )


def test_names_of_gaussian_weights_are_those_with_something_under_the_ending():
    weights = {"a.weight": 1, "a.bias": 1, "a.weight.deviation": 1, "b.weight.pull": 1}
    assert gaussian_names(weights) == ["a.weight"]
    assert gaussian_names(weights, ".pull") == ["b.weight"]
