"""A .npz is read as it is meant, or refused in one sentence that names the file and the fault."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from silos.errors import UserError
from silos.sources.source_params import Digits, Npz, Tumours
from silos.sources.source_registry import load_source

X = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


@pytest.fixture
def read(tmp_path):
    def build(**arrays):
        np.savez(tmp_path / "own.npz", **arrays)
        return load_source(Npz(kind="npz", path="own.npz"), tmp_path, 0)

    return build


def test_digits_are_scikit_learns_scaled_to_bytes(tmp_path):
    rows = load_source(Digits(kind="digits"), tmp_path, 0)
    images = load_digits().images
    assert rows.x.shape == (1797, 8, 8)
    assert rows.x.dtype == np.uint8
    assert rows.x.max() == 255
    np.testing.assert_allclose(rows.x, images * 255 / 16, atol=0.5)
    np.testing.assert_array_equal(rows.y, load_digits().target)


def test_tumours_are_scikit_learns_spread_by_the_described_ranges(tmp_path):
    rows = load_source(Tumours(kind="tumours"), tmp_path, 0)
    table = load_breast_cancer()
    low, high = table.data.min(0), table.data.max(0)
    np.testing.assert_allclose(
        rows.x, (table.data - low) / (high - low), atol=0.04
    )  # ranges are described in few digits
    np.testing.assert_array_equal(rows.y, table.target)
    assert rows.classes == table.target_names.tolist()
    assert [feature.name for feature in rows.features][:2] == ["radius (mean)", "texture (mean)"]
    assert len(rows.features) == 30


def test_bytes_stay_bytes_and_other_numbers_become_float32(read):
    assert read(x=X, y=Y).x.dtype == np.uint8
    for kind in ("float16", "float32", "float64", "int8", "int64", "uint16", "bool"):
        rows = read(x=X.astype(kind), y=Y)
        assert rows.x.dtype == np.float32
        np.testing.assert_array_equal(rows.x, X.astype(kind).astype(np.float32))


@pytest.mark.parametrize(
    ("y", "classes", "codes"),
    [
        ([10, 9, 2, 10, 9, 2], ["2", "9", "10"], [2, 1, 0, 2, 1, 0]),
        ([1.0, 0.0, -1.0, 1, 0, -1], ["-1", "0", "1"], [2, 1, 0, 2, 1, 0]),
        (["b", "a", "10", "b", "a", "9"], ["10", "9", "a", "b"], [3, 2, 0, 3, 2, 1]),
        ([b"x", b"y", b"x", b"y", b"x", b"x"], ["x", "y"], [0, 1, 0, 1, 0, 0]),
        ([True, False, True, True, True, True], ["False", "True"], [1, 0, 1, 1, 1, 1]),
        ([[3], [3], [4], [4], [4], [4]], ["3", "4"], [0, 0, 1, 1, 1, 1]),
    ],
)
def test_labels_become_codes_of_sorted_classes(read, y, classes, codes):
    rows = read(x=X, y=np.array(y))
    assert rows.classes == classes
    assert rows.y.tolist() == codes
    assert rows.y.dtype == np.int64


def test_clients_may_be_strings_or_whole_numbers(read):
    assert read(x=X, y=Y, client=np.array([3, 3, 1, 1, 2, 2])).client.tolist() == list("331122")
    assert read(x=X, y=Y, client=np.array(list("ééßßzz"))).client.tolist() == list("ééßßzz")


@pytest.mark.parametrize(
    "split",
    [
        [0, 1, 2, 0, 1, 2],
        [0.0, 1.0, 2.0, 0.0, 1.0, 2.0],
        ["train", "test", "validation", "train", "test", "validation"],
    ],
)
def test_a_split_column_may_be_numbers_or_text(read, split):
    assert read(x=X, y=Y, split=np.array(split)).split.tolist() == ["train", "test", "validation"] * 2


def test_a_row_may_be_one_number(read):
    assert read(x=np.arange(6.0), y=Y).x.shape == (6, 1)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": X}, r"own\.npz: got no array y \(the archive has x\), expected x"),
        ({"y": Y}, r"own\.npz: got no array x \(the archive has y\), expected x"),
        ({"x": X, "y": Y[:5]}, r"own\.npz: y: got 5 entries for 6 rows of x, expected one a row"),
        ({"x": X, "y": Y, "client": Y[:2]}, r"own\.npz: client: got 2 entries for 6 rows of x, expected one a row"),
        ({"x": X[:0], "y": Y[:0]}, r"own\.npz: x: got no rows, expected at least one"),
        ({"x": X[:0], "y": Y[:0], "client": np.array([], "U3")}, r"own\.npz: x: got no rows, expected at least one"),
        ({"x": np.float32(3), "y": Y}, r"own\.npz: x: got no rows, expected at least one"),
        ({"x": X, "y": np.eye(6)}, r"own\.npz: y: got shape \(6, 6\), expected one value a row"),
        ({"x": X.astype(object), "y": Y}, r"own\.npz: x: got an array of Python objects, which is not read for"),
        ({"x": X.astype(str), "y": Y}, r"own\.npz: x: got <U3, expected numbers"),
        ({"x": X.astype(complex), "y": Y}, r"own\.npz: x: got complex128, expected numbers"),
        ({"x": np.full((6, 1), 1e300), "y": Y}, r"own\.npz: x: got a value in row 0 that is not a finite float32"),
        ({"x": X, "y": Y + 0.5}, r"own\.npz: y: got 0\.5 in row 0, expected whole numbers or strings as classes"),
        ({"x": X, "y": np.where(Y == 2, np.nan, Y)}, r"own\.npz: y: got nan in row 2, expected a label"),
        ({"x": X, "y": np.where(Y == 2, 1e300, Y)}, r"own\.npz: y: got 1e\+300 in row 2, expected labels below"),
        ({"x": X, "y": 2.0**53 + 2 * Y}, r"own\.npz: y: got 9007199254740994\.0 in row 1, expected labels below"),
        ({"x": X, "y": (2**24 + 2 * Y).astype(np.float32)}, r"own\.npz: y: got 16777218\.0 in row 1, expected"),
        ({"x": X, "y": Y, "split": np.where(Y == 2, 1e300, 0.0)}, r"own\.npz: split: got '1e\+300', expected 0 or"),
        ({"x": X, "y": Y.astype("datetime64[D]")}, r"own\.npz: y: got datetime64\[D\], expected whole numbers or"),
        ({"x": X, "y": Y, "client": Y + 0.5}, r"own\.npz: client: got float64, expected strings or whole numbers"),
        ({"x": X, "y": Y, "client": np.array(["a", "", "a", "a", "a", "a"])}, r"own\.npz: client: got no name in"),
        ({"x": X, "y": Y, "split": np.array([0, 1, 2, 3, 0, 0])}, r"own\.npz: split: got '3', expected 0 or train"),
        ({"x": X, "y": Y, "split": np.full(6, 0.5)}, r"own\.npz: split: got '0\.5', expected 0 or train, 1 or test"),
    ],
)
def test_a_fault_is_one_sentence_that_names_the_file(read, arrays, said):
    with pytest.raises(UserError, match=said) as caught:
        read(**arrays)
    assert "own.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("y", [Y, Y + 0.25, (Y + 0.25)[:, None]])
def test_targets_of_a_regression_are_numbers_without_classes(tmp_path, y):
    np.savez(tmp_path / "own.npz", x=X, y=y)
    rows = load_source(Npz(kind="npz", path="own.npz", task="regression"), tmp_path, 0)
    assert (rows.task, rows.classes, rows.y.dtype) == ("regression", [], np.float32)
    assert rows.y.tolist() == y.ravel().tolist()


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.where(Y == 2, np.nan, Y), "y: got a target in row 2 that is not a finite float32"),
        (np.full(6, 1e300), "y: got a target in row 0 that is not a finite float32"),
        (1.7e9 + Y, "y: got targets that float32 cannot tell apart.* Subtract the mean"),
        (Y.astype(str), "y: got <U.*expected numbers for a regression. Drop `task: regression` for classes"),
    ],
)
def test_a_faulty_target_is_told(tmp_path, y, said):
    np.savez(tmp_path / "own.npz", x=X, y=y)
    with pytest.raises(UserError, match=f"own.npz: {said}"):
        load_source(Npz(kind="npz", path="own.npz", task="regression"), tmp_path, 0)


def test_labels_of_any_size_are_told_apart_as_whole_numbers(read):
    big = np.array([2**63, 2**63 + 1, 2**64 - 1, 0, 1, 2**63], np.uint64)
    assert read(x=X, y=big).classes == ["0", "1", "9223372036854775808", "9223372036854775809", "18446744073709551615"]
    assert read(x=X, y=2.0**53 - Y).classes == [str(2**53 - code) for code in sorted(set(Y.tolist()), reverse=True)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_pixel_that_is_not_finite_is_named_by_row_and_client(read, bad):
    x = X.astype(np.float64)
    x[4, 1, 0] = bad
    with pytest.raises(UserError, match=r"own\.npz: x: got a value in row 4 \(client lyon\) that is not a finite"):
        read(x=x, y=Y, client=np.array(["oslo", "oslo", "oslo", "lyon", "lyon", "lyon"]))


def test_a_file_that_is_missing_or_no_archive_is_named(tmp_path, read):
    with pytest.raises(UserError, match=r"none\.npz: got no such file \(looked for"):
        load_source(Npz(kind="npz", path="none.npz"), tmp_path, 0)
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    with pytest.raises(UserError, match=r"text\.npz: got another format, expected a \.npz archive"):
        load_source(Npz(kind="npz", path="text.npz"), tmp_path, 0)
    read(x=X, y=Y)
    whole = (tmp_path / "own.npz").read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 4] ^= 0xFF
    (tmp_path / "own.npz").write_bytes(bytes(damaged))
    with pytest.raises(UserError, match=r"own.npz"):
        load_source(Npz(kind="npz", path="own.npz"), tmp_path, 0)
