"""A table is read as it is meant, from CSV and Parquet alike, and of its texts one-hot columns are made."""

import gzip
import io
import string
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.preprocessing import OneHotEncoder

from silos.errors import UserError
from silos.schema import MAX_TEXT_LENGTH
from silos.sources.source_params import Table
from silos.sources.source_registry import content_hashes, load_source
from silos.sources.tabular.column_rules import MAX_CATEGORIES

PATIENTS = "site,age,smokes,ward,ill\n007,34,True,b,no\nnorth,51.5,False,a,yes\n007,70,true,b,yes\n"


def names(rows):
    return [feature.name for feature in rows.features]


def test_numbers_truths_and_texts_become_features_in_the_order_of_the_file(read):
    rows = read(PATIENTS, label="ill", client="site")
    assert names(rows) == ["age", "smokes", "ward=a", "ward=b"]
    assert rows.x.tolist() == [[34, 1, 0, 1], [51.5, 0, 1, 0], [70, 1, 0, 1]]
    assert (rows.x.dtype, rows.x.flags.c_contiguous, rows.missing) == (np.float32, True, None)
    assert [(f.kind, f.categories) for f in rows.features] == [("numeric", ())] + [("categorical", (0, 1))] * 3


def test_client_and_label_keep_their_text(read):
    rows = read("c,d,y,a\n007,1.0,07,1\n7,1,7,2\n 7 ,x,10,3\n", client="c", domain="d")
    assert (rows.client.tolist(), rows.domain.tolist()) == (["007", "7", "7"], ["1.0", "1", "x"])
    assert (rows.classes, rows.y.tolist()) == (["07", "7", "10"], [0, 1, 2])  # by value, then as text


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["b", "a", "10"], ["10", "a", "b"]),
        (["10", "9", "-1"], ["-1", "9", "10"]),
        (["None", "DE", "FR"], ["DE", "FR", "None"]),
        (["0.5", "1", "1.5"], ["0.5", "1", "1.5"]),
    ],
)
def test_classes_are_sorted_whole_numbers_by_value_and_others_as_text(read, labels, classes):
    rows = read("a,y\n" + "".join(f"1,{label}\n" for label in labels))
    assert rows.classes == classes
    assert [classes[code] for code in rows.y] == labels


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30)
@given(st.data())
def test_one_hot_is_that_of_scikit_learn_and_of_pandas_from_csv_and_parquet_alike(read, data):
    """A number, truths, and texts of any letters, some of them missing; the file is written by pandas."""
    count = data.draw(st.integers(2, 8))
    letters = st.text(st.sampled_from(string.ascii_letters + "ß é,;\"'\n=|"), min_size=1, max_size=3)
    texts = data.draw(st.lists(letters.map(lambda text: f"x{text}x"), min_size=count, max_size=count))
    number = data.draw(st.lists(st.floats(-1e6, 1e6, width=32), min_size=count, max_size=count))
    truth = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    codes = data.draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
    frame = pd.DataFrame(
        {"n": number, "t": truth, "w": texts, "k": codes, "y": [0, 1] * (count // 2) + [0] * (count % 2)}
    )
    told = data.draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any))
    frame["w"] = frame["w"].where(told)
    options = {"categorical": ["k"], "missing": {"fill": 0}}
    csv = read(frame.to_csv(index=False), **options)
    parquet = read(pa.Table.from_pandas(frame), **options)
    assert np.array_equal(csv.x, parquet.x)
    assert csv.features == parquet.features
    known = frame["w"].dropna()
    encoder = OneHotEncoder(categories=[sorted(set(known)), sorted(set(codes))], handle_unknown="ignore")
    learned = encoder.fit(frame[["w", "k"]]).transform(frame[["w", "k"]]).toarray()
    ours = csv.x if all(told) else np.delete(csv.x, names(csv).index("w is missing"), axis=1)
    assert np.array_equal(ours[:, 2:], learned)
    assert np.array_equal(ours[:, :2], frame[["n", "t"]].to_numpy(np.float32))
    dummies = pd.get_dummies(frame["w"], prefix="w", prefix_sep="=")
    assert [name for name in names(csv) if name.startswith("w=")] == list(dummies)
    if not all(told):
        assert csv.x[:, names(csv).index("w is missing")].tolist() == [float(not each) for each in told]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_separator_line_end_and_byte_order_mark_are_found(read, separator, end, mark):
    text = 'y,a,"b, or; c|\td"\n1,2,3\n0,-1e2,.5\n\n'
    if separator != ",":
        text = "\n".join(line if at == 0 else line.replace(",", separator) for at, line in enumerate(text.split("\n")))
        text = text.replace("y,a,", f"y{separator}a{separator}")
    rows = read(mark + text.replace("\n", end).encode())
    assert names(rows) == ["a", "b, or; c|\td"]
    assert rows.x.tolist() == [[2, 3], [-100, 0.5]]


