"""Read a CSV or Parquet file into columns, and inspect their kinds and values.

The columns of a table as its file has them, found from the features that they became.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from silos.data_params import DataParams
from silos.errors import UserError, shown
from silos.io.free_memory import must_fit
from silos.schema import Feature, twice
from silos.sources.source_checks import must_be_there
from silos.sources.source_params import Table
from silos.sources.tabular.column_kinds import AS_WRITTEN, Column, Conventions, typed, written
from silos.sources.tabular.csv_file import read_csv
from silos.storage.manifest import Manifest

_CELL = 16  # bytes of a value with its copies, at least


def read_parquet(name: str, path: Path) -> tuple[list[str], list[pa.ChunkedArray]]:
    """The names and values of its columns; UserError for a file that is none, or has no rows."""
    try:
        with parquet.ParquetFile(path) as file:
            held = file.metadata
            groups = [held.row_group(at).total_byte_size for at in range(held.num_row_groups)]
            needed = 2 * sum(groups) + _CELL * held.num_rows * held.num_columns
            must_fit(needed, f"{name} with its copies", "save fewer rows or columns")
            table = file.read()
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = shown(" ".join(str(error).split()), 200)
        raise UserError(f"{name} cannot be read as a Parquet file ({reason}); write it again.") from error
    if not table.num_rows:
        raise UserError(f"{name} has no rows; give it at least one.")
    return [column.strip() for column in table.column_names], table.columns


_CSV = (".csv", ".csv.gz")
ENDINGS = (*_CSV, ".parquet")


@dataclass(frozen=True)
class TableSample:
    """A table as it lies in its file. `separator` is "" of a Parquet file, and `first` the number of its first row."""

    name: str
    columns: tuple[Column, ...]
    separator: str
    first: int

    @property
    def rows(self) -> int:
        """How many there are, without the header."""
        return len(self.columns[0].codes)

    def row(self, at: int) -> str:
        """What a person calls a row, who counts the header of a CSV in and that of a Parquet file not."""
        return f"row {at + self.first}{' (the header is row 1)' if self.separator else ''}"

    def column(self, name: str) -> Column | None:
        """The column of this name; None if there is none."""
        return next((column for column in self.columns if column.name == name), None)


def sample_table(path: Path, name: str = "", conventions: Conventions = AS_WRITTEN) -> TableSample:
    """What is in a .csv, .csv.gz or .parquet file; UserError, which calls it `name`, where it cannot be read as a table."""
    path = Path(path)
    name = name or path.name
    must_be_there(name, path)
    if not path.name.lower().endswith(ENDINGS):
        raise UserError(
            f"{name}: a table is a file with the ending {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}; export this one as "
            "CSV, or rename it if it is such a file."
        )
    separator = ""
    if path.name.lower().endswith(_CSV):
        names, columns, separator = read_csv(name, path)
    else:
        names, columns = read_parquet(name, path)
    names = [each or f"Unnamed: {at}" for at, each in enumerate(names)]  # as pandas calls them
    fault = twice(names)
    if fault:
        raise UserError(f"{name}: in its header {shown(fault, 300)}.")
    named = list(zip(names, columns, strict=True))
    if separator:
        made = list(written(named, conventions, commas=separator == ";"))
    else:
        made = [typed(each, column, conventions) for each, column in named]
    return TableSample(name, tuple(made), separator, 2 if separator else 0)


_ONE_HOT = (0.0, 1.0)


def columns_of(manifest: Manifest, params: DataParams) -> list[dict[str, Any]] | None:
    """Return what a model must know of the columns of a table, as JSON, in the order of their features.

    Of a `table` source these are the columns of its file, of another one its features. None if columns have no names.
    """
    if not manifest.features:
        return None
    if isinstance(params.source, Table):
        return raw_columns(params.source, manifest.features, params.features)
    return [{"name": one.name, "kind": "number", "missing": _rule(one)} for one in manifest.features]


def raw_columns(source: Table, features: Sequence[Feature], declared: Sequence[Feature]) -> list[dict[str, Any]]:
    """Return the columns of a file as JSON, in the order of their features: the inverse of `one_hot.features_of`.

    A text column has its `values`, and whether there is a feature for `missing` ones; any other column has `missing`, the
    rule of its feature. Names decide, unless a feature has a `column`: a feature `ward=eye` belongs to the text column
    `ward`, up to the first `=`.

    Args:
        source: The source of the table, whose `categorical` columns are text columns in any case.
        features: All features of the table, as its manifest lists them.
        declared: The features that params describe. None of them comes from a text column.
    """
    single = {feature.name for feature in declared}
    columns: list[dict[str, Any]] = []
    for feature in features:
        last = columns[-1] if columns else None
        one_hot = feature.categories == _ONE_HOT and feature.name not in single
        if one_hot and last is not None and last["kind"] == "text" and feature.column in (None, last["name"]):
            if feature.name.startswith(f"{last['name']}="):
                last["values"].append(feature.name.removeprefix(f"{last['name']}="))
                continue
            if feature.name == f"{last['name']} is missing":
                last["missing"] = True
                continue
        name = _text_column(feature, source) if one_hot else None
        if name is not None:
            value = feature.name.removeprefix(f"{name}=")
            columns.append({"name": name, "kind": "text", "values": [value], "missing": False})
        else:
            kind = "boolean" if one_hot else "number"
            columns.append({"name": feature.name, "kind": kind, "missing": _rule(feature)})
    return columns


def _rule(feature: Feature) -> float | str:
    """Return what stands for a missing value: a number, `mean` or `refuse`."""
    return "refuse" if feature.fill is None else feature.fill


def _text_column(feature: Feature, source: Table) -> str | None:
    """Return the column that a one-hot feature comes from; None if its name is no `column=value`."""
    name = feature.name
    if feature.column is not None:
        return None if name == feature.column else feature.column
    listed = [column for column in source.categorical if name.startswith(f"{column}=")]
    head, equals, _ = name.partition("=")
    return max(listed, key=len, default=head if equals else None)
