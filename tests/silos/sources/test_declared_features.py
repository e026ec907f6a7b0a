"""The columns of a table are those that were declared; a missing value is filled in and marked, or refused by its name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silos.dataset import ClientRows, Clients, Partition, Rows
from silos.errors import UserError
from silos.schema import Feature
from silos.sources.source_params import Digits, Npz, Synthetic
from silos.sources.source_registry import attach_features, load_source, range_notes

NAN = np.nan
GAP = {"fill": -1.5}


@pytest.fixture
def read(tmp_path):
    """Reads an archive of four rows with the declared features."""

    def build(x, *declared, y=(0, 1, 0, 1), **arrays):
        np.savez(tmp_path / "own.npz", x=x, y=np.array(y), **arrays)
        features = tuple(Feature.model_validate(entry) for entry in declared)
        return load_source(Npz(kind="npz", path="own.npz"), tmp_path, 0, features)

    return build


@given(st.data())
def test_a_missing_value_becomes_the_fill_of_its_feature_and_is_marked(data):
    rows, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    may_miss = data.draw(st.lists(st.booleans(), min_size=width, max_size=width))
    x = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    given_x, marked = x.copy(), np.zeros(x.shape, bool)
    for row in range(rows):
        for at in range(width):
            if may_miss[at] and data.draw(st.booleans()):
                given_x[row, at], x[row, at], marked[row, at] = NAN, -at - 0.5, True
    declared = tuple(
        Feature.model_validate({"name": f"n{at}", "missing": {"fill": -at - 0.5} if may else "refuse"})
        for at, may in enumerate(may_miss)
    )
    read = attach_features("own.npz", Rows(given_x, np.zeros(rows, np.int64), ["0"]), declared)
    assert (read.x.dtype, read.x.tolist(), read.features) == (np.float32, x.tolist(), declared)
    assert (read.missing is None) == (not any(may_miss))
    assert read.missing is None or read.missing.tolist() == marked.tolist()


def test_the_names_of_an_archive_are_those_of_its_features(read):
    assert [f.name for f in read(np.eye(4, 2), features=np.array(["b", "ä"])).features] == ["b", "ä"]
    assert [f.name for f in read(np.arange(4.0), features=np.array([b"only"])).features] == ["only"]
    assert read(np.eye(4, 2)).features == ()


def test_names_that_a_table_has_anyway_are_as_if_nothing_was_said(read):
    assert read(np.eye(4, 2), features=np.array(["x0", "x1"])).features == ()
    assert read(np.eye(4, 2), {"name": "x0"}, {"name": "x1"}).features == ()
    assert [f.name for f in read(np.eye(4, 2), features=np.array(["x1", "x0"])).features] == ["x1", "x0"]


def test_what_is_declared_stands_beside_the_names_of_the_archive(read):
    rows = read(np.eye(4, 2), {"name": "a", "low": 0, "high": 2}, {"name": "b"}, features=np.array(["a", "b"]))
    assert [(f.name, f.high) for f in rows.features] == [("a", 2), ("b", None)]


@pytest.mark.parametrize(
    ("gaps", "declared", "said"),
    [
        ([(2, 1)], (), r"own\.npz: x: got no value \(NaN\) of the feature 'x1', column 1, in row 2 \(client y\)"),
        (
            [(1, 0)],
            ({"name": "age"}, {"name": "b"}),
            r"own\.npz: x: got no value \(NaN\) of the feature 'age', column 0, in row 1 \(client x\), expected a",
        ),
        ([(1, 0)], ({"name": "age"}, {"name": "b", "missing": GAP}), r"own\.npz: x: got no value \(NaN\) of the"),
        (
            [(0, 1), (1, 0)],
            ({"name": "age"}, {"name": "b", "missing": GAP}),
            r"own\.npz: x: got no value \(NaN\) of the feature 'age', column 0, in row 1 \(client x\), expected a",
        ),
        ([(0, 1), (1, 1), (3, 1)], (), r"own\.npz: x: got no value \(NaN\) of the feature 'x1', column 1, in row 0"),
        ([(0, 1), (1, 1)], (), r"own\.npz: x: got no value \(NaN\) of the feature 'x1', column 1, in row 0 \(client"),
        ([(0, 1), (3, 0)], (), r"own\.npz: x: got no value \(NaN\) of the feature 'x1', column 1, in row 0 \(client"),
        ([(0, 1)], (), r"own\.npz: x: got no value \(NaN\) of the feature 'x1', column 1, in row 0 \(client x\)"),
    ],
)
def test_a_missing_value_that_is_refused_is_named_with_both_ways_out(read, gaps, declared, said):
    x = np.eye(4, 2)
    for gap in gaps:
        x[gap] = NAN
    with pytest.raises(UserError, match=said):
        read(x, *declared, client=np.array(list("xxyy")))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e300])
def test_what_is_infinite_is_refused_also_where_values_may_be_missing(read, bad):
    x = np.eye(4, 1)
    x[2], x[3] = NAN, bad
    with pytest.raises(UserError, match=r"own\.npz: x: got a value in row 3 that is not a finite float32, expected"):
        read(x, {"name": "a", "missing": GAP})


@pytest.mark.parametrize(
    ("x", "count", "said"),
    [
        (
            np.eye(4, 3),
            2,
            r"data\.features: got 2 entries, expected 3 for the 3 features of own\.npz",
        ),
        (np.eye(4, 1), 2, r"data\.features: got 2 entries, expected 1 for the 1 feature of own\.npz"),
        (np.eye(4, 3), 1, r"data\.features: got 1 entry, expected 3 for the 3 features of own\.npz"),
        (np.ones((4, 2, 2)), 4, r"data\.features: got columns for own\.npz, whose rows are images, \(2, 2\) float32"),
        (np.ones((4, 2), np.uint8), 2, r"data\.features: got columns for own\.npz, whose rows are images, \(2,\)"),
    ],
)
def test_features_that_are_not_those_of_the_rows_are_refused(read, x, count, said):
    with pytest.raises(UserError, match=said):
        read(x, *({"name": f"n{at}"} for at in range(count)))


@pytest.mark.parametrize(
    ("x", "names", "said"),
    [
        (np.eye(4, 3), ["a", "b"], r"features: got shape \(2,\) .* each of the 3 columns of x"),
        (np.eye(4, 3), [["a", "b", "c"]], r"features: got shape \(1, 3\)"),
        (np.eye(4, 3), [1, 2, 3], "features: got shape .* of int64, expected one string"),
        (np.eye(4, 3), ["a", "", "c"], "features: got no name for column 1"),
        (np.eye(4, 3), ["a", "b", "a"], "features: got the name 'a' for the columns 0 and 2"),
        (np.eye(4, 1), ["a" * 1001], "features of row 0: got 1001 characters"),
        (np.ones((4, 2, 2)), ["a"] * 4, r"features: got column names for x of shape \(4, 2, 2\) of float64"),
        (np.ones((4, 2), np.uint8), ["a", "b"], r"features: got column names for x of shape \(4, 2\) of uint8"),
    ],
)
def test_names_that_no_column_can_have_are_refused(read, x, names, said):
    with pytest.raises(UserError, match=f"own.npz: {said}"):
        read(x, features=np.array(names))


def test_features_in_another_order_than_the_archives_are_refused(read):
    with pytest.raises(UserError, match=r"data\.features\.0: got 'b', expected 'a', the name of that column in"):
        read(np.eye(4, 2), {"name": "b"}, {"name": "a"}, features=np.array(["a", "b"]))


def test_other_sources_take_features_if_they_are_tables(tmp_path):
    synthetic = Synthetic(kind="synthetic", task="linear", clients_per_cluster=1, rows=2, features=2)
    assert [f.name for f in load_source(synthetic, tmp_path, 0, (Feature(name="a"), Feature(name="b"))).features] == [
        "a",
        "b",
    ]
    with pytest.raises(UserError, match=r"data\.features: got columns for the source `digits`, whose rows are"):
        load_source(Digits(kind="digits"), tmp_path, 0, (Feature(name="a"),))


def partition(x: np.ndarray, missing: np.ndarray | None, *features: Feature) -> Partition:
    """Two clients, and the last rows nobody's."""
    cuts = [slice(0, 2), slice(2, 3)]
    y = np.zeros(len(x), np.int64)
    clients = [ClientRows("c", "", x[c], y[c], missing=None if missing is None else missing[c]) for c in cuts]
    common = Rows(x[3:], y[3:], ["0"], missing=None if missing is None else missing[3:])
    return Partition(Clients.concatenate(clients), ["0"], common, features=features)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans(), st.booleans()), min_size=4, max_size=12),
    st.integers(1, 3),
)
def test_rows_outside_are_counted_once_a_feature_wherever_they_are_and_not_where_they_miss(rows, low):
    x = np.array([row[:2] for row in rows], np.float32)
    missing = np.array([row[2:] for row in rows])
    features = Feature(name="a", low=low, high=4), Feature(name="b", kind="categorical", categories=(low, 5))
    of_a = sum(not (low <= a <= 4) and not gap for a, _, gap, _ in rows)
    of_b = sum(b not in (low, 5) and not gap for _, b, _, gap in rows)
    expected = [
        f"{n} row{'s' * (n > 1)} of {what}"
        for n, what in ((of_a, f"'a' ({low} to 4)"), (of_b, "'b' (its categories)"))
        if n
    ]
    said = range_notes(partition(x, missing, *features))
    assert said == [
        f"Values outside of the categories and bounds in data.features are kept: {', '.join(expected)}."
    ] * bool(expected)


def test_a_note_names_three_features_and_counts_the_others():
    x = np.zeros((4, 5), np.float32)
    (said,) = range_notes(partition(x, None, *(Feature(name=name, low=1, high=2) for name in "abcde")))
    assert said.endswith("4 rows of 'c' (1 to 2), and rows of 2 more features.")
    assert range_notes(partition(x, None, *(Feature(name=name) for name in "abcde"))) == []
