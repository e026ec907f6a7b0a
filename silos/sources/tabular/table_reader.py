"""Read a CSV or Parquet file into columns, and inspect their kinds and values."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from silos.errors import UserError, shown
from silos.io.free_memory import must_fit
from silos.schema import twice
from silos.sources.source_checks import must_be_there
from silos.sources.tabular.column_kinds import AS_WRITTEN, Column, Conventions, typed, written
from silos.sources.tabular.csv_file import read_csv

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
