"""What is no table, or a column of which no feature can be made, is refused in one sentence with the way out."""

import datetime
import gzip
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from silos.errors import UserError
from silos.sources.tabular.column_rules import MAX_CATEGORIES

DATE = datetime.datetime(2020, 1, 1)
CSV = {
    "": "own.csv: got an empty file, expected a header",
    "\n\n": "own.csv: got an empty file",
    "a,y": "got a header without rows",
    "a,y\n": "got a header without rows",
    "y\n1\n0\n": r"got no column left as a feature, expected at least one besides the label\. Add a column to the file\.",
    "a,z\n1,2\n": r"data\.source\.label: got 'y', expected a column of own\.csv: 'a', 'z' \(separated by ','\)",
    "sep=;\na;y\n1;0\n": r"got 'sep=;' in row 1, expected the header\. Delete row 1\.",
    "a,a,y\n1,2,0\n": "header: got the name 'a' for the columns 0 and 1",
    "a,b,y\n1,2,0\n3,4\n": r"got 2 fields in row 3 \(the header is row 1\), expected 3 as in the header, separated by ','",
    "a,b,y\n1,2,0\n3,4,5,6\n": "got 4 fields in row 3 .*, expected 3 as in",
    'a,b,y\n"1,2,0\n3,4,5\n': "row 2 .* write a field that contains ',' or a line break in quotes",
    "a,,y\n1,u,0\n2,v,1\n": r"'Unnamed: 1': got no name in the file, .*data\.source\.drop",
    "a,b,y\n1,,0\n2,,1\n": "'b': got no value in any row",
    "a,y\n1,0\n2,1\nunknown,1\n": "numbers mixed with text: 1 of 3 rows .* 'unknown' in row 4 .*na_values, .*categorical",
    "a,y\n2020-01-02,0\n2021-03-04 12:30,1\n": "'a': got dates or times, such as '2020-01-02'.*days since",
    "a;y\n01.02.2020;0\n3.4.21;1\n": "'a': got dates or times",
    "a,y\n12:30,0\n13:45:10,1\n": "'a': got dates or times",
    "a,y\n10%,0\n20%,1\n": r"not written plainly, such as '10%' in row 2 .*, in 2 of 2 rows, .* as 1234\.5",
    "a,y\n1,0\n-inf,1\n": "'a': got -inf in row 3 .*, expected a finite float32",
    "a,y\n1e39,0\n1,1\n": r"'a': got 1e\+39 in row 2",
    "a,y\n1700000001,0\n1700000002,1\n": "'a': got values such as .* float32 .* Subtract the mean",
    "a,y\n12345678901234567,0\n12345678901234568,1\n": "'a': got values such as",
    "a,a=x,y\nx,1,0\nz,2,1\n": "with the one-hot columns of texts, got the name 'a=x' for the columns 0 and 2",
    "a,y\n" + "x" * 2000 + ",0\nb,1\n": "a name of 2,002 characters, expected at most 1,000",
    "a,y\n1," + "x" * 2000 + "\n2,b\n": "the label 'y': 'x.*x': got 2000 characters",
    "a,y\n" + "".join(f"{at},{at / 7}\n" for at in range(50)): "these look like a regression. Add `task: regression`",
    "a,y\n" + "".join(f"{at},p{at}\n" for at in range(50)): "50 different values in 50 rows, expected classes",
    "a,y\n" + "".join(f"p{at},0\n" for at in range(MAX_CATEGORIES + 1)): (
        f"{MAX_CATEGORIES + 1} different values.* at most {MAX_CATEGORIES}, which become"
    ),
}
PARQUET = {
    "lists": (pa.array([[1], [2]]), "'a': got list<element: int64>, .* Make a column of each number in it"),
    "structs": (pa.array([{"u": 1}, {"u": 2}]), "'a': got struct<u: int64>"),
    "bytes": (pa.array([b"x", b"y"]), "'a': got binary"),
    "moments": (pa.array([DATE, DATE]), "'a': got dates or times, such as '2020-01-01 00:00:00'"),
    "days": (pa.array([DATE.date(), None]), "'a': got dates or times, such as '2020-01-01'"),
    "nothing": (pa.nulls(2), "'a': got no value in any row"),
    "infinite": (pa.array([1.0, np.inf]), "'a': got inf in row 1, expected a finite"),
    "gap": (pa.array([1.0, np.nan]), "'a': got no value in row 1, expected"),
    "huge": (pa.array([2**64 - 1, 2**64 - 2], pa.uint64()), "'a': got values such as"),
}


