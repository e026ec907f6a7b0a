"""A file of raw rows is read to the bits that the same rows have as a source."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flows.results.serving.predict_file import predict_file
from flows.results.serving.raw_rows import RowFile
from models.preprocessing import encode
from silos.errors import UserError
from silos.sources.source_params import Table
from silos.sources.source_registry import load_source
from tasks.tracking.raw_columns import raw_columns, reading_rules

FILE = """site;age;dose;smokes;ward;code;y
north;34;1,5;True;heart;07;no
south;;<0,5;False;;7;yes
north;70;1.250,0;true;eye;12;yes
south;n.k.;2;false;skin;7;no
"""
OPTIONS = {
    **{"kind": "table", "path": "own.csv", "label": "y", "client": "site", "categorical": ["code"]},
    **{"decimal": ",", "censored": "half", "na_values": ["n.k."], "missing": {"fill": -2}},
}


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, dict[str, Any], np.ndarray]:
    """The file, the card of a model that was trained on it, and the features of its rows."""
    (tmp_path / "own.csv").write_text(FILE)
    source = Table.model_validate(OPTIONS)
    rows = load_source(source, tmp_path, 0, ())
    reading = reading_rules(SimpleNamespace(source=source))  # type: ignore[arg-type]
    card = {"columns": raw_columns(source, rows.features, ()), "reading": reading, "shape": [rows.x.shape[1]]}
    return tmp_path, card, np.where(np.isnan(rows.x), np.float32(-2), rows.x)


def read_rows(name: str, folder: Path, card: dict[str, Any]) -> Any:
    return RowFile.open(name, folder / name, leave_out_ragged=False).rows(card)


def features(name: str, folder: Path, card: dict[str, Any]) -> np.ndarray:
    return encode(read_rows(name, folder, card), card["columns"])


def test_rows_are_the_bits_of_the_partition_with_other_columns_first_and_without_those_that_are_no_features(table):
    folder, card, expected = table
    np.testing.assert_array_equal(features("own.csv", folder, card), expected)
    lines = [line.split(";")[::-1][1:] for line in FILE.splitlines()]
    (folder / "turned.csv").write_text("\n".join(";".join(line) for line in lines))
    np.testing.assert_array_equal(features("turned.csv", folder, card), expected)
    for first in range(4):  # a file of one row has no other values that say what a column is
        (folder / "one.csv").write_text("\n".join([FILE.splitlines()[0], FILE.splitlines()[1 + first]]))
        np.testing.assert_array_equal(features("one.csv", folder, card), expected[first : first + 1])


def test_parquet_has_values_instead_of_text(table):
    folder, card, expected = table
    frame = pd.DataFrame(
        {
            **{"ward": ["heart", None, "eye", "skin"], "code": ["07", "7", "12", "7"], "age": [34, None, 70, None]},
            **{"dose": [1.5, 0.25, 1250, 2], "smokes": [True, False, True, False]},
        }
    )
    frame.to_parquet(folder / "own.parquet")
    np.testing.assert_array_equal(features("own.parquet", folder, card), expected)


def test_an_archive_finds_its_columns_by_their_names(tmp_path):
    columns = [{"name": name, "kind": "number", "missing": "refuse"} for name in ("a", "b")]
    card = {"columns": columns, "shape": [2]}
    np.savez(tmp_path / "own.npz", x=np.array([[1, 2], [3, 4]], np.float32), features=["b", "a"])
    assert features("own.npz", tmp_path, card).tolist() == [[2, 1], [4, 3]]
    np.savez(tmp_path / "own.npz", x=np.ones((2, 2), np.float32))
    with pytest.raises(
        UserError, match=r"own\.npz: features: got no names for x of shape \(2, 2\), expected a name for each"
    ):
        read_rows("own.npz", tmp_path, card)
    array = read_rows("own.npz", tmp_path, {"columns": None, "shape": [2]})
    assert array.shape == (2, 2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("north;old;1,5;True;heart;07", "age: got 'old' in row 1, expected a finite float32 number"),
        ("north;34;low;True;heart;07\nnorth;34;<0,5;True;heart;07", "dose: got 'low' in row 1, expected a finite"),
        ("north;34;1,5;True;lung;07", "ward: got 'lung' in row 1, expected one of 'eye', 'heart', 'skin' or none"),
        ("north;34;1,5;maybe;heart;07", "smokes: got 'maybe' in row 1, expected true or false"),
        ("north;34;1,5;True;heart;", "code: got no value in row 1, expected one of"),
    ],
)
def test_a_value_that_training_had_not_is_refused_with_its_row(table, line, said):
    folder, card, _ = table
    (folder / "new.csv").write_text(f"{FILE.splitlines()[0].removesuffix(';y')}\n{line}\n")
    with pytest.raises(ValueError, match=said):
        features("new.csv", folder, card)


def test_files_that_are_no_rows_of_the_model_are_refused(table):
    folder, card, _ = table
    (folder / "ragged.csv").write_text("age;dose;smokes\n1;2;true\n1;2\n")
    with pytest.raises(
        UserError, match=r"ragged\.csv: got 2 fields in row 2 \(without the header and blank lines\), expected 3"
    ):
        read_rows("ragged.csv", folder, card)
    (folder / "ragged.csv").write_text("age;dose;smokes\n1;2\n")
    with pytest.raises(UserError, match="got no row with as many fields as the header, 3, expected at least one"):
        read_rows("ragged.csv", folder, card)
    (folder / "own.txt").write_text(FILE)
    with pytest.raises(UserError, match=r"own\.txt: got another ending, expected \.csv, \.csv\.gz, \.parquet or \.npz"):
        read_rows("own.txt", folder, card)
    with pytest.raises(
        UserError, match=r"got a file that is not an archive, expected \.npz with the array x of shape \(rows, 8"
    ):
        read_rows("own.csv", folder, {"columns": None, "shape": [8]})


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("new.csv", "which holds the rows of INPUT, expected another file"),
        ("own.csv", r"which holds rows of data\.source, expected another file"),
        ("data/digits/labels.csv", "which is in the project's own data, expected a file elsewhere"),
        ("runs/labels.csv", "which is in the project's own runs, expected a file elsewhere"),
    ],
)
def test_predictions_do_not_replace_rows(output, message, table, monkeypatch):
    folder: Path = table[0]
    monkeypatch.chdir(folder)
    (folder / "new.csv").write_text(FILE)
    project: Any = SimpleNamespace(
        root=folder, params=SimpleNamespace(data=SimpleNamespace(source=Table.model_validate(OPTIONS)))
    )
    with pytest.raises(UserError, match=message):
        predict_file(project, "new.csv", output, None, "champion")


@pytest.mark.parametrize(
    ("decimal", "text", "said"),
    [
        (None, "1.250", r"expected one decimal mark\. Set `decimal: \".\"`"),
        (None, "12,500", r"expected one decimal mark\. Set `decimal: \".\"`"),
        (",", "1.5", r"expected a finite float32 number\. Correct the value"),
        (None, "1_000", r"expected a finite float32 number\. Correct the value"),
        (None, "<0.5", r"expected plain numbers\. Set `censored: limit` under data\.source"),
    ],
)
def test_a_number_that_training_would_refuse_is_refused_with_the_way_out(decimal, text, said, tmp_path):
    reading = {"decimal": decimal, "censored": "refuse", "na_values": None, "ignored": []}
    card = {"columns": [{"name": "x", "kind": "number", "missing": "refuse"}], "shape": [1], "reading": reading}
    (tmp_path / "new.csv").write_text(f"x;other\n3;a\n{text};b\n")
    rows = read_rows("new.csv", tmp_path, card)
    with pytest.raises(ValueError, match=rf"x: got '{text}' in row 2, {said}"):
        encode(rows[["x"]], card["columns"])


def test_a_decimal_comma_is_refused_without_advice_of_a_mark_as_by_serve(tmp_path):
    reading = {"decimal": None, "censored": "refuse", "na_values": None, "ignored": []}
    card = {"columns": [{"name": "x", "kind": "number", "missing": "refuse"}], "shape": [1], "reading": reading}
    (tmp_path / "new.csv").write_text('x,size\n3,1.5\n"1900,5",2.5\n')
    rows = read_rows("new.csv", tmp_path, card)
    said = r"x: got '1900,5' in row 2, expected a form such as 1234\.5\. To fix it, write them so \(a model reads numbers as"
    with pytest.raises(ValueError, match=said):
        encode(rows[["x"]], card["columns"])
