"""Rotation agrees with NumPy at right angles and with SciPy elsewhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import ndimage

from silos.partitioners.perturbations import rotate

SQUARE = st.integers(1, 9).flatmap(lambda side: arrays.arrays(np.uint8, (2, side, side)))


@given(x=SQUARE, turns=st.integers(-5, 5))
def test_right_angles_are_exactly_rot90(x, turns):
    np.testing.assert_array_equal(rotate(x, 90.0 * turns), np.rot90(x, turns, axes=(1, 2)))


def test_a_positive_angle_turns_counter_clockwise():
    x = np.zeros((1, 5, 5), np.uint8)
    x[0, 2, 4] = 200  # three o'clock
    turned = rotate(x, 90)
    assert turned[0, 0, 2] == 200  # twelve o'clock
    assert rotate(x, 45)[0, :2, 3:].sum() > 0


@pytest.mark.parametrize("angle", [0.0, -0.0, 360.0, -720.0])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_angle_0_leaves_pixels_untouched(angle, dtype):
    x = (np.random.default_rng(0).random((3, 7, 4)) * 255).astype(dtype)
    np.testing.assert_array_equal(rotate(x, angle), x)


@given(x=SQUARE, angle=st.floats(-360, 360))
def test_any_angle_is_what_scipy_computes(x, angle):
    expected = ndimage.rotate(x.astype(float), angle, axes=(2, 1), reshape=False, order=1, mode="grid-constant", cval=0)
    turned = rotate(x, angle)
    assert turned.dtype == np.uint8
    assert np.abs(turned - expected).max() <= 0.52


@given(angle=st.floats(-360, 360))
def test_floats_and_colours_turn_as_bytes_do(angle):
    x = np.random.default_rng(1).integers(0, 256, (2, 6, 5)).astype(np.uint8)
    turned = rotate(x, angle)
    np.testing.assert_allclose(rotate(x.astype(np.float32), angle), turned, atol=0.51)
    np.testing.assert_array_equal(rotate(np.stack([x, x], axis=-1), angle), np.stack([turned, turned], axis=-1))


def test_many_images_turn_as_one_does():
    x = np.random.default_rng(2).integers(0, 256, (1100, 4, 4)).astype(np.uint8)
    np.testing.assert_array_equal(rotate(x, 33)[700:701], rotate(x[700:701], 33))


@given(angle=st.floats(-360, 360), height=st.integers(1, 8), width=st.integers(1, 8))
def test_opencvs_centre_is_half_a_pixel_beyond_the_middle(angle, height, width):
    # x[row, column] of an image with a black row and column in front: its middle is the other's opencv centre
    x = np.random.default_rng(3).integers(0, 256, (2, height, width)).astype(np.uint8)
    padded = np.pad(x, ((0, 0), (0, 1), (0, 1)))  # one more row and column behind: the middle moves to (h / 2, w / 2)
    turned = rotate(padded, angle)[:, :height, :width]
    np.testing.assert_array_equal(rotate(x, angle, "opencv"), turned)


def test_opencvs_half_turn_moves_an_image_by_a_pixel():
    x = np.arange(16, dtype=np.uint8).reshape(1, 4, 4) + 1
    turned = rotate(x, 180, "opencv")[0]
    assert not turned[0].any()
    assert not turned[:, 0].any()
    np.testing.assert_array_equal(turned[1:, 1:], x[0, ::-1, ::-1][:3, :3])