def sentence(read, *held, **options):
    with pytest.raises(UserError) as caught:
        read(*held, **options)
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 700
    assert said.endswith(".")
    return said


@pytest.mark.parametrize("text", CSV)
def test_a_faulty_csv_is_told_by_what_is_wrong(read, text):
    assert re.search(CSV[text], sentence(read, text))


@pytest.mark.parametrize("held", PARQUET)
def test_a_column_of_parquet_of_which_no_feature_can_be_made_is_told_by_its_type(read, held):
    values, said = PARQUET[held]
    assert re.search(said, sentence(read, {"a": values, "y": [0, 1]}))


@pytest.mark.parametrize(
    ("held", "name", "said"),
    [
        ("a,y\né,1\n".encode("latin1"), "own.csv", "got the byte 0xe9 in line 2, expected UTF-8 text"),
        ("a,y\n1,2\n".encode("utf-16"), "own.csv", "got UTF-16 text, expected UTF-8"),
        ("a,y\n1,2\n".encode("utf-32"), "own.csv", "got UTF-32 text, expected UTF-8"),
        (b"\0\0\xfe\xff" + "a,y\n1,2\n".encode("utf-32-be"), "own.csv", "got UTF-32 text, expected UTF-8"),
        (b"a,y\n\0,1\n", "own.csv", "got a zero byte in line 2"),
        (b"a,y\n1,0\n", "own.csv.gz", "cannot be read as gzip"),
        (gzip.compress(b"a,y\n1,0\n" * 999, mtime=0)[:-9], "own.csv.gz", "cannot be read as gzip"),
        (b"", "own.parquet", "cannot be read as a Parquet file"),
        (b"PAR1 and more", "own.parquet", "cannot be read as a Parquet file"),
        (b"PK\x03\x04", "own.xlsx", "got another ending, expected .csv, .csv.gz or .parquet"),
        (b"a\ty\n", "own.tsv", "got another ending"),
    ],
)
def test_what_is_no_such_file_is_told_by_what_it_is(read, held, name, said):
    assert said in sentence(read, held, name=name)


def test_a_file_or_column_that_is_not_there_is_named(read, tmp_path):
    read("a,y\n1,0\n2,1\n")
    (tmp_path / "folder.csv").mkdir()
    for key in ("client", "domain", "split"):
        assert f"data.source.{key}: got 'z'" in sentence(read, "a,y\n1,0\n", **{key: "z"})
    for key in ("drop", "categorical"):
        assert f"data.source.{key}: got 'z'" in sentence(read, "a,y\n1,0\n", **{key: ["z"]})


def test_a_regression_needs_numbers_that_are_told_apart(read):
    for labels, said in {
        ("x", "z"): "got values such as 'x', expected plain numbers for a regression",
        ("1,5", "2"): "such as '1,5'",
        ("1700000001", "1700000002"): "the label 'y': got values such as .* float32 .* Subtract",
        ("1", "inf"): "the label 'y': got inf in row 3",
    }.items():
        text = "a,y\n" + "".join(f'1,"{label}"\n' for label in labels)
        assert re.search(said, sentence(read, text, task="regression"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=150)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.text("a,;\t\"'\n\r|y01.5\x1b\u202e é", max_size=60).map(lambda t: ("y,a\n" + t).encode()),
    )
)
def test_whatever_is_in_a_csv_is_rows_or_a_sentence(read, held):
    said: tuple[str, ...] = ()
    try:
        rows = read(held, missing={"fill": 0})
        said = rows.notes
        assert np.isfinite(rows.x).all()
    except UserError as error:
        said = (str(error),)
    assert said
    assert all(line.isprintable() for line in said)


def test_only_where_columns_are_dropped_the_way_out_is_to_drop_fewer(read):
    with pytest.raises(UserError, match=r"besides the label, the client\. Shorten data\.source\.drop\."):
        read("c,a,y\nn,1,0\nn,2,1\n", client="c", drop=["a"])
