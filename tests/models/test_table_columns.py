"""Rows of a table become features by the names of their columns, or are refused with the column and the row."""

import numpy as np
import pandas as pd
import pytest

from models.preprocessing import encode

AGE = {"name": "age", "kind": "number", "missing": "refuse"}
SMOKES = {"name": "smokes", "kind": "boolean", "missing": "refuse"}
WARD = {"name": "ward", "kind": "text", "values": ["eye", "heart"], "missing": False}
COLUMNS = [AGE, SMOKES, WARD]


def frame(**changed):
    return pd.DataFrame({"age": [0.5, 2], "smokes": [True, False], "ward": ["heart", "eye"]} | changed)


def test_rows_are_the_same_in_any_order_of_columns():
    expected = [[0.5, 1, 0, 1], [2, 0, 1, 0]]
    assert encode(frame(), COLUMNS).tolist() == expected
    assert encode(frame()[["ward", "age", "smokes"]], COLUMNS).tolist() == expected
    assert encode(frame(), COLUMNS).dtype == np.float32


def test_values_may_be_written_as_json_or_pandas_writes_them():
    other = frame(age=pd.array([1, 2], "Int64"), smokes=["TRUE", 0], ward=[" heart", "eye "])
    assert encode(other, COLUMNS).tolist() == [[1, 1, 0, 1], [2, 0, 1, 0]]
    codes = [{"name": "code", "kind": "text", "values": ["7.0", "007", "true"], "missing": False}]
    assert encode(pd.DataFrame({"code": ["007", "7.0", True]}), codes).argmax(1).tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match="got 7 in row 1"):  # both 7.0 and 007 are equal to it
        encode(pd.DataFrame({"code": [7]}), codes)
    with pytest.raises(ValueError, match=r"got 1000.* in row 1"):
        encode(pd.DataFrame({"code": [10**400]}), codes)
    assert encode(pd.DataFrame([[7]], columns=[1990]), [AGE | {"name": "1990"}]).tolist() == [[7]]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["age", "smokes"],
            "columns: got no 'ward', expected each of 'age', 'smokes', 'ward' once. Correct the names.",
        ),
        (["age", "smokes", "Ward"], "got no 'ward', unknown 'Ward', expected"),
        (["age", "smokes", "ward", "site"], "got unknown 'site', expected"),
        (["age", "smokes", "ward", "age"], "got repeated 'age', expected"),
        ([0, 1, 2], "got no 'age', 'smokes', 'ward', unknown '0', '1', '2', expected"),
    ],
)
def test_wrong_missing_extra_and_repeated_names_are_refused(names, said):
    with pytest.raises(ValueError, match=said):
        encode(pd.DataFrame([[0.5] * len(names)], columns=names), COLUMNS)


def test_numbers_outside_of_the_schema_are_refused_and_what_is_filled_in_is_not():
    limited = {"name": "age", "kind": "number", "missing": -1.0, "range": [0, 120]}
    assert encode(pd.DataFrame({"age": [0, None, 120]}), [limited]).ravel().tolist() == [0, -1, 120]
    with pytest.raises(ValueError, match=r"age: got 121\.0 in row 2, expected a number from 0 to 120\. Correct"):
        encode(pd.DataFrame({"age": [1, 121]}), [limited])
    stage = {"name": "stage", "kind": "number", "missing": "refuse", "allowed": [1, 2.5]}
    assert encode(pd.DataFrame({"stage": [2.5, 1]}), [stage]).ravel().tolist() == [2.5, 1]
    with pytest.raises(ValueError, match=r"stage: got 2\.0 in row 1, expected one of 1, 2\.5\. Correct"):
        encode(pd.DataFrame({"stage": [2]}), [stage])


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (
            "age",
            None,
            "age: got no value in row 2, expected one, as in all rows that the model learned from. Fill in a value, or drop",
        ),
        ("age", float("nan"), "age: got no value in row 2"),
        (
            "age",
            float("inf"),
            "age: got inf in row 2, expected a finite float32 number. Correct the value, or drop the row",
        ),
        ("age", 1e300, "age: got 1e.300 in row 2, expected a finite float32 number"),
        ("age", 10**400, "age: got 1000.* in row 2, expected a finite"),
        ("age", "old", "age: got 'old' in row 2, expected a finite"),
        ("age", [1], "age: got .1. in row 2, expected a finite"),
        ("smokes", None, "smokes: got no value in row 2"),
        ("smokes", 0.5, "smokes: got 0.5 in row 2, expected true or false"),
        ("smokes", "yes", "smokes: got 'yes' in row 2, expected true or false"),
        ("ward", None, "ward: got no value in row 2, expected one of 'eye', 'heart'. "),
        ("ward", "skin", "ward: got 'skin' in row 2, expected one of 'eye', 'heart'. "),
        ("ward", "None", "ward: got 'None' in row 2"),
        ("ward", 1, "ward: got 1 in row 2"),
    ],
)
def test_values_that_no_training_row_could_have_are_refused_with_their_row(column, value, said):
    rows = frame()
    rows[column] = pd.Series([rows[column].iloc[0], value], dtype=object)
    with pytest.raises(ValueError, match=said):
        encode(rows, COLUMNS)


def test_missing_values_are_filled_as_the_rule_says():
    filled = [AGE | {"missing": -0.5}, SMOKES | {"missing": 1.0}, WARD | {"missing": True}]
    gaps = pd.DataFrame({"age": [None, np.nan], "smokes": [None, False], "ward": [None, "None"]}, dtype=object)
    assert encode(gaps, filled).tolist() == [[-0.5, 1, 0, 0, 1], [-0.5, 0, 0, 0, 1]]
    named = [WARD | {"missing": True, "values": ["None", "eye"]}]
    assert encode(pd.DataFrame({"ward": ["None", None]}), named).tolist() == [[1, 0, 0], [0, 0, 1]]
    with pytest.raises(
        ValueError, match="age: got no value in row 1, expected one, since the model holds no client's mean"
    ):
        encode(frame(age=[None, 1]), [AGE | {"missing": "mean"}, SMOKES, WARD])
