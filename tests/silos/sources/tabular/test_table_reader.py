"""A first look at a table says of each column what it holds, without a label or any params."""

import pytest

from silos.errors import UserError
from silos.sources.tabular.table_reader import sample_table

HEADER = "id;site;age;smokes;visit;odd;none;bmi\n"
TABLE = "1;n;40;True;2020-01-01;1;;1,5\n2;n;NA;false;2020-02-01;x;;2,5\n3;s;41;;;2;;\n"


def test_each_column_has_its_kind_its_values_and_how_many_it_lacks(tmp_path):
    (tmp_path / "own.csv").write_text(HEADER + TABLE)
    look = sample_table(tmp_path / "own.csv")
    assert (look.rows, look.separator, look.row(0)) == (3, ";", "row 2 (the header is row 1)")
    assert [(c.name, c.kind, len(c.values), int(c.missing.sum()), c.example) for c in look.columns] == [
        ("id", "number", 3, 0, "'1'"),
        ("site", "text", 2, 0, "'n'"),
        ("age", "number", 2, 1, "'40'"),
        ("smokes", "boolean", 2, 1, "'True'"),
        ("visit", "date", 2, 1, "'2020-01-01'"),
        ("odd", "mixed", 3, 0, "'1'"),
        ("none", "empty", 0, 3, ""),
        ("bmi", "number", 2, 1, "'1,5'"),
    ]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"own\.csv: got no such file \(looked for"):
        sample_table(tmp_path / "own.csv")
    (tmp_path / "own.csv").mkdir()
    with pytest.raises(UserError, match=r"visits: got a folder \(looked for"):
        sample_table(tmp_path / "own.csv", "visits")