def test_a_file_in_gzip_is_the_same(read):
    plain, zipped = read("a,y\n1,0\n2,1\n"), read(gzip.compress(b"a,y\n1,0\n2,1\n"), name="own.csv.gz")
    assert np.array_equal(plain.x, zipped.x)


def test_decimal_commas_are_read_where_semicolons_separate(read):
    assert read("a;b;y\n1,5;1.5;0\n2;2;1\n-3,25e1;3;1\n").x.tolist() == [[1.5, 1.5], [2, 2], [-32.5, 3]]
    with pytest.raises(UserError, match=r"own\.csv: the column 'a': got numbers that are not written plainly, such"):
        read('a,y\n"1,5",0\n"2,5",1\n')
    with pytest.raises(UserError, match=r"own\.csv: the column 'a': got numbers that are not written plainly, such"):
        read("a;y\n1,5;0\n2.5;1\n")


def test_a_column_without_a_name_that_numbers_the_rows_is_left_out(read):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0, 1, 1]}, index=[5, 2, 9])
    again = pd.read_csv(io.StringIO(frame.to_csv()))  # Unnamed: 0
    for held in (frame.to_csv(), again.to_csv(index=False), pa.Table.from_pandas(frame)):
        rows = read(held)
        assert names(rows) == ["a"]
        assert any(note.startswith("left out: ") and "(no name)" in note for note in rows.notes)


def test_types_of_parquet_that_are_numbers_are_numbers(read):
    rows = read(
        {
            "half": pa.array(np.array([1, 2], np.float16)),
            "big": pa.array([2**60, 0], pa.uint64()),
            "money": pa.array([Decimal("1.25"), Decimal("-3")]),
            "kind": pa.array(["v", "u"]).dictionary_encode(),
            "y": [0, 1],
        }
    )
    assert rows.x.tolist() == [[1, 2**60, 1.25, 0, 1], [2, 0, -3, 1, 0]]
    assert names(rows)[3:] == ["kind=u", "kind=v"]


def test_columns_are_dropped_and_numbers_are_categories_where_params_say_so(read):
    rows = read("a,k,note,y\n1,10,x,0\n2,9,y,1\n3,010,z,1\n", drop=["note"], categorical=["k"])
    assert names(rows) == ["a", "k=9", "k=010", "k=10"]


def test_features_are_described_by_name_and_the_others_stay_as_they_are(read):
    bounds = {"name": "b", "low": 0, "high": 10, "missing": {"fill": 5}}
    rows = read("a,b,c,y\n1,,u,0\n2,3,v,1\n", bounds)
    assert rows.x.tolist() == [[1, 5, 1, 0], [2, 3, 0, 1]]
    assert rows.missing.tolist() == [[False, True, False, False], [False] * 4]
    assert [(f.name, f.high) for f in rows.features] == [("a", None), ("b", 10), ("c=u", None), ("c=v", None)]
    kept = read("a,b,y\n,1,0\n2,3,1\n", {"name": "b", "low": 0, "high": 10}, missing={"fill": -1})
    assert [feature.fill for feature in kept.features] == [-1, -1]
    for wrong in ("c", "c=u", "z"):
        with pytest.raises(
            UserError, match=rf"data\.features\.0: got '{wrong}', expected a column of own\.csv: 'a', 'b'"
        ):
            read("a,b,c,y\n1,2,u,0\n2,3,v,1\n", {"name": wrong})


@pytest.mark.parametrize("split", [["train", "test", "validation"], ["0", "1", "2"]])
def test_a_split_column_marks_the_rows(read, split):
    rows = read("a,s,y\n" + "".join(f"1,{each},0\n" for each in split), split="s")
    assert rows.split.tolist() == ["train", "test", "validation"]


