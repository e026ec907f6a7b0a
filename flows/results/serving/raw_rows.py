"""Reads raw rows of a file or of a request: the values of the model's columns, each row's client, and other columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from models.model_card import ModelCard, TextColumn
from models.preprocessing import UnreadNumber
from silos.data_params import Column as ByColumn
from silos.data_params import DataParams
from silos.errors import UserError, shown
from silos.sources.npz import read_arrays
from silos.sources.source_params import Table
from silos.sources.tabular.column_kinds import ODD_NUMBERS, Column, Conventions, read_texts
from silos.sources.tabular.column_rules import wanted_numbers
from silos.sources.tabular.number_parser import WrittenNumbers
from silos.sources.tabular.table_reader import ENDINGS, RawTable, raw_table

_ROLES = ("client", "domain")


def client_column(data: DataParams) -> str | None:
    """Return the column of a file that names the client of data/ of each row; None if no column does."""
    role = next((step.column for step in data.scheme if isinstance(step, ByColumn)), None)
    if role is None or not isinstance(data.source, Table):
        return role
    return data.source.roles.get(role)


@dataclass(frozen=True)
class RowFile:
    """A file with raw rows, of which no value has been read yet.

    Attributes:
        name: The file's name in messages.
        table: The columns of a table, or the arrays of an archive.
        numbers: The number of each row, (rows,) from 1; the header and blank lines have none.
        ragged: A sentence for each row that was left out since it has too few or too many fields, by its number.
    """

    name: str
    table: RawTable | dict[str, np.ndarray]
    numbers: np.ndarray
    ragged: dict[int, str] = field(default_factory=dict)

    @classmethod
    def open(cls, name: str, path: Path, leave_out_ragged: bool) -> "RowFile":
        """Open a .csv, .csv.gz or .parquet file, or a .npz archive with x; UserError if it cannot be read."""
        if name.lower().endswith(".npz"):
            arrays = read_arrays(name, path, ("x",), ("features", *_ROLES))
            return cls(name, arrays, np.arange(1, len(np.atleast_1d(arrays["x"])) + 1))
        if not name.lower().endswith(ENDINGS):
            raise UserError(
                f"{name}: got another ending, expected {', '.join(ENDINGS)} or .npz. Export the rows as CSV."
            )
        left_out: list[Any] = []
        table = raw_table(path, name, left_out)
        ragged = {
            row.number - 1: f"got {row.actual_columns} fields in row {row.number - 1} (without the header and blank "
            f"lines), expected {row.expected_columns} as in the header. Correct or drop the row."
            for row in left_out
        }
        if ragged and not leave_out_ragged:
            raise UserError(f"{name}: {next(iter(ragged.values()))} --skip-bad-rows predicts the others.")
        count = len(table.columns[0][1]) + len(ragged)
        return cls(name, table, np.setdiff1d(np.arange(1, count + 1), [*ragged]), ragged)

    @property
    def column_names(self) -> list[str]:
        """Return the names of a table's columns."""
        return [name for name, _ in self.table.columns] if isinstance(self.table, RawTable) else []

    def texts(self, name: str, na_values: Sequence[str] | None) -> list[str | None] | None:
        """Return each row's text in a column of names, None where it is missing; None if there is no such column."""
        if not isinstance(self.table, RawTable):
            array = self.table.get(name) if name in _ROLES else None
            return None if array is None else [str(each) for each in array.tolist()]
        named = [(each, values) for each, values in self.table.columns if each == name]
        if not named:
            return None
        only = RawTable(self.name, named, self.table.separator)
        (column,) = only.sample(Conventions(na_values=None if na_values is None else tuple(na_values))).columns
        return [None if code < 0 else column.texts[code] for code in column.codes.tolist()]

    def rows(self, card: ModelCard, no_features: Sequence[str] = ()) -> pd.DataFrame | np.ndarray:
        """Return the rows as the model takes them: a data frame with its columns, or an array if they have no names.

        Args:
            card: The model's card.
            no_features: Columns to leave out, besides those that the card ignores.

        Raises:
            UserError: If the file has no rows of this kind.
        """
        columns = card["columns"]
        if not isinstance(self.table, RawTable):
            return self.table["x"] if columns is None else _named(self.name, self.table)
        if columns is None:
            raise UserError(
                f"{self.name}: got a file that is not an archive, expected .npz with the array x of shape (rows, "
                f"{', '.join(map(str, card['shape']))}), since the model's rows have no named columns. Save them with "
                "numpy.savez."
            )
        kinds = {column["name"]: column["kind"] for column in columns}
        ignored = {*ignored_columns(card), *no_features} - kinds.keys()
        sample = self.table.sample(conventions_of(card))
        return pd.DataFrame(
            {each.name: _values(each, kinds.get(each.name)) for each in sample.columns if each.name not in ignored}
        )

    def others(self, names: Sequence[str], wanted: Sequence[str]) -> pd.DataFrame:
        """Return these columns as they are in the file, texts of a CSV as written there.

        Lists and bytes of a Parquet file are left out; UserError for those that are `wanted`.
        """
        if not isinstance(self.table, RawTable):
            return pd.DataFrame(index=range(len(self.numbers)))
        as_written = Conventions(na_values=(), texts=frozenset(names))
        chosen = [(name, values) for name, values in self.table.columns if name in names]
        columns = RawTable(self.name, chosen, self.table.separator).sample(as_written).columns
        for column in columns:
            if column.kind == "other" and column.name in wanted:
                raise UserError(
                    f"--keep: got {shown(repr(column.name))} with values of type {shown(column.detail)}, expected text "
                    "or numbers. Leave it out of --keep."
                )
        plain = [column for column in columns if column.kind != "other"]
        return pd.DataFrame({column.name: _values(column, None) for column in plain}, index=range(len(self.numbers)))


