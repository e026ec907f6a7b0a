"""Read a CSV or Parquet file into columns of inferred kinds, and trace features back to their columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from silos.data_params import DataParams
from silos.errors import UserError, shown
from silos.io.free_memory import must_fit
from silos.schema import Feature, describe_duplicate
from silos.sources.source_checks import must_be_there
from silos.sources.source_params import Table
from silos.sources.tabular.column_kinds import AS_WRITTEN, Column, Conventions, read_texts, read_typed
from silos.sources.tabular.csv_file import read_csv
from silos.storage.manifest import Manifest

_VALUE_BYTES = 16  # the least bytes of a value with its copies


def read_parquet(name: str, path: Path) -> tuple[list[str], list[pa.ChunkedArray]]:
    """Return the names and values of the file's columns; UserError for an invalid or empty file."""
    try:
        with parquet.ParquetFile(path) as file:
            metadata = file.metadata
            groups = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
            needed = 2 * sum(groups) + _VALUE_BYTES * metadata.num_rows * metadata.num_columns
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
    """A table as read from its file; `separator` is "" for Parquet, and `first` is the number of its first row."""

    name: str
    columns: tuple[Column, ...]
    separator: str
    first: int

    @property
    def rows(self) -> int:
        """Return the number of rows, without the header."""
        return len(self.columns[0].codes)

    def row(self, index: int) -> str:
        """Name a row for the user: the header counts as row 1 of a CSV, and not in a Parquet file."""
        return f"row {index + self.first}{' (the header is row 1)' if self.separator else ''}"

    def column(self, name: str) -> Column | None:
        """Return the column of this name; None if there is none."""
        return next((column for column in self.columns if column.name == name), None)


def sample_table(path: Path, name: str = "", conventions: Conventions = AS_WRITTEN) -> TableSample:
    """Read a .csv, .csv.gz or .parquet file; UserError, which calls it `name`, if it is no valid table."""
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
    names = [each or f"Unnamed: {index}" for index, each in enumerate(names)]  # pandas' names for unnamed columns
    fault = describe_duplicate(names)
    if fault:
        raise UserError(f"{name}: in its header {shown(fault, 300)}.")
    named = list(zip(names, columns, strict=True))
    if separator:
        read = list(read_texts(named, conventions, commas=separator == ";"))
    else:
        read = [read_typed(column_name, column, conventions) for column_name, column in named]
    return TableSample(name, tuple(read), separator, 2 if separator else 0)


_ONE_HOT = (0.0, 1.0)


def input_columns(manifest: Manifest, params: DataParams) -> list[dict[str, Any]] | None:
    """Return the columns that a model's inputs must have, as JSON, in the order of their features.

    For a `table` source these are the columns of its file, for others its features. None if columns have no names.
    """
    if not manifest.features:
        return None
    if isinstance(params.source, Table):
        return raw_columns(params.source, manifest.features, params.features)
    return [{"name": feature.name, "kind": "number", "missing": _rule(feature)} for feature in manifest.features]


def raw_columns(source: Table, features: Sequence[Feature], declared: Sequence[Feature]) -> list[dict[str, Any]]:
    """Return the columns of a file as JSON, in the order of their features: the inverse of `one_hot.build_features`.

    A text column has its `values`, and whether there is a feature for `missing` values. Any other column has `missing`,
    the rule of its feature. Names decide, unless a feature has a `column`: a feature `ward=eye` belongs to the text
    column `ward`, up to the first `=`.

    Args:
        source: The source of the table, whose `categorical` columns are text columns in any case.
        features: All features of the table, as its manifest lists them.
        declared: The features that params declare. None of them comes from a text column.
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
    """Return the value that replaces a missing value, `mean` or `refuse`."""
    return "refuse" if feature.fill is None else feature.fill


def _text_column(feature: Feature, source: Table) -> str | None:
    """Return the column of a one-hot feature; None if its name is not `column=value`."""
    name = feature.name
    if feature.column is not None:
        return None if name == feature.column else feature.column
    listed = [column for column in source.categorical if name.startswith(f"{column}=")]
    head, equals, _ = name.partition("=")
    return max(listed, key=len, default=head if equals else None)
