"""Reads a CSV or Parquet file into columns of inferred kinds; CSV is UTF-8 with a header and a detected separator."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyarrow import csv as arrow
from pyarrow import parquet

from silos.errors import UserError, shown
from silos.io.memory_and_disk import must_fit
from silos.schema import describe_duplicate
from silos.sources.source_checks import must_be_there
from silos.sources.tabular.column_kinds import AS_WRITTEN, Column, Conventions, read_texts, read_typed
from silos.sources.tabular.number_parser import WrittenNumbers

_VALUE_BYTES = 16  # the least bytes of a value with its copies

_SEPARATORS = (",", ";", "\t", "|")
_HEAD = 1 << 20  # characters in which the separator is detected
_RECORDS = 50
_CHUNK = 1 << 26  # bytes
_COPIES = 10  # of the file's size in memory, measured: text, texts, distinct texts, codes, numbers, rows
_OTHER_ENCODINGS = {
    **dict.fromkeys((b"\xff\xfe\0\0", b"\0\0\xfe\xff"), "UTF-32"),  # first: the former begins as UTF-16 does
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "UTF-16"),
}
"""The encoding of a file that begins with these bytes."""


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

    @cached_property
    def with_points(self) -> tuple[str, ...]:
        """Return the columns of numbers in a text file that cannot be read with decimal commas."""
        of_numbers = [column for column in self.columns if column.kind == "number"]
        texts = [c for c in of_numbers if pa.types.is_string(c.values.type) or pa.types.is_large_string(c.values.type)]
        return tuple(column.name for column in texts if "." in WrittenNumbers(column.values).marks)

    def column(self, name: str) -> Column | None:
        """Return the column of this name; None if there is none."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True)
class RawTable:
    """A table's names and values as its file has them; `separator` is "" for Parquet."""

    name: str
    columns: Sequence[tuple[str, pa.ChunkedArray]]
    separator: str

    def sample(self, conventions: Conventions) -> TableSample:
        """Read the values by these conventions."""
        if self.separator:
            read = list(read_texts(self.columns, conventions, commas=self.separator == ";"))
        else:
            read = [read_typed(name, values, conventions) for name, values in self.columns]
        return TableSample(self.name, tuple(read), self.separator, 2 if self.separator else 0)


def sample_table(path: Path, name: str = "", conventions: Conventions = AS_WRITTEN) -> TableSample:
    """Read a .csv, .csv.gz or .parquet file; UserError, which calls it `name`, if it is no valid table."""
    return raw_table(path, name).sample(conventions)


def raw_table(path: Path, name: str = "", ragged: list[arrow.InvalidRow] | None = None) -> RawTable:
    """Read the texts or values of a file; see `sample_table`.

    Args:
        path: A .csv, .csv.gz or .parquet file.
        name: The file's name in messages.
        ragged: A list for the rows of a CSV with too few or too many fields, which are left out; they are refused if it
            is None.
    """
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
        names, columns, separator = read_csv(name, path, ragged)
    else:
        names, columns = read_parquet(name, path)
    names = [each or f"Unnamed: {index}" for index, each in enumerate(names)]  # pandas' names for unnamed columns
    fault = describe_duplicate(names)
    if fault:
        raise UserError(f"{name}: header: {shown(fault, 300)}.")
    return RawTable(name, list(zip(names, columns, strict=True)), separator)


def read_csv(
    name: str, path: Path, ragged: list[arrow.InvalidRow] | None = None
) -> tuple[list[str], list[pa.ChunkedArray], str]:
    """Return the header's names, a text column for each, and the separator; UserError for an invalid file."""
    data = _read_bytes(name, path)
    if not data.strip():
        raise UserError(
            f"{name}: got an empty file, expected a header with the names of the columns, and rows "
            "below it. Save it again."
        )
    head = _check_encoding(name, data)
    if re.match(r'"?sep=', head, re.IGNORECASE):
        raise UserError(
            f"{name}: got {shown(repr(head.splitlines()[0]), 40)} in row 1, expected the header. Delete row 1."
        )
    separator = _detect_separator(head)
    table = _parse(name, data if data.endswith((b"\n", b"\r")) else data + b"\n", separator, head, ragged)
    names = [column[0].as_py().strip() for column in table.columns]
    if table.num_rows < 2 and ragged:
        raise UserError(
            f"{name}: got no row with as many fields as the header, {ragged[0].expected_columns}, expected at least one. "
            "Correct the rows."
        )
    if table.num_rows < 2:
        raise UserError(f"{name}: got a header without rows, expected at least one row. Add rows.")
    return names, [column.slice(1) for column in table.columns], separator


