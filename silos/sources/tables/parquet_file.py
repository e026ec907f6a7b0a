"""A Parquet file as columns with types."""

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from silos.errors import UserError, shown
from silos.machine.free_memory import must_fit

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
