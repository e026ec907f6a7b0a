"""What a column of a table holds: numbers, true or false, texts, or what no feature can be made of."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from silos.errors import shown

Kind = Literal["number", "boolean", "text", "date", "mixed", "unplain", "empty", "other"]

# of a column of numbers in a CSV; among texts they are texts, as NA is Namibia
_MISSING = pa.array(["#n/a", "#na", "<na>", "n/a", "na", "nan", "none", "null"])
_NUMBER = r"^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)$"
_DECIMAL_COMMA = r"^[+-]?((\d+,?\d*|,\d+)(e[+-]?\d+)?|inf(inity)?)$"
_UNPLAIN = r"^[$€£]?\s?[+-]?\d[\d.,'\s\x{a0}\x{202f}]*\s?[%$€£]?$"
_DATE = (
    r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([tT ]\d.*)?$|^\d{1,2}:\d{2}(:\d{2}.*)?$"
)


@dataclass(frozen=True)
class Column:
    """One column as it lies in its file, each of its values once.

    codes: (rows,) int32, the place of a row's value in `values`, -1 where there is none; numbers: (values,) float64, NaN of
    what is no number. `described` says of the kind `other` what it holds.
    """

    name: str
    kind: Kind
    codes: np.ndarray
    values: pa.Array
    numbers: np.ndarray
    described: str = ""

    @property
    def missing(self) -> np.ndarray:
        """Where there is no value: (rows,) bool."""
        return self.codes < 0

    @property
    def used(self) -> np.ndarray:
        """The codes that occur, ascending."""
        return np.flatnonzero(np.bincount(self.codes[~self.missing]))

    @cached_property
    def texts(self) -> list[str]:
        """The values as text, those of a CSV as they are written there."""
        return [str(value) for value in self.values.to_pylist()]

    @property
    def example(self) -> str:
        """The first value that there is, as a sentence quotes it; "" where there is none."""
        held = self.codes[~self.missing]
        return shown(repr(self.texts[held[0]]), 40) if len(held) else ""

    def per_row(self) -> np.ndarray:
        """The number of each row: (rows,) float64, NaN where there is none."""
        return np.append(self.numbers, np.nan)[self.codes]  # of -1 the last

    def take(self, chosen: np.ndarray) -> "Column":
        """The column in these rows only."""
        return replace(self, codes=self.codes[chosen])


def written(name: str, values: pa.ChunkedArray, decimal_comma: bool) -> Column:
    """A column of a CSV, whose kind is read from its texts; an empty text is no value."""
    codes, texts = _encoded(pc.utf8_trim_whitespace(pc.cast(values, pa.large_string())))
    codes, texts = _without(codes, texts, pc.equal(texts, ""))
    words = pc.is_in(pc.utf8_lower(texts), value_set=_MISSING)
    told_codes, told = _without(codes, texts, words)
    folded = pc.utf8_lower(told)
    if not len(told):
        return Column(name, "empty", told_codes, told, np.empty(0))
    numbers = _numbers(folded, decimal_comma)
    found = int((~np.isnan(numbers)).sum())
    if found == len(told):
        return Column(name, "number", told_codes, told, numbers)
    if _all(pc.is_in(folded, value_set=pa.array(["false", "true"]))):
        return Column(name, "boolean", told_codes, told, _mask(pc.equal(folded, "true")).astype(float))
    if _all(pc.match_substring_regex(folded, _DATE)):
        return Column(name, "date", told_codes, told, numbers)
    if _all(pc.or_(pa.array(~np.isnan(numbers)), pc.match_substring_regex(folded, _UNPLAIN))):
        return Column(name, "unplain", told_codes, told, numbers)
    if found:
        return Column(name, "mixed", told_codes, told, numbers)
    return Column(name, "text", codes, texts, np.full(len(texts), np.nan))


def typed(name: str, values: pa.ChunkedArray) -> Column:
    """A column of a Parquet file, whose kind is its type's; NaN and an empty text are no values."""
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    kind, described = _kind(values.type), str(values.type)
    if kind == "other":
        return Column(name, kind, np.zeros(len(values), np.int32), pa.array([described]), np.full(1, np.nan), described)
    if kind == "text":
        values = pc.utf8_trim_whitespace(pc.cast(values, pa.large_string()))
    if pa.types.is_float16(values.type):
        values = pc.cast(values, pa.float32())
    codes, held = _encoded(values)
    if pa.types.is_floating(held.type):
        codes, held = _without(codes, held, pc.is_nan(held))
    if kind == "text":
        codes, held = _without(codes, held, pc.equal(held, ""))
        kind = "date" if len(held) and _all(pc.match_substring_regex(held, _DATE)) else kind
    if not len(held):
        return Column(name, "empty", codes, held, np.empty(0))
    is_number = kind in ("number", "boolean")
    numbers = _as_numbers(held) if is_number else np.full(len(held), np.nan)
    return Column(name, kind, codes, held, numbers)


def _kind(kind: pa.DataType) -> Kind:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_temporal(kind):
        return "date"
    if pa.types.is_null(kind):
        return "empty"
    return "text" if _is_text(kind) else "other"


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _as_numbers(values: pa.Array) -> np.ndarray:
    if pa.types.is_boolean(values.type):
        values = pc.cast(values, pa.uint8())
    return pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _encoded(values: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Each row's code, -1 where it is null, and the distinct values."""
    if not len(values):
        return np.empty(0, np.int32), pa.array([], values.type)
    held = values.combine_chunks().dictionary_encode()
    return held.indices.fill_null(-1).to_numpy().astype(np.int32, copy=False), held.dictionary


def _without(codes: np.ndarray, values: pa.Array, dropped: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """The column without these of its values; dropped: (values,) bool."""
    kept = ~_mask(dropped)
    if kept.all():
        return codes, values
    places = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
    return np.append(places, np.int32(-1))[codes], values.filter(pa.array(kept))


def _numbers(folded: pa.Array, decimal_comma: bool) -> np.ndarray:
    """The number that each text is, NaN of one that is none: (texts,) float64.

    With decimal commas a column none of whose numbers has a point is read with them; never one that mixes both.
    """
    try:
        return pc.cast(folded, pa.float64()).to_numpy()  # as most columns are, and much faster than to look first
    except pa.ArrowInvalid:
        pass
    if decimal_comma and _all(pc.match_substring_regex(folded, _DECIMAL_COMMA)):
        return pc.cast(pc.replace_substring(folded, ",", "."), pa.float64()).to_numpy()
    plain = pc.match_substring_regex(folded, _NUMBER)
    return pc.cast(pc.if_else(plain, folded, "nan"), pa.float64()).to_numpy()


def _all(flags: pa.Array) -> bool:
    return bool(pc.all(flags).as_py())


def _mask(flags: pa.Array) -> np.ndarray:
    return flags.to_numpy(zero_copy_only=False).astype(bool)
