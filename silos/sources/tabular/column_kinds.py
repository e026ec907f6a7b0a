"""The kinds of a table's columns: numbers, booleans, texts, or kinds that cannot become a feature."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from silos.errors import shown
from silos.missing_codes import find_missing_code
from silos.sources.tabular.number_parser import (
    MARKS,
    Censored,
    Decimal,
    WrittenNumbers,
    look_like_numbers,
    mask,
    match,
)

Kind = Literal["number", "boolean", "text", "date", "mixed", "unplain", "ambiguous", "censored", "empty", "other"]
ODD_NUMBERS: tuple[Kind, ...] = ("mixed", "unplain", "ambiguous", "censored")

# in a column of numbers of a CSV; among texts they are texts, such as NA for Namibia
_MISSING = pa.array(["#n/a", "#na", "<na>", "n/a", "na", "nan", "none", "null"])
_WHOLE = r"^[+-]?\d+$"
_DATE = (
    r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([tT ]\d.*)?$|^\d{1,2}:\d{2}(:\d{2}.*)?$"
)


@dataclass(frozen=True)
class Column:
    """One column of a file, with each distinct value once.

    codes: (rows,) int32, the index of a row's value in `values`, -1 if it is missing; numbers: (values,) float64, NaN
    for values that are not numbers. `detail` depends on the kind: the type of `other`, how an odd number was read, the
    decimal mark that `unplain` numbers need, or the kind that texts of a Parquet file would have in a CSV.
    """

    name: str
    kind: Kind
    codes: np.ndarray
    values: pa.Array
    numbers: np.ndarray
    detail: str = ""

    @property
    def missing(self) -> np.ndarray:
        """Return where values are missing: (rows,) bool."""
        return self.codes < 0

    @property
    def used(self) -> np.ndarray:
        """Return the codes that occur, ascending."""
        return np.flatnonzero(np.bincount(self.codes[~self.missing]))

    @cached_property
    def texts(self) -> list[str]:
        """Return the values as text; values of a CSV as written there."""
        return [str(value) for value in self.values.to_pylist()]

    @property
    def example(self) -> str:
        """Return the first value, quoted for a message; "" if there is none."""
        present = self.codes[~self.missing]
        return shown(repr(self.texts[present[0]]), 40) if len(present) else ""

    @property
    def na_texts(self) -> list[str]:
        """Return texts of a text column that often mean a missing value; `none` is excluded, being a word."""
        if self.kind != "text":
            return []
        na_words = set(_MISSING.to_pylist()) - {"none"}
        return [self.texts[code] for code in self.used if self.texts[code].lower() in na_words]

    @cached_property
    def missing_code(self) -> tuple[list[str], float] | None:
        """Return the texts of a number that often means a missing value, such as -999, and its share of rows, or None."""
        used = self.used
        if self.kind != "number":
            return None
        numbers, position = np.unique(self.numbers[used], return_inverse=True)
        rows = np.bincount(self.codes[~self.missing], minlength=len(self.numbers))[used]
        counts = np.bincount(position.ravel(), rows)
        index = find_missing_code(numbers, counts)
        if index is None:
            return None
        texts = [self.texts[code] for code in used[position.ravel() == index]]
        return texts, float(counts[index] / len(self.codes))

    def per_row(self) -> np.ndarray:
        """Return the number of each row: (rows,) float64, NaN if it is missing."""
        return np.append(self.numbers, np.nan)[self.codes]  # code -1 selects the NaN at the end

    def take(self, selection: np.ndarray) -> "Column":
        """Return the column with these rows only."""
        return replace(self, codes=self.codes[selection])


@dataclass(frozen=True)
class Conventions:
    """How texts of a file are read, as `data.source` says; `decimal` and `na_values` are None by default."""

    decimal: Decimal | None = None
    censored: Censored = "refuse"
    na_values: tuple[str, ...] | None = None
    numbers: frozenset[str] = frozenset()
    """Columns that are known to hold numbers: a text among them that is none is a value without a number."""
    texts: frozenset[str] = frozenset()
    """Columns that are known to hold texts, also in a file whose few rows have numbers or NA only."""


AS_WRITTEN = Conventions()


class _TextColumn:
    """The distinct texts of a column, with and without markers of missing numbers, and the numbers they may be.

    In a column that is known to hold numbers, `numbers` are those of the `readable` texts: (present,) bool.
    """

    def __init__(self, name: str, values: pa.ChunkedArray, conventions: Conventions):
        codes, texts = _encode(pc.utf8_trim_whitespace(pc.cast(values, pa.large_string())))
        na_texts = pa.array(["", *(value.lower().strip() for value in conventions.na_values or ())])
        self.codes, self.texts = _drop_values(codes, texts, pc.is_in(pc.utf8_lower(texts), value_set=na_texts))
        markers = pc.is_in(pc.utf8_lower(self.texts), value_set=_MISSING)
        self.present_codes, self.present = _drop_values(self.codes, self.texts, markers)
        self.folded = pc.utf8_lower(self.present)
        self.numbers = WrittenNumbers(self.folded)
        self.readable = np.ones(len(self.present), bool)
        if name in conventions.numbers and not self.numbers.are_numbers.all():
            self.readable = self.numbers.are_numbers
            self.numbers = WrittenNumbers(self.folded.filter(pa.array(self.readable)))

    def text(self, name: str) -> Column:
        """Return the column as categories."""
        return Column(name, "text", self.codes, self.texts, np.full(len(self.texts), np.nan))


def read_texts(
    named: Sequence[tuple[str, pa.ChunkedArray]], conventions: Conventions, commas: bool = False
) -> Iterator[Column]:
    """Read the columns of a CSV, whose kinds are inferred from their texts; an empty text is a missing value.

    A number that may be a fraction or thousands, such as 1.250, is read if its decimal mark is known. The user gives
    the mark, the column shows it, or all other columns that show one agree.

    Args:
        named: The names and values of all columns.
        conventions: The user's settings.
        commas: Whether decimal commas are read if the user gives no mark.
    """
    columns = [(name, _TextColumn(name, values, conventions)) for name, values in named]
    mark_sources: dict[Decimal, str] = {}
    for name, texts in columns:
        for mark in texts.numbers.marks:
            mark_sources.setdefault(mark, name)
    for name, texts in columns:
        yield _infer_column(name, texts, conventions, commas, mark_sources)


def _infer_column(
    name: str, texts: _TextColumn, conventions: Conventions, commas: bool, mark_sources: Mapping[Decimal, str]
) -> Column:
    """Return the column with the kind of its texts; mark_sources: each decimal mark, and a column that shows it."""
    codes, present, folded, numbers = texts.present_codes, texts.present, texts.folded, texts.numbers
    if name in conventions.texts:
        return texts.text(name)
    if not len(present):
        return Column(name, "empty", codes, present, np.empty(0))
    if name in conventions.numbers:
        read = np.full(len(present), np.nan)
        kind, read[texts.readable], detail = _as_number(texts, conventions, commas, mark_sources)
        return Column(name, kind, codes, present, read, detail)
    if numbers.are_numbers.all() and not numbers.censored.all():
        kind, read, detail = _as_number(texts, conventions, commas, mark_sources)
        return Column(name, kind, codes, present, read, detail)
    if pc.all(pc.is_in(folded, value_set=pa.array(["false", "true"]))).as_py():
        return Column(name, "boolean", codes, present, mask(pc.equal(folded, "true")).astype(float))
    either = np.fmax(numbers.read("."), numbers.read(","))
    if match(folded, _DATE).all():
        return Column(name, "date", codes, present, either)
    plain = numbers.are_numbers & ~numbers.censored
    number_like = plain | look_like_numbers(folded)
    if number_like.all():
        return Column(name, "unplain", codes, present, np.where(plain, either, np.nan))
    if plain.any() or 2 * number_like.sum() > len(present):
        return Column(name, "mixed", codes, present, numbers.with_limits(either, conventions.censored))
    return texts.text(name)


def _as_number(
    texts: _TextColumn, conventions: Conventions, commas: bool, mark_sources: Mapping[Decimal, str]
) -> tuple[Kind, np.ndarray, str]:
    """Return the kind and the numbers of a column whose texts are all numbers, and a detail for messages."""
    numbers, source = texts.numbers, ""
    mark = next(iter(numbers.marks), MARKS[0]) if conventions.decimal is None else conventions.decimal
    if not conventions.decimal:
        if len(numbers.marks) == 2:
            return "unplain", np.where(numbers.plain("."), numbers.read("."), np.nan), ""
        if not numbers.marks and numbers.undecided.any():
            if len(mark_sources) != 1:
                return "ambiguous", np.where(numbers.undecided, np.nan, numbers.read(".")), ""
            mark, source = next(iter(mark_sources.items()))
        if mark == "," and not commas:
            kind: Kind = "ambiguous" if source else "unplain"
            undecided = numbers.undecided if source else ~numbers.plain(".")
            return kind, np.where(undecided, np.nan, numbers.read(".")), mark
    read = numbers.read(mark)
    if np.isnan(read).any():
        return "unplain", read, ""
    values = numbers.with_limits(read, conventions.censored)
    if np.isnan(values).any():
        return "censored" if conventions.censored == "refuse" else "mixed", values, ""
    not_plain = ~numbers.plain(mark)
    if not not_plain.any():
        return "number", values, ""
    index = int(not_plain.argmax())
    reason = f", as decimal {'commas' if mark == ',' else 'points'} in {shown(source, 40)} say" if source else ""
    return "number", values, f"{shown(str(texts.present[index]), 40)} is {values[index]:.15g}{reason}"


def read_typed(name: str, values: pa.ChunkedArray, conventions: Conventions) -> Column:
    """Read a column of a Parquet file, whose type decides its kind; NaN and empty texts are missing values."""
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    kind, detail = _kind_of_type(values.type), str(values.type)
    if kind == "other":
        return Column(name, kind, np.zeros(len(values), np.int32), pa.array([detail]), np.full(1, np.nan), detail)
    if kind == "text":
        return _typed_text(name, values, conventions)
    if pa.types.is_float16(values.type):
        values = pc.cast(values, pa.float32())
    codes, distinct = _encode(values)
    if pa.types.is_floating(distinct.type):
        codes, distinct = _drop_values(codes, distinct, pc.is_nan(distinct))
    if not len(distinct):
        return Column(name, "empty", codes, distinct, np.empty(0))
    numbers = np.full(len(distinct), np.nan)
    if kind in ("number", "boolean"):
        plain = pc.cast(distinct, pa.uint8()) if kind == "boolean" else distinct
        numbers = pc.cast(plain, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return Column(name, kind, codes, distinct, numbers)


def _typed_text(name: str, values: pa.ChunkedArray, conventions: Conventions) -> Column:
    """Read a text column of a Parquet file as categories, even plain numbers if no decimal mark is given.

    Numbers that are not written plainly are not categories.
    """
    texts = _TextColumn(name, values, conventions)
    column = _infer_column(name, texts, conventions, commas=False, mark_sources={})
    if name in conventions.numbers | conventions.texts:
        return column
    if column.kind == "number" and not match(texts.present, _WHOLE).all():
        limits = conventions.censored != "refuse" and texts.numbers.censored.any()
        if conventions.decimal or limits:
            return column
        if column.detail:
            return replace(column, kind="unplain", numbers=np.where(texts.numbers.plain("."), column.numbers, np.nan))
    if column.kind in ("date", "unplain", "ambiguous", "censored"):
        return column
    return replace(texts.text(name), kind="text" if len(texts.texts) else "empty", detail=column.kind)


def _kind_of_type(kind: pa.DataType) -> Kind:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_temporal(kind):
        return "date"
    if pa.types.is_null(kind):
        return "empty"
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return "text" if is_text else "other"


def _encode(values: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Return each row's code, -1 for null, and the distinct values."""
    if not len(values):
        return np.empty(0, np.int32), pa.array([], values.type)
    encoded = values.combine_chunks().dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy().astype(np.int32, copy=False), encoded.dictionary


def _drop_values(codes: np.ndarray, values: pa.Array, dropped: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Remove these values from a column; dropped: (values,) bool."""
    keep = ~mask(dropped)
    if keep.all():
        return codes, values
    new_codes = np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)
    return np.append(new_codes, np.int32(-1))[codes], values.filter(pa.array(keep))