def _read_bytes(name: str, path: Path) -> bytes:
    is_gzip = path.name.lower().endswith(".gz")
    chunks: list[bytes] = []
    try:
        with gzip.open(path) if is_gzip else path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                chunks.append(chunk)
                must_fit(
                    _COPIES * sum(map(len, chunks)),
                    f"{name}: got a table (with its copies)",
                    "Save fewer rows or columns",
                )
    except (OSError, EOFError, zlib.error) as error:
        kind = "as gzip " if is_gzip else ""
        raise UserError(f"{name}: cannot be read {kind}({error}). Write it again.") from error
    data = b"".join(chunks)
    return data.removeprefix(b"\xef\xbb\xbf")


def _check_encoding(name: str, data: bytes) -> str:
    """Check that the file is UTF-8 text, and return its first characters."""
    encoding = next((encoding for mark, encoding in _OTHER_ENCODINGS.items() if data.startswith(mark)), None)
    if encoding is not None:
        raise UserError(
            f"{name}: got {encoding} text, expected UTF-8. Save it as UTF-8 (in a spreadsheet: `CSV UTF-8`)."
        )
    position = data.find(b"\0")
    if position >= 0:
        raise UserError(
            f"{name}: got a zero byte in line {_line_number(data, position)}, expected text. Export it as CSV."
        )
    try:
        return data.decode()[:_HEAD]
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}: got the byte {data[error.start]:#04x} in line {_line_number(data, error.start)}, expected "
            "UTF-8 text. Save it as UTF-8 (in a spreadsheet: `CSV UTF-8`; or iconv -f latin1 -t utf-8, if it is "
            "Latin-1)."
        ) from None


def _line_number(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _detect_separator(head: str) -> str:
    """Choose the separator that cuts the first lines into most fields, the same number in each line."""
    if len(head) == _HEAD:
        head = head[: head.rfind("\n") + 1] or head
    widths = {separator: _width(head, separator) for separator in _SEPARATORS}
    best = max(_SEPARATORS, key=lambda separator: widths[separator])
    if widths[best] > 1:
        return best
    header = head.lstrip().split("\n", 1)[0]
    return max(_SEPARATORS, key=header.count)  # field counts differ, and the parser reports the line


def _width(head: str, separator: str) -> int:
    """Return the number of fields of a line; 0 if lines differ."""
    try:
        reader = csv.reader(io.StringIO(head, newline=""), delimiter=separator)
        widths = {len(record) for record in islice(reader, _RECORDS) if record}
    except csv.Error:
        return 0
    return widths.pop() if len(widths) == 1 else 0


def _parse(name: str, data: bytes, separator: str, head: str, ragged: list[arrow.InvalidRow] | None) -> pa.Table:
    """Parse every field as text, with the header as the first row."""
    width = _header_width(head, separator)
    faults: list[arrow.InvalidRow] = [] if ragged is None else ragged

    def collect(row: arrow.InvalidRow) -> str:
        faults.append(row)
        return "error" if ragged is None else "skip"

    try:
        return arrow.read_csv(
            pa.BufferReader(data),
            # in one thread, so that errors have row numbers
            read_options=arrow.ReadOptions(autogenerate_column_names=True, block_size=1 << 24, use_threads=False),
            parse_options=arrow.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=collect),
            convert_options=arrow.ConvertOptions(
                column_types={f"f{index}": pa.string() for index in range(width)}, strings_can_be_null=False
            ),
        )
    except pa.ArrowException as error:
        if faults:
            row = faults[0]
            raise UserError(
                f"{name}: got {row.actual_columns} fields in row {row.number} (the header is row 1), expected "
                f"{row.expected_columns} as in the header, separated by {separator!r}: "
                f"{shown(repr(row.text), 40)}. Correct the row, and write a field that contains {separator!r} or "
                "a line break in quotes."
            ) from None
        raise UserError(
            f"{name}: cannot be read as CSV ({shown(' '.join(str(error).split()), 200)}). Write it again."
        ) from error


def _header_width(head: str, separator: str) -> int:
    """Return the header's number of fields."""
    try:
        return next(len(record) for record in csv.reader(io.StringIO(head, newline=""), delimiter=separator) if record)
    except (csv.Error, StopIteration):
        return head.count(separator) + 1  # an upper bound
