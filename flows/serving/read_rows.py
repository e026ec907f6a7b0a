"""Reads a file of raw rows as `data.source` reads it, without labels, for a model that knows its columns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from silos.errors import UserError, shown
from silos.sources.npz import read_arrays
from silos.sources.tabular.column_kinds import ODD_NUMBERS, Column, Conventions
from silos.sources.tabular.column_selection import describe_odd_numbers
from silos.sources.tabular.table_reader import ENDINGS, TableSample, sample_table


def read_rows(name: str, path: Path, card: Mapping[str, Any]) -> pd.DataFrame | np.ndarray:
    """Return the rows of a file: a data frame with its columns, or an array for a model of rows without names.

    Args:
        name: The file's name in messages.
        path: A .csv, .csv.gz or .parquet file, or a .npz archive with the array x, and `features` if columns have names.
        card: The card of the model that will predict the rows.

    Raises:
        UserError: For a file that cannot be read, and for numbers that are not written plainly.
    """
    columns = card["columns"]
    if name.lower().endswith(".npz"):
        arrays = read_arrays(name, path, ("x",), ("features",))
        return arrays["x"] if columns is None else _named(name, arrays)
    if columns is None:
        raise UserError(
            f"{name}: got a file that is no archive, expected .npz with the array x of shape (rows, "
            f"{', '.join(map(str, card['shape']))}), since the model's rows have no named columns. Save them with "
            "numpy.savez."
        )
    if not name.lower().endswith(ENDINGS):
        raise UserError(f"{name}: got another ending, expected {', '.join(ENDINGS)} or .npz. Export the rows as CSV.")
    reading = dict(card.get("reading") or {})
    ignored = reading.pop("ignored", [])
    if reading.get("na_values") is not None:
        reading["na_values"] = tuple(reading["na_values"])
    kinds = {column["name"]: column["kind"] for column in columns}
    numbers = frozenset(column for column, kind in kinds.items() if kind == "number")
    sample = sample_table(path, name, Conventions(**reading, numbers=numbers))
    listed = [column for column in sample.columns if column.name not in ignored]
    return pd.DataFrame({column.name: _values(sample, column, kinds.get(column.name)) for column in listed})


def _named(name: str, arrays: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Return an archive's table with the names of its array `features`."""
    x, names = arrays["x"], arrays.get("features")
    if names is None or x.ndim != 2 or names.shape != x.shape[1:]:
        got = "no names" if names is None else f"{names.size} names"
        raise UserError(
            f"{name}: features: got {got} for x of shape {x.shape}, expected one for each column of a table, by which "
            "the model finds its inputs. Save them as the array `features`."
        )
    return pd.DataFrame(x, columns=[str(each) for each in names])


def _values(sample: TableSample, column: Column, expected: str | None) -> Any:
    """Return each row's value: numbers where the model expects them, else the value in the file; None if missing."""
    if expected == "number" and column.kind == "number":
        return column.per_row()
    if expected == "number" and column.kind in ODD_NUMBERS:
        raise UserError(
            f"{sample.name}: the column {shown(repr(column.name))}: {describe_odd_numbers(sample, column)}."
        )
    values = np.array([*column.values.to_pylist(), None], object)
    return values[column.codes]  # code -1 selects the None at the end
