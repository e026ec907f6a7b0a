"""A value that a table lacks is refused with the ways out, or goes by the one rule that params state."""

import numpy as np
import pytest

from silos.errors import UserError

GAPS = "c,a,b,w,y\nn,1,,u,0\nn,NA,2,,1\ns,3,4,v,1\ns,4,nan,u,0\n"


def test_it_is_refused_by_the_name_of_the_column_with_the_ways_out(read):
    with pytest.raises(UserError) as caught:
        read(GAPS, client="c")
    assert str(caught.value) == (
        "own.csv: the column 'a': got no value in row 3 (the header is row 1); 2 more columns also lack values, expected a "
        "value in every row. Fill in, or set `missing: drop_rows` or `missing: {fill: mean}` under data.source, or list the "
        "column under data.source.drop."
    )
    with pytest.raises(
        UserError, match=r"'b': got no value in 2 rows, the first row 2 \(the header is row 1\); 1 more"
    ):
        read(GAPS, client="c", drop=["a"])


def test_a_number_is_filled_in_and_marked_and_a_text_has_a_column_for_it(read):
    rows = read(GAPS, client="c", missing={"fill": -1})
    assert [feature.name for feature in rows.features] == ["a", "b", "w=u", "w=v", "w is missing"]
    assert rows.x.tolist() == [[1, -1, 1, 0, 0], [-1, 2, 0, 0, 1], [3, 4, 0, 1, 0], [4, -1, 1, 0, 0]]
    assert np.argwhere(rows.missing).tolist() == [[0, 1], [1, 0], [3, 1]]


def test_rows_are_dropped_whole_also_for_a_missing_label_or_client(read):
    rows = read(GAPS, client="c", missing="drop_rows")
    assert (rows.x.tolist(), rows.client.tolist(), rows.classes) == ([[3, 4, 1]], ["s"], ["1"])
    rows = read("c,a,y\nn,1,0\n,2,1\ns,3,\ns,4,1\n", client="c", missing="drop_rows")
    assert (rows.x.tolist(), rows.y.tolist()) == ([[1], [4]], [0, 1])


def test_a_silo_or_class_of_which_no_row_is_left_is_named_with_the_column_that_it_lacks(read):
    held = "c,a,b,y\nn,1,1,ill\nn,2,,well\ns,,1,ill\ns,,2,dead\no,3,3,well\n"
    note = "missing: no row is left of client 's' (2, where 'a' is empty), class 'dead' (1, where 'a' is empty)"
    assert note in read(held, client="c", missing="drop_rows").notes
    assert not any("no row is left" in each for each in read(held, client="c", missing={"fill": 0}).notes)
    assert not any("no row is left" in each for each in read(held.replace("s,,", "s,1,"), missing="drop_rows").notes)
    domains = read(held.replace("dead", "ill"), domain="c", missing="drop_rows").notes
    assert "missing: no row is left of domain 's' (2, where 'a' is empty)" in domains


def test_a_feature_that_params_fill_drops_no_row(read):
    rows = read(GAPS, {"name": "b", "missing": {"fill": 9}}, client="c", missing="drop_rows")
    assert rows.x.tolist() == [[1, 9, 1, 0], [3, 4, 0, 1], [4, 9, 1, 0]]


@pytest.mark.parametrize("missing", ["refuse", {"fill": 0}])
@pytest.mark.parametrize("role", ["label", "client", "domain", "split"])
def test_a_row_without_its_label_or_owner_is_refused(read, missing, role):
    with pytest.raises(
        UserError, match=rf"the {role} 'r': got no value in 2 rows, the first row 3 .*`missing: drop_rows`"
    ):
        read("r,a,y\ntrain,1,0\n,2,1\n,3,1\n", **{role: "r"}, missing=missing)


def test_if_every_row_misses_something_none_is_left(read):
    with pytest.raises(UserError, match=r"own\.csv: got a missing value in every row, expected rows that drop_rows"):
        read("a,b,y\n1,,0\n,2,1\n", missing="drop_rows")


def test_parquet_has_nulls_nans_and_empty_texts_for_what_is_missing(read):
    rows = read({"a": [None, float("nan"), 1.0], "w": ["", None, "u"], "y": [0, 1, 1]}, missing={"fill": 7})
    assert rows.x.tolist() == [[7, 0, 1], [7, 0, 1], [1, 1, 0]]
