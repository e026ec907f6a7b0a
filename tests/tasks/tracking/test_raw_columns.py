"""The columns of a file are found again from its features, and encode its rows as the partition did."""

import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from models.preprocessing import encode
from silos.schema import Feature
from silos.sources.source_params import Table
from silos.sources.source_registry import load_source
from tasks.tracking.raw_columns import raw_columns

FILE = """site,age,smokes,ward,code,limit,y
north,34,True,heart,07,<=5,no
south,,False,,7,a=b,yes
north,70,true,eye,12,>5,yes
south,1e3,false,None,7,<=5,no
"""
OPTIONS = {"client": "site", "categorical": ["code"], "missing": {"fill": -2}}


def table(options):
    return Table.model_validate({"kind": "table", "path": "own.csv", "label": "y", **options})


@pytest.fixture
def read(tmp_path):
    """Writes a file, a text as CSV and columns as Parquet, and reads it."""

    def build(held, *declared, **options):
        if isinstance(held, str):
            (tmp_path / "own.csv").write_text(held)
        else:
            parquet.write_table(pa.table(held), tmp_path / "own.parquet")
            options["path"] = "own.parquet"
        return load_source(table(options), tmp_path, 0, tuple(Feature.model_validate(each) for each in declared))

    return build


def found(rows, *declared, **options):
    return raw_columns(table(options), rows.features, tuple(Feature.model_validate(each) for each in declared))


def test_columns_have_the_names_kinds_and_values_of_the_file(read):
    assert found(read(FILE, **OPTIONS), **OPTIONS) == [
        {"name": "age", "kind": "number", "missing": -2},
        {"name": "smokes", "kind": "boolean", "missing": -2},
        {"name": "ward", "kind": "text", "values": ["None", "eye", "heart"], "missing": True},
        {"name": "code", "kind": "text", "values": ["07", "7", "12"], "missing": False},
        {"name": "limit", "kind": "text", "values": ["<=5", ">5", "a=b"], "missing": False},
    ]


def test_rows_of_the_file_are_encoded_to_the_bits_of_the_partition(read):
    rows = read(FILE, **OPTIONS)
    text = pd.read_csv(io.StringIO(FILE), dtype={"code": str}, keep_default_na=False, na_values=[""])
    given = text[["limit", "code", "ward", "smokes", "age"]]
    expected = np.where(np.isnan(rows.x), np.float32(-2), rows.x)
    np.testing.assert_array_equal(encode(given, found(rows, **OPTIONS)), expected)


@pytest.mark.parametrize("name", ["a=b", "a is missing"])
def test_a_declared_column_and_a_listed_one_may_have_any_name(read, name):
    declared = {"name": name, "kind": "categorical", "categories": [0, 1]}
    held = {name: [0, 1, 1], "y": ["u", "v", "u"]}
    (column,) = found(read(held, declared), declared)
    assert column == {"name": name, "kind": "number", "missing": "refuse", "allowed": [0, 1]}
    (column,) = found(read(held, categorical=[name]), categorical=[name])
    assert column == {"name": name, "kind": "text", "values": ["0", "1"], "missing": False}


def test_a_column_has_the_limits_of_its_schema(read):
    declared = {"name": "age", "low": 0, "high": 120}
    (column,) = found(read({"age": [1, 2, 3], "y": ["u", "v", "u"]}, declared), declared)
    assert column == {"name": "age", "kind": "number", "missing": "refuse", "range": [0, 120]}


def test_columns_whose_names_look_like_a_value_of_another_are_found_again(read):
    held = "ward,ward is missing,ward=x,bmi>=30,bmi>=40,dose=mg,y\n"
    held += "eye,true,false,true,false,a=b,u\neye,false,true,true,true,,v\n"
    options = {"missing": {"fill": 0}}
    rows = read(held, **options)
    columns = found(rows, **options)
    assert [column["name"] for column in columns] == held.split(",y\n")[0].split(",")
    assert [column["kind"] for column in columns] == ["text", *4 * ["boolean"], "text"]
    assert columns[-1] == {"name": "dose=mg", "kind": "text", "values": ["a=b"], "missing": True}
    np.testing.assert_array_equal(encode(pd.read_csv(io.StringIO(held)).drop(columns="y"), columns), rows.x)
