"""A scaling is the same numbers after JSON, and its arithmetic that of models which leave siloflow."""

import json

import numpy as np
import pytest
import torch

from models.preprocessing import RawInputModel
from silos.standardizer import NO_STANDARDIZATION, Standardization, Standardizer

SCALING = Standardization(Standardizer((700.1, 1e-3, -4 / 3), (300.7, 1e-5, 1.0)), Standardizer((150.3,), (77.7,)))


@pytest.mark.parametrize(
    "scaling",
    [SCALING, Standardization(targets=SCALING.targets), NO_STANDARDIZATION, Standardization(own_columns=(0, 2))],
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
