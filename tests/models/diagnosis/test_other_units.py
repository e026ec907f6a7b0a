"""Another unit is named from means and deviations alone, and unlike cases are not."""

import numpy as np
import pytest

from models.diagnosis.client_summaries.client_summary import Layout, concatenate_summaries, summarize
from models.diagnosis.other_units import CELSIUS, FAHRENHEIT, KELVIN, find_other_units

LAYOUT = Layout(("value",), (None,), np.array([-1e4]), np.array([1e4]), 32, 3)


def found(*silos):
    rng = np.random.default_rng(1)
    reports = [summarize(x[:, None], rng.integers(0, 3, len(x)), np.arange(len(x)), LAYOUT) for x in silos]
    return find_other_units(concatenate_summaries(reports), LAYOUT)


def amounts(seed, scale=1.0, rows=120):
    return scale * np.random.default_rng(seed).lognormal(3.0, 0.7, rows)


def temperatures(seed, scale=1.0, offset=0.0):
    return scale * np.random.default_rng(seed).normal(18 + seed % 3, 6, 90) + offset


def test_cents_at_two_silos_are_a_factor_of_100():
    (unit,) = found(amounts(0), amounts(1), amounts(2, 100), amounts(3), amounts(4, 100))
    assert (unit.clients, unit.scale, unit.offset, unit.unit) == ((2, 4), 100, 0, "")
    assert unit.usual_mean == pytest.approx(np.concatenate([amounts(seed) for seed in (0, 1, 3)]).mean())
    assert unit.means == pytest.approx([amounts(2, 100).mean(), amounts(4, 100).mean()])


def test_a_column_of_three_times_the_values_is_a_factor_of_3():
    rng = np.random.default_rng(0)
    (unit,) = found(*(rng.normal(12, 3, 150) for _ in range(4)), 3 * rng.normal(12, 3, 150))
    assert (unit.clients, unit.scale) == ((4,), pytest.approx(3, rel=0.1))


@pytest.mark.parametrize(
    ("scale", "offset", "unit"), [(1.8, 32, FAHRENHEIT), (1, 273.15, KELVIN), (0.1, 0, ""), (0.001, 0, "")]
)
def test_a_known_conversion_is_named(scale, offset, unit):
    (other,) = found(*map(temperatures, range(3)), temperatures(3, scale, offset))
    assert (other.clients, other.unit, other.usual_unit) == ((3,), unit, CELSIUS if unit else "")
    assert (other.scale, other.offset) == (pytest.approx(scale), offset)


def test_most_silos_may_have_the_unit_that_is_converted():
    (other,) = found(*(temperatures(seed, 1.8, 32) for seed in range(4)), temperatures(4))
    assert (other.clients, other.unit, other.usual_unit) == ((4,), CELSIUS, FAHRENHEIT)


@pytest.mark.parametrize(("third", "is_named"), [(20, True), (13, False), (27, False)])
def test_a_factor_that_usual_silos_differ_by_almost_as_much_names_no_unit(third, is_named):
    """A mean of 49 is 2.5 times that of most, which one of them is 1.5 times below, or 1.4 times above."""

    def exactly(mean, rows=100):
        x = np.random.default_rng(0).normal(size=rows)
        return mean + (5 if mean < 40 else 12.5) * (x - x.mean()) / x.std()

    units = found(exactly(20, 400), exactly(20, 400), exactly(third), exactly(49))
    assert [unit.clients for unit in units] == ([(3,)] if is_named else [])


CASES = {
    "moved": lambda rng, i: rng.normal(50 + 15 * (i == 3), 12, 100),
    "wider": lambda rng, i: rng.normal(50, 12 * (1 + 2 * (i == 3)), 100),
    "exponential": lambda rng, i: rng.exponential(1 + 2 * (i == 3), 100),
    "counts": lambda rng, i: rng.negative_binomial(1, 1 / (2 + 3 * (i == 3)), 100),
    "codes": lambda rng, i: np.where(rng.random(100) < 0.1 * (i == 3), -999, rng.normal(50, 12, 100)),
    "opposite": lambda rng, i: rng.normal(-50 if i == 3 else 50, 12, 100),
}


@pytest.mark.parametrize("kind", CASES)
def test_unlike_cases_are_no_other_unit(kind):
    for seed in range(50):
        rng = np.random.default_rng(seed)
        assert found(*(CASES[kind](rng, client) for client in range(5))) == []


def test_few_rows_and_noise_name_none():
    assert found(amounts(0), amounts(1), amounts(2, 100, rows=15)) == []
