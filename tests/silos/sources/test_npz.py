"""Arrays are read as they were meant, or refused: no values merge in float32, and no axis is taken for another."""

import numpy as np
import pytest

from silos.errors import UserError
from silos.sources.source_params import Npz
from silos.sources.source_registry import load_source

N = 160
STEPS = np.arange(N)
EPOCHS = 1.7e9 + STEPS
AGES = np.random.default_rng(0).normal(50, 10, N)


@pytest.fixture
def read(tmp_path):
    def build(task="classification", **arrays):
        np.savez(tmp_path / "own.npz", **{"x": AGES, "y": STEPS % 2, **arrays})
        return load_source(Npz(kind="npz", path="own.npz", task=task), tmp_path, 0)

    return build


@pytest.mark.parametrize(
    "column",
    [
        *(EPOCHS.astype(kind) for kind in (np.float64, np.int64, np.uint64, np.longdouble)),
        2**60 + STEPS,
        np.uint64(2**63) + STEPS.astype(np.uint64),
        -(2**60) + STEPS % 2,
        1e-50 * STEPS,
        np.where(STEPS == 3, np.nan, EPOCHS),
        np.where(STEPS % 20 == 3, 0, EPOCHS),
        np.where(STEPS % 20 == 3, 0, 2**60 + STEPS),
    ],
)
def test_columns_whose_values_would_merge_in_float32_are_named(read, column):
    beside = np.zeros(N, column.dtype) + STEPS.astype(column.dtype)
    with pytest.raises(UserError, match="in column 1, expected differences that float32 can represent at that size"):
        read(x=np.column_stack([beside, column]))
    with pytest.raises(UserError, match=r"in column 0 \('when'\), expected differences that float32 can represent"):
        read(x=column, features=np.array(["when"]))


@pytest.mark.parametrize(
    "x",
    [
        EPOCHS - EPOCHS.min(),
        np.full(N, 1e9 + 0.1),  # one value is one value
        np.where(STEPS == 3, 1e9, AGES),
        1e9 * AGES,
        2**24 - STEPS,
        np.where(STEPS == 3, 2**62, STEPS * 2**50),
    ],
)
def test_columns_that_only_lose_digits_are_read(read, x):
    np.testing.assert_array_equal(read(x=x).x[:, 0], x.astype(np.float32))


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.uint64, np.longdouble])
def test_pictures_whose_values_would_merge_in_float32_are_refused(read, kind):
    pixels = np.random.default_rng(0).integers(0, 256, (N, 4, 4))
    with pytest.raises(UserError, match=r"own\.npz: x: got values from 17179869184 to 17179869439, expected"):
        read(x=(2**34 + pixels).astype(kind))
    np.testing.assert_array_equal(read(x=(2**14 + pixels).astype(kind)).x, 2**14 + pixels)


def test_pixels_that_differ_by_rounding_only_are_no_reason_to_refuse_pictures(read):
    x = np.random.default_rng(0).random((N, 4, 4))
    x[:, 0, 0] = 1 - 1e-16 * (STEPS % 2)
    assert (read(x=x).x[:, 0, 0] == 1).all()


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.longdouble])
def test_targets_beyond_float64_are_told_apart_before_they_are_rounded(read, kind):
    with pytest.raises(UserError, match=r"own\.npz: y: got targets that float32 cannot tell apart at their size"):
        read("regression", y=(2**60 + STEPS % 2).astype(kind))


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 28, 28), (4, 9, 12), (1, 22, 50), (2, 9, 9), (12, 64, 64)])
def test_pictures_with_channels_first_are_refused_and_both_ways_out_lead_out(read, shape):
    x = np.zeros((N, *shape), np.uint8)
    with pytest.raises(UserError, match="expected images as height × width × channels"):
        read(x=x)
    assert read(x=np.moveaxis(x, 1, -1)).x.shape == (N, *shape[1:], shape[0])
    assert read(x=np.swapaxes(x, 1, 2)).x.shape == (N, shape[1], shape[0], shape[2])


@pytest.mark.parametrize(
    "shape", [(16, 16, 3), (28, 28, 1), (16, 16, 5), (4, 4, 16), (3, 3, 512), (1, 1, 7), (3, 9, 4)]
)
def test_pictures_with_channels_last_are_read(read, shape):
    assert read(x=np.zeros((N, *shape), np.uint8)).x.shape == (N, *shape)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": STEPS.astype("datetime64[s]")}, "x: got datetime64.*, save the days since one day as numbers"),
        ({"x": STEPS.astype("timedelta64[s]")}, "x: got timedelta64.*, save it in days as numbers"),
        ({"x": AGES + 1j}, "x: got complex128.*, save its real and imaginary parts as columns"),
        ({"x": np.zeros(N, [("a", "f4")])}, "x: got .*, save its fields as the columns of one array"),
        ({"client": STEPS % 2 + 0.0}, r"client: got float64.* Save client\.astype\(int\)\.$"),
        ({"client": STEPS % 2 + 0.5}, r"client: got float64.* Save client\.astype\(str\)\.$"),
        (
            {"domain": np.where(STEPS == 3, np.nan, 1)},
            r".* Drop rows where it is NaN\. Save domain\.astype\(int\)\.$",
        ),
        ({"client": STEPS == 0}, r"client: got bool.* Save client\.astype\(str\)\.$"),
    ],
)
def test_arrays_of_other_types_are_refused_with_what_to_save_instead(read, arrays, said):
    with pytest.raises(UserError, match=f"own.npz: .*{said}" if said[0] == ";" else f"own.npz: {said}"):
        read(**arrays)