def test_a_regression_takes_its_label_as_numbers(read):
    rows = read("a,y\n1,0.25\n2,-3\n", task="regression")
    assert (rows.task, rows.classes, rows.y.dtype, rows.y.tolist()) == ("regression", [], np.float32, [0.25, -3])


def test_the_same_file_gives_the_same_rows_and_its_hash_is_that_of_its_bytes(read, tmp_path):
    first, again = (read(PATIENTS, label="ill", client="site") for _ in range(2))
    assert first.x.tobytes() == again.x.tobytes()
    source = Table(kind="table", path="own.csv", label="ill", client="site")
    before = content_hashes(source, tmp_path)
    (tmp_path / "own.csv").write_text(PATIENTS + "7,1,true,a,no\n")
    assert content_hashes(source, tmp_path) != before
    assert len(load_source(source, tmp_path, 0).y) == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,c,y\nja,u,0\nJa,v,1\n", "'Ja' and 'ja' in a"),
        ("a,c,y\n1,K\u00f6ln,0\n2,Ko\u0308ln,1\n", r"'Ko\u0308ln' and 'K\xf6ln' in c"),
        ('a,c,y\n1,u,1\n2,v,"1,0"\n', "'1' and '1,0' in y"),
        ("Age,c,age,y\n1,u,1,0\n2,v,2,1\n", "'Age' and 'age' in the header"),
    ],
)
def test_names_that_look_alike_and_are_kept_apart_are_pointed_out(read, text, said):
    assert (
        read(text, client="c").notes[-1]
        == f"values that differ only in spelling (correct them if they mean the same): {said}"
    )
    assert not any("spelling" in note for note in read("a,c,y\n1,u,07\n1.0,v,7.5\n", client="c").notes)


def test_silos_of_which_far_more_rows_are_dropped_than_of_all_are_named(read):
    """A label that is not there yet at one silo: dropping its rows leaves the earlier ones, which may be others."""
    lines = [f"{'north' if at % 2 else 'south'},{at},{'' if at < 30 and at % 2 else at % 3}" for at in range(200)]
    rows = read("\n".join(["site,age,y", *lines, ",7,", ""]), client="site", missing="drop_rows")
    assert "missing: 16 of 201 rows dropped" in rows.notes, "15 % are less than twice 8 %"
    lines = [f"{'north' if at % 4 else 'south'},{at},{'' if at < 48 and not at % 4 else at % 3}" for at in range(200)]
    rows = read("\n".join(["site,age,y", *lines, ",7,", ""]), client="site", missing="drop_rows")
    assert "missing: 13 of 201 rows dropped, 12 of 50 of south" in rows.notes


def test_what_was_read_is_said_in_a_few_lines(read):
    text = "id,site,age,bmi,smokes,ward,ill\n1,n,,2.5,True,b,no\n2,n,51,3,False,,yes\n3,s,70,1,true,b,yes\n"
    rows = read(text, label="ill", client="site", drop=["id"], missing={"fill": 0})
    assert rows.notes == (
        "own.csv: 3 rows of 7 columns, separated by ','",
        "features: 5 = 2 numbers (age, bmi) + 1 true or false (smokes) + 2 one-hot (ward)",
        "left out: id (drop)",
        "missing: age (1) filled in; ward (1) as a separate category",
        "label: ill, 2 classes: no (1), yes (2)",
        "client: site, 2 values",
    )
    assert read(text, label="ill", missing="drop_rows").notes[2] == "missing: 2 of 3 rows dropped"
    assert not any("read as" in note for note in read("a,y\n1,\u22121\n2,-1\n3,1\n").notes)  # classes keep their text
    hostile = read("\x1b[2Ja,y\n1,\x1b[31mred\n2,b\n")
    assert all(note.isprintable() for note in hostile.notes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"client": "y"}, "Value error, got the column 'y' under label and client, expected it under one of them"),
        ({"drop": ["y"]}, "Value error, got the column 'y' under label and drop, expected it under one of them"),
        ({"drop": ["a"], "categorical": ["a"]}, "Value error, got the column 'a' under drop and categorical"),
        ({"missing": "median"}, r"Value error, got 'median', expected refuse, drop_rows, or \{fill: v\} with a"),
        ({"missing": {"fill": "median"}}, r"Value error, got \{'fill': 'median'\}, expected refuse, drop_rows, or"),
    ],
)
def test_params_that_contradict_themselves_are_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        Table.model_validate({"kind": "table", "path": "own.csv", "label": "y", **options})


