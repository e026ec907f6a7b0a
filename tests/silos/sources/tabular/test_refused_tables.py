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
from silos.sources.tabular.column_selection import MAX_CATEGORIES

DATE = datetime.datetime(2020, 1, 1)
CSV = {
    "": "own.csv is empty; it needs a header",
    "\n\n": "own.csv is empty",
    "a,y": "has a header and no rows below it",
    "a,y\n": "has a header and no rows below it",
    "y\n1\n0\n": "no column left that is a feature",
    "a,z\n1,2\n": r"data\.source\.label names the column 'y', and own\.csv has none.*it has 'a', 'z' \(separated by ','\)",
    "sep=;\na;y\n1;0\n": r"got 'sep=;' in row 1, expected the header\. Delete row 1\.",
    "a,a,y\n1,2,0\n": "in its header the name 'a' stands for columns 0 and 1",
    "a,b,y\n1,2,0\n3,4\n": r"row 3 \(the header is row 1\) has 2 fields, and the header has 3, separated by ','",
    "a,b,y\n1,2,0\n3,4,5,6\n": "row 3 .* has 4 fields, and the header has 3",
    'a,b,y\n"1,2,0\n3,4,5\n': "row 2 .* write a field that holds ',' or a line's end in quotes",
    "a,,y\n1,u,0\n2,v,1\n": r"'Unnamed: 1' has no name in the file; .*data\.source\.drop",
    "a,b,y\n1,,0\n2,,1\n": "'b' has no value in any row",
    "a,y\n1,0\n2,1\nunknown,1\n": "'a' mixes numbers with text: 1 of 3 rows .* 'unknown' in row 4 .*na_values .*categorical",
    "a,y\n2020-01-02,0\n2021-03-04 12:30,1\n": "'a' holds dates or times, such as '2020-01-02'.*days since",
    "a;y\n01.02.2020;0\n3.4.21;1\n": "'a' holds dates or times",
    "a,y\n12:30,0\n13:45:10,1\n": "'a' holds dates or times",
    "a,y\n10%,0\n20%,1\n": r"not written plainly, such as '10%' in row 2 .*, in 2 of 2 rows; write them as 1234\.5",
    "a,y\n1,0\n-inf,1\n": "'a' is -inf in row 3 .*no finite float32",
    "a,y\n1e39,0\n1,1\n": r"'a' is 1e\+39 in row 2",
    "a,y\n1700000001,0\n1700000002,1\n": "'a' differs by less than float32 can tell.*subtract its mean",
    "a,y\n12345678901234567,0\n12345678901234568,1\n": "'a' differs by less than float32 can tell",
    "a,a=x,y\nx,1,0\nz,2,1\n": "with the columns that texts become, the name 'a=x' stands for columns 0 and 2",
    "a,y\n" + "x" * 2000 + ",0\nb,1\n": "a name of 2,002 characters, and a name has 1,000 at most",
    "a,y\n1," + "x" * 2000 + "\n2,b\n": "the label 'y' 'x.*x' has 2000 characters",
    "a,y\n" + "".join(f"{at},{at / 7}\n" for at in range(50)): "looks like a regression .*add `task: regression`",
    "a,y\n" + "".join(f"{at},p{at}\n" for at in range(50)): "50 different values in 50 rows, which are no classes",
    "a,y\n" + "".join(f"p{at},0\n" for at in range(MAX_CATEGORIES + 1)): (
        f"{MAX_CATEGORIES + 1} different values.* at most {MAX_CATEGORIES} become"
    ),
}
PARQUET = {
    "lists": (pa.array([[1], [2]]), "'a' holds list<element: int64>; make a column of each number in it"),
    "structs": (pa.array([{"u": 1}, {"u": 2}]), "'a' holds struct<u: int64>"),
    "bytes": (pa.array([b"x", b"y"]), "'a' holds binary"),
    "moments": (pa.array([DATE, DATE]), "'a' holds dates or times, such as '2020-01-01 00:00:00'"),
    "days": (pa.array([DATE.date(), None]), "'a' holds dates or times, such as '2020-01-01'"),
    "nothing": (pa.nulls(2), "'a' has no value in any row"),
    "infinite": (pa.array([1.0, np.inf]), "'a' is inf in row 1, no finite"),
    "gap": (pa.array([1.0, np.nan]), "'a' has no value in row 1; fill in"),
    "huge": (pa.array([2**64 - 1, 2**64 - 2], pa.uint64()), "'a' differs by less than float32 can tell"),
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
        ("a,y\né,1\n".encode("latin1"), "own.csv", "no UTF-8 text: line 2 has the byte 0xe9; save it as UTF-8"),
        ("a,y\n1,2\n".encode("utf-16"), "own.csv", "is UTF-16 text; save it as UTF-8"),
        (b"a,y\n\0,1\n", "own.csv", "is no text: line 2 has a zero byte"),
        (b"a,y\n1,0\n", "own.csv.gz", "cannot be read as gzip"),
        (gzip.compress(b"a,y\n1,0\n" * 999, mtime=0)[:-9], "own.csv.gz", "cannot be read as gzip"),
        (b"", "own.parquet", "cannot be read as a Parquet file"),
        (b"PAR1 and more", "own.parquet", "cannot be read as a Parquet file"),
        (b"PK\x03\x04", "own.xlsx", "a table is a file with the ending .csv, .csv.gz or .parquet"),
        (b"a\ty\n", "own.tsv", "a table is a file with the ending"),
    ],
)
def test_what_is_no_such_file_is_told_by_what_it_is(read, held, name, said):
    assert said in sentence(read, held, name=name)


def test_a_file_or_column_that_is_not_there_is_named(read, tmp_path):
    read("a,y\n1,0\n2,1\n")
    (tmp_path / "folder.csv").mkdir()
    for key in ("client", "domain", "split"):
        assert f"data.source.{key} names the column 'z'" in sentence(read, "a,y\n1,0\n", **{key: "z"})
    for key in ("drop", "categorical"):
        assert f"data.source.{key} names the column 'z'" in sentence(read, "a,y\n1,0\n", **{key: ["z"]})


def test_a_regression_needs_numbers_that_are_told_apart(read):
    for labels, said in {
        ("x", "z"): "holds values such as 'x', and a regression needs plain numbers",
        ("1,5", "2"): "such as '1,5'",
        ("1700000001", "1700000002"): "the label 'y' differs by less than float32 can tell at its size.*subtract",
        ("1", "inf"): "the label 'y' is inf in row 3",
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
