"""Reads a CSV or Parquet file into columns of inferred kinds."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from silos.errors import UserError, shown
from silos.io.free_memory import must_fit
from silos.schema import describe_duplicate
from silos.sources.source_checks import must_be_there
from silos.sources.tabular.column_kinds import AS_WRITTEN, Column, Conventions, read_texts, read_typed
from silos.sources.tabular.csv_file import read_csv

_VALUE_BYTES = 16  # the least bytes of a value with its copies


def read_parquet(name: str, path: Path) -> tuple[list[str], list[pa.ChunkedArray]]:
    """Return the names and values of the file's columns; UserError for an invalid or empty file."""
    try:
        with parquet.ParquetFile(path) as file:
            metadata = file.metadata
            groups = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
            needed = 2 * sum(groups) + _VALUE_BYTES * metadata.num_rows * metadata.num_columns
            must_fit(needed, f"{name}: got a table (with its copies)", "Save fewer rows or columns")
            table = file.read()
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = shown(" ".join(str(error).split()), 200)
        raise UserError(f"{name}: cannot be read as a Parquet file ({reason}). Write it again.") from error
    if not table.num_rows:
        raise UserError(f"{name}: got no rows, expected at least one. Add rows.")
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
            f"{name}: got another ending, expected {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} for a table. Export "
            "it as CSV, or rename it if it is such a file."
        )
    separator = ""
    if path.name.lower().endswith(_CSV):
        names, columns, separator = read_csv(name, path)
    else:
        names, columns = read_parquet(name, path)
    names = [each or f"Unnamed: {index}" for index, each in enumerate(names)]  # pandas' names for unnamed columns
    fault = describe_duplicate(names)
    if fault:
        raise UserError(f"{name}: header: {shown(fault, 300)}.")
    named = list(zip(names, columns, strict=True))
    if separator:
        read = list(read_texts(named, conventions, commas=separator == ";"))
    else:
        read = [read_typed(column_name, column, conventions) for column_name, column in named]
    return TableSample(name, tuple(read), separator, 2 if separator else 0)