def test_as_many_texts_as_are_allowed_become_columns(read):
    rows = read("a,y\n" + "".join(f"p{at},{at % 2}\n" for at in range(MAX_CATEGORIES)))
    assert rows.x.shape == (MAX_CATEGORIES, MAX_CATEGORIES)


def test_a_name_may_be_as_long_as_is_allowed(read):
    text = "x" * MAX_TEXT_LENGTH
    rows = read(f"{text},w,y\n1,u,{text}\n2,{text[2:]},b\n")
    assert [len(name) for name in names(rows)] == [MAX_TEXT_LENGTH, len("w=u"), MAX_TEXT_LENGTH]
    assert max(map(len, rows.classes)) == MAX_TEXT_LENGTH


def test_the_separator_is_found_where_a_long_line_cuts_the_first_characters(read):
    """The header has as many commas as semicolons, and the cut line fewer fields than the others."""
    rows = read('note;"u, v, w";y\nx;1;0\n' + "x" * (1 << 20) + ";2;1\n", drop=["note"])
    assert (names(rows), rows.x.tolist()) == (["u, v, w"], [[1], [2]])


def test_twenty_fractions_or_half_as_many_classes_as_rows_are_classes_and_one_more_is_none(read):
    def labels(count: int, rows: int, step: float) -> str:
        return "a,y\n" + "".join(f"{at},{step * (at % count):g}\n" for at in range(rows))

    assert len(read(labels(20, 42, 0.5)).classes) == 20
    assert len(read(labels(30, 60, 1)).classes) == 30
    assert len(read(labels(20, 20, 1)).classes) == 20
    for held, said in (
        (labels(21, 42, 0.5), r"own\.csv: the label 'y'"),
        (labels(31, 61, 1), r"own\.csv: the label 'y'"),
    ):
        with pytest.raises(UserError, match=said):
            read(held)


@pytest.mark.parametrize("values", [("1", "1"), ("0.5", "1.5")], ids=["repeated", "fractions"])
def test_a_column_without_a_name_that_does_not_number_the_rows_is_refused(read, values):
    with pytest.raises(UserError, match=r"own\.csv: the column 'Unnamed: 0': got no name in the file, expected one"):
        read(f",a,y\n{values[0]},5,0\n{values[1]},6,1\n")


def test_decimals_of_one_number_are_one_class_and_a_code_keeps_its_zeros(read):
    rows = read("a,y\n1,0\n2,1\n3,0.0\n4,1.0\n")
    assert (rows.classes, rows.y.tolist()) == (["0", "1"], [0, 1, 0, 1])
    assert "label: y, 2 classes: 0 (2), 1 (2)" in rows.notes
    assert read("a,y\n1,0.0\n2,1.0\n").classes == ["0.0", "1.0"]
    assert read("a,y\n1,007\n2,7\n3,7.0\n").classes == ["007", "7"]
    assert read("a,y\n1,9007199254740992\n2,9007199254740993\n3,9007199254740993.0\n").classes == [
        "9007199254740992",
        "9007199254740993",
    ]
    assert read("a;y\n1;1\n2;1000\n3;1.000\n", decimal=",").classes == ["1", "1000"]


def test_cells_are_hashed_as_they_came_whatever_the_kind_of_the_column(read):
    columns = {"a": [17.0, 2.5, None], "y": ["u", "v", "u"]}
    of_text = read({**columns, "kind": pa.array(["v", None, "u"])}, missing={"fill": 0}).cells
    of_categories = read({**columns, "kind": pa.array(["v", None, "u"]).dictionary_encode()}, missing={"fill": 0}).cells
    of_csv = read("a,y,kind\n17,u,v\n2.5,v,\n,u,u\n", missing={"fill": 0}, categorical=["a"]).cells
    assert of_text.columns.names == ("a", "y", "kind")
    for other in (of_categories, of_csv):
        assert (other.hashes == of_text.hashes).all()
    assert of_text.hashes[2, 0] == of_text.hashes[1, 2] == 0, "empty cells"
    assert len({*of_text.hashes[:2, 0].tolist()}) == 2