def conventions_of(card: ModelCard) -> Conventions:
    """Return how the model's table is read from a file: by the kinds of its columns, and as `data.source` said."""
    columns = card["columns"] or ()
    of_columns = Conventions(
        numbers=frozenset(column["name"] for column in columns if column["kind"] == "number"),
        texts=frozenset(column["name"] for column in columns if column["kind"] == "text" and _are_texts(column)),
    )
    reading = card.get("reading")  # models that earlier versions logged have none
    if not reading:
        return of_columns
    na_values = reading.get("na_values")
    return replace(
        of_columns,
        decimal=reading.get("decimal"),
        censored=reading.get("censored", "refuse"),
        na_values=None if na_values is None else tuple(na_values),
    )


def ignored_columns(card: ModelCard) -> list[str]:
    """Return the columns of the table that are no features; models that earlier versions logged name none."""
    reading = card.get("reading")
    return reading["ignored"] if reading else []


def _are_texts(column: TextColumn) -> bool:
    """Return whether a column's values are texts, in which NA is one, and not codes."""
    folded = [value.lower() for value in column["values"]]
    codes = WrittenNumbers(pa.array(folded, pa.large_string())).are_numbers.all() or {*folded} <= {"true", "false"}
    return not codes


def read_written(rows: pd.DataFrame, card: ModelCard) -> pd.DataFrame:
    """Return the rows of a request with texts read as those of a file, such as <0.5 among numbers."""
    rows = rows.set_axis([str(name) for name in rows.columns], axis=1)  # JSON may hold numbers as names
    kinds = {column["name"]: column["kind"] for column in card["columns"] or ()}
    written = {}
    for name in rows.columns if rows.columns.is_unique else ():
        values = rows[name].tolist() if name in kinds and not pd.api.types.is_numeric_dtype(rows[name]) else []
        if any(isinstance(value, str) for value in values):
            texts = [value if isinstance(value, str) else "" for value in values]
            written[name] = (values, pa.chunked_array([pa.array(texts, pa.string())]))
    for column in read_texts([(name, texts) for name, (_, texts) in written.items()], conventions_of(card)):
        read = _values(column, kinds[column.name]).tolist()
        pairs = zip(written[column.name][0], read, strict=True)
        rows[column.name] = pd.Series(
            [new if isinstance(old, str) else old for old, new in pairs], rows.index, dtype=object
        )
    return rows


def _named(name: str, arrays: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Return an archive's table with the names of its array `features`."""
    x, names = arrays["x"], arrays.get("features")
    if names is None or x.ndim != 2 or names.shape != x.shape[1:]:
        got = "no names" if names is None else f"{names.size} names"
        raise UserError(
            f"{name}: features: got {got} for x of shape {x.shape}, expected a name for each column, since the "
            "model finds its inputs by name. Save the names as the array `features`."
        )
    return pd.DataFrame(x, columns=[str(each) for each in names])


def _values(column: Column, expected: str | None) -> np.ndarray:
    """Return each row's value: numbers where the model expects them, else the value in the file; None if missing.

    A text that the model's table does not read as a number becomes an UnreadNumber, so that a message quotes it.
    """
    values = np.array([*column.values.to_pylist(), None], object)[column.codes]  # code -1 selects the None at the end
    if expected != "number" or column.kind not in ("number", *ODD_NUMBERS):
        return values
    numbers = column.per_row()
    unreadable = np.isnan(numbers) & ~column.missing
    if not unreadable.any():
        return numbers
    unread = {code: _unread(column, column.texts[code]) for code in np.unique(column.codes[unreadable]).tolist()}
    read = numbers.astype(object)
    read[unreadable] = [unread[code] for code in column.codes[unreadable].tolist()]
    return read


def _unread(column: Column, text: str) -> UnreadNumber:
    """Return a text of the column that it does not read, with what its kind says of it."""
    is_number = WrittenNumbers(pa.array([text.lower()], pa.large_string())).are_numbers.all()
    if not is_number or column.kind == "number" or (column.kind == "unplain" and not column.detail):
        return UnreadNumber(text)
    # a model does not know which other columns have decimal points, so that it advises no mark
    wanted = "a form such as 1234.5. To fix it, write them so" if column.kind == "unplain" else wanted_numbers(column)
    return UnreadNumber(text, f"{wanted} (a model reads numbers as its run did)")
