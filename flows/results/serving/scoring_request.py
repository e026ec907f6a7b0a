"""Reads the body of a request to the scoring server, in the forms of MLflow's: its params, and its rows.

A missing value is null, or a text that a file would hold for it, as "". A record without a key is refused, and so are a
row with too few values and a doubled key.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from flows.results.serving.raw_rows import read_written
from models.model_card import ModelCard
from silos.errors import shown, some

_FORMS = ("dataframe_split", "dataframe_records", "inputs", "instances")
Rows: TypeAlias = "pd.DataFrame | np.ndarray | list[object]"
"""Rows with names as a data frame, others as an array, or as a request has them."""

PARAMS = {"client": str, "statistics": list, "made_as": str}


class RequestError(Exception):
    """A request that cannot be answered: its HTTP status, a code as in MLflow's errors, and a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def bad_request(message: str) -> RequestError:
    """Return the error of a request whose body cannot be answered."""
    return RequestError(400, "BAD_REQUEST", message)


class _Doubled(dict[str, object]):
    """A JSON object in which a key is doubled."""

    key = ""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        fields = _Doubled(fields)
        fields.key = next(name for name in names if names.count(name) > 1)
    return fields


@dataclass(frozen=True)
class ScoringRequest:
    """The content of a request: one of the forms of rows, and params."""

    form: str
    content: Any
    params: Mapping[str, Any]

    def rows(self, card: ModelCard) -> Rows:
        """Return rows with names as a data frame, and others as they are; RequestError if they are not of the model."""
        columns = None if card["columns"] is None else [column["name"] for column in card["columns"]]
        try:
            rows = self._frame(columns)
        except (ValueError, TypeError, OverflowError) as error:
            raise bad_request(
                f"{self.form}: cannot be read as rows with columns ({shown(str(error), 200)}). Correct it."
            ) from None
        if isinstance(rows, list) and not rows:
            return (
                pd.DataFrame(columns=columns) if columns is not None else np.zeros((0, *card["shape"]), card["dtype"])
            )
        if columns is not None and not isinstance(rows, pd.DataFrame):
            names = some(columns, 10)
            raise bad_request(
                f"{self.form}: got rows without names, expected the columns {names}. Send dataframe_records."
            )
        return rows

    def clients(self, column: str | None) -> list[str | None] | None:
        """Return the client that each row names, a number as the body has it; None if rows have no such column.

        Call it if `rows` are a data frame, which makes floats of integers if some are null.
        """
        if column is None:
            return None
        content, names = self.content, None
        if self.form == "dataframe_split":
            content, names = content["data"], content.get("columns")
        if isinstance(content, Mapping):
            values = content.get(column)
        elif content and all(isinstance(row, Mapping) for row in content):
            values = [row.get(column) for row in content] if any(column in row for row in content) else None
        elif names is None or names.count(column) != 1:
            return None
        else:
            values = [row[names.index(column)] if isinstance(row, list) else row for row in content]
        if values is None:
            return None
        return [None if each is None or each != each or not str(each).strip() else str(each) for each in values]

    def _frame(self, columns: Sequence[str] | None) -> Rows:
        if self.form == "dataframe_split":
            return _split(self.content)
        content = self.content
        if isinstance(content, list) and content and all(isinstance(row, Mapping) for row in content):
            return _records(content, columns)
        if self.form == "dataframe_records" and content != []:
            raise ValueError("it is not a list of objects")
        return _lists(content) if isinstance(content, Mapping) else content


def _split(content: object) -> pd.DataFrame | list[object]:
    """Return `data` as a data frame with the names `columns`, or without `columns` as it is."""
    if not isinstance(content, Mapping):
        raise ValueError("it has no `columns` and `data`")
    _check_keys(content)
    rows, names = content.get("data"), content.get("columns")
    if not isinstance(rows, list):
        raise ValueError("its `data` are not a list of rows")
    if names is None:
        return rows
    if not isinstance(names, list) or any(isinstance(name, list | dict) for name in names):
        raise ValueError("its `columns` are not a list of names")
    if rows and all(isinstance(row, Mapping) for row in rows):
        return _records(rows, names)
    rows = [row if isinstance(row, list) else [row] for row in rows]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(f"got {len(row)} values in row {number}, expected {len(names)} as in `columns`")
    return pd.DataFrame(rows, columns=names)


def _records(content: Sequence[Mapping[str, object]], columns: Sequence[str] | None) -> pd.DataFrame:
    """Return records as a data frame; each has all columns of the model that any has."""
    expected = {name for row in content for name in row if columns is None or name in columns}
    for number, row in enumerate(content, 1):
        _check_keys(row, f" in row {number}")
        if len(missing := expected - row.keys()):
            raise ValueError(f"got no {min(missing)!r} in row {number}, expected null if its value is missing")
    return pd.DataFrame(content)


def _lists(content: Mapping[str, object]) -> pd.DataFrame:
    """Return a list of values for each column as a data frame."""
    _check_keys(content)
    for name, values in content.items():
        if not isinstance(values, list):
            raise ValueError(f"{name!r} is not a list of values")
    return pd.DataFrame(dict(content))


def _check_keys(content: Mapping[str, object], where: str = "") -> None:
    if isinstance(content, _Doubled):
        raise ValueError(f"got {content.key!r} twice{where}, expected it once")


def as_written(rows: pd.DataFrame, card: ModelCard) -> pd.DataFrame:
    """Return rows with their texts read as those of a file; RequestError for a text that is none."""
    try:
        return read_written(rows, card)
    except ValueError as error:  # of half a character
        raise bad_request(f"rows: cannot be read as text ({shown(str(error), 200)}). Correct it.") from None


def parse_request(body: bytes) -> ScoringRequest:
    """Return the content of a body; RequestError if it is not of MLflow's forms."""
    try:
        fields = json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"body: got no JSON ({shown(str(error))}), expected an object. Correct it.") from None
    if not isinstance(fields, dict):
        raise bad_request(
            f"body: got a JSON {type(fields).__name__}, expected an object with one of {some(_FORMS, 4)}. Send one."
        )
    if isinstance(fields, _Doubled):
        raise bad_request(f"body: got the key {shown(repr(fields.key))} twice, expected it once. Send one.")
    params = _params(fields.pop("params", None))
    if len(fields) != 1 or (form := next(iter(fields))) not in _FORMS:
        raise bad_request(
            f"body: got the keys {some(list(fields), 5) or 'none'}, expected one of {some(_FORMS, 4)}. Send one."
        )
    return ScoringRequest(form, fields[form], params)


def _params(given: object) -> dict[str, Any]:
    """Return the arguments of OpenModel.predict that a request names."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise bad_request(f"params: got {shown(given)}, expected an object with {some(list(PARAMS), 3)}. Correct it.")
    if isinstance(given, _Doubled):
        raise bad_request(f"params: got {shown(repr(given.key))} twice, expected it once. Correct it.")
    for key, value in given.items():
        kind = PARAMS.get(key)
        if kind is None:
            raise bad_request(f"params: got {shown(repr(key))}, expected {some(list(PARAMS), 3)}. Correct the name.")
        numbers = kind is not list or (isinstance(value, list) and all(map(_is_number, value)))
        if not isinstance(value, kind) or not numbers:
            raise bad_request(
                f"params: {key}: got {shown(value)}, expected {'text' if kind is str else 'a list of numbers'}. Correct it."
            )
    return given


def _is_number(value: object) -> bool:
    """Return whether a value is a number that a float can hold."""
    return type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)
