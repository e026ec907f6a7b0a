"""A scaling is the same numbers after JSON, and its arithmetic that of models which leave siloflow."""

import json

import numpy as np
import pytest
import torch
from scipy import stats

from models.preprocessing import RawInputModel
from silos.standardizer import NO_STANDARDIZATION, Standardization, Standardizer

SCALING = Standardization(Standardizer((700.1, 1e-3, -4 / 3), (300.7, 1e-5, 1.0)), Standardizer((150.3,), (77.7,)))


@pytest.mark.parametrize(
    "scaling",
    [
        SCALING,
        Standardization(targets=SCALING.targets),
        NO_STANDARDIZATION,
        Standardization(own_columns=(0, 2)),
        Standardization(SCALING.inputs, own_columns=(1,), by_quantiles=True),
    ],
)
def test_json_has_every_digit(scaling):
    assert Standardization.from_json(json.loads(json.dumps(scaling.as_json()))) == scaling


@pytest.mark.parametrize("shape", [(50, 3), (50, 1, 3)])
def test_a_served_model_scales_rows_to_the_same_bits(shape):
    rows = (np.random.default_rng(0).normal(size=shape) * 300 + 500).astype(np.float32)
    raw = RawInputModel(**SCALING.agreed_as_json())
    ours = SCALING.inputs.transform(rows)
    assert (ours.dtype, ours.shape) == (np.float32, shape)
    np.testing.assert_array_equal(raw(torch.from_numpy(rows)).numpy(), ours)


def test_predictions_of_scaled_targets_are_the_targets():
    y = np.linspace(-1e3, 1e3, 101).astype(np.float32)
    scaled = torch.from_numpy(SCALING.targets.transform(y))
    assert scaled.std() < 10
    assert RawInputModel(**SCALING.agreed_as_json()).predictions(scaled[:, None]).numpy() == pytest.approx(
        y, rel=1e-6, abs=1e-4
    )


def test_what_is_not_scaled_is_as_it_was():
    rows = torch.randn(4, 3)
    plain = RawInputModel(**NO_STANDARDIZATION.agreed_as_json())
    assert torch.equal(plain(rows), rows)
    assert torch.equal(plain.predictions(rows[:, :1]), rows[:, 0])
    pixels = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert plain(pixels).tolist() == [[0.0, pytest.approx(0.2), 1.0]]


def test_own_columns_have_mean_0_and_deviation_1_of_the_clients_rows_and_others_the_agreed_scale():
    rows = np.array([[1.0, 10.0, 5.0], [3.0, 30.0, 5.0]], np.float32)
    fitted = Standardization(Standardizer((0.5,) * 3, (2.0,) * 3), own_columns=(1, 2)).inputs_of(rows)
    assert fitted.transform(rows).tolist() == [[0.25, -1.0, 0.0], [1.25, 1.0, 0.0]]
    assert Standardization(own_columns=(0,)).inputs_of(rows).transform(rows).tolist() == [[-1, 10, 5], [1, 30, 5]]


QUANTILES = Standardization(Standardizer((0.5,) * 4, (2.0,) * 4), own_columns=(0, 1, 2), by_quantiles=True)


def columns(seed, rows=400):
    """Return a skewed column, one of three values, a constant, and one that is not aligned."""
    rng = np.random.default_rng(seed)
    return np.stack(
        [np.exp(rng.normal(size=rows)), rng.integers(0, 3, rows), np.full(rows, 7), rng.normal(size=rows)], 1
    ).astype(np.float32)


def test_quantiles_of_own_columns_become_those_of_a_normal_distribution():
    rows = columns(0)
    found = QUANTILES.inputs_of(rows).transform(rows)
    shares = [0.05, 0.25, 0.5, 0.75, 0.95]
    np.testing.assert_allclose(np.quantile(found[:, 0], shares), stats.norm.ppf(shares), atol=0.1)
    levels = [found[rows[:, 1] == value, 1] for value in range(3)]
    assert all(np.ptp(level) == 0 for level in levels)
    assert levels[0][0] < levels[1][0] < levels[2][0]
    assert not found[:, 2].any()
    np.testing.assert_array_equal(found[:, 3], ((rows[:, 3].astype(float) - 0.5) / 2).astype(np.float32))


def by_interpolation(train, values):
    """Return where a client with these training rows maps values: between quantiles, and beyond them by its deviation."""
    places = stats.norm.ppf((np.arange(20) + 0.5) / 20)
    quantiles = np.quantile(train, (np.arange(20) + 0.5) / 20)
    knots = sorted(set(quantiles))
    heights = [places[quantiles == knot].mean() for knot in knots]
    beyond = values - np.clip(values, knots[0], knots[-1])
    return np.interp(values, knots, heights) + beyond / np.sqrt(np.mean((train - train.mean()) ** 2))


@pytest.mark.parametrize(
    "train",
    [
        np.random.default_rng(5).normal(size=300),
        np.random.default_rng(6).poisson(0.3, 300),
        np.array([3.0, 7.0]),
        np.repeat([0.0, 1.0], [39, 1]),
        np.repeat([0.0, 1.0], [196, 4]),
    ],
    ids=["normal", "counts", "two rows", "one row of a value", "a value that no quantile has"],
)
def test_values_lie_between_quantiles_and_beyond_them_as_standardised_ones(train):
    aligned = Standardization(own_columns=(0,), by_quantiles=True).inputs_of(train[:, None])
    values = np.concatenate([train, np.linspace(-60, 60, 301)])
    found = aligned.transform(values[:, None])[:, 0]
    np.testing.assert_allclose(found, by_interpolation(train, values), rtol=1e-5, atol=1e-6)


def test_the_map_by_quantiles_is_monotone_beyond_the_rows_that_it_was_made_of_too():
    fitted = QUANTILES.inputs_of(columns(1))
    line = np.tile(np.linspace(-50, 50, 2001, dtype=np.float32)[:, None], 4)
    found = fitted.transform(line)
    assert np.isfinite(found).all()
    assert (np.diff(found[:, 0]) > 0).all()
    assert (np.diff(found[:, 1:], axis=0) >= 0).all()


def test_silos_that_differ_by_a_monotone_map_agree_after_alignment():
    rows = columns(2)
    other = rows.copy()
    other[:, 0] = 100 + 3 * rows[:, 0]
    ours, theirs = (QUANTILES.inputs_of(each).transform(each) for each in (rows, other))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_a_served_model_aligns_rows_to_the_same_bits():
    fitted = QUANTILES.inputs_of(columns(3))
    raw, rows = RawInputModel(fitted.as_json(), None), columns(4)
    np.testing.assert_array_equal(raw(torch.from_numpy(rows)).numpy(), fitted.transform(rows))
