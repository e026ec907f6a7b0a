"""What a column of a table holds: numbers, true or false, texts, or what no feature can be made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from silos.errors import shown
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

# of a column of numbers in a CSV; among texts they are texts, as NA is Namibia
_MISSING = pa.array(["#n/a", "#na", "<na>", "n/a", "na", "nan", "none", "null"])
_WHOLE = r"^[+-]?\d+$"
_DATE = (
    r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([tT ]\d.*)?$|^\d{1,2}:\d{2}(:\d{2}.*)?$"
)


@dataclass(frozen=True)
class Column:
    """One column as it lies in its file, each of its values once.

    codes: (rows,) int32, the place of a row's value in `values`, -1 where there is none; numbers: (values,) float64, NaN of
    what is no number. `described` says more of the kind: the type of `other`, how an odd number was read, the decimal mark
    that `unplain` numbers need, the kind that texts of a Parquet file would have in a CSV.
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

    @property
    def na_texts(self) -> list[str]:
        """The texts of a column of text that are a missing value elsewhere; none is a word of its own too often."""
        if self.kind != "text":
            return []
        words = set(_MISSING.to_pylist()) - {"none"}
        return [self.texts[code] for code in self.used if self.texts[code].lower() in words]

    def per_row(self) -> np.ndarray:
        """The number of each row: (rows,) float64, NaN where there is none."""
        return np.append(self.numbers, np.nan)[self.codes]  # of -1 the last

    def take(self, chosen: np.ndarray) -> "Column":
        """The column in these rows only."""
        return replace(self, codes=self.codes[chosen])


@dataclass(frozen=True)
class Conventions:
    """How texts of a file are read, as `data.source` says; `decimal` and `na_values` are None where it says nothing."""

    decimal: Decimal | None = None
    censored: Censored = "refuse"
    na_values: tuple[str, ...] | None = None


AS_WRITTEN = Conventions()


class _Texts:
    """A column of texts: each once, with and without the words for a missing number, and the numbers that they may be."""

    def __init__(self, values: pa.ChunkedArray, conventions: Conventions):
        codes, texts = _encoded(pc.utf8_trim_whitespace(pc.cast(values, pa.large_string())))
        absent = pa.array(["", *(each.lower().strip() for each in conventions.na_values or ())])
        self.codes, self.texts = _without(codes, texts, pc.is_in(pc.utf8_lower(texts), value_set=absent))
        words = pc.is_in(pc.utf8_lower(self.texts), value_set=_MISSING)
        self.known_codes, self.known = _without(self.codes, self.texts, words)
        self.folded = pc.utf8_lower(self.known)
        self.numbers = WrittenNumbers(self.folded)

    def text(self, name: str) -> Column:
        """The column as categories."""
        return Column(name, "text", self.codes, self.texts, np.full(len(self.texts), np.nan))


def written(
    named: Sequence[tuple[str, pa.ChunkedArray]], conventions: Conventions, commas: bool = False
) -> Iterator[Column]:
    """Read the columns of a CSV, whose kinds are found from their texts; an empty text is no value.

    A number that may be a fraction or thousands, such as 1.250, is read if the user gives the decimal mark, if its column
    shows it, or if the other columns that show one agree.

    Args:
        named: the names and values of all columns.
        conventions: what the user says of them.
        commas: whether decimal commas are read where the user gives no mark.
    """
    held = [(name, _Texts(values, conventions)) for name, values in named]
    shown_by: dict[Decimal, str] = {}
    for name, texts in held:
        for mark in texts.numbers.marks:
            shown_by.setdefault(mark, name)
    for name, texts in held:
        yield _column(name, texts, conventions, commas, shown_by)


def _column(
    name: str, texts: _Texts, conventions: Conventions, commas: bool, shown_by: Mapping[Decimal, str]
) -> Column:
    """The column with the kind that its texts have; shown_by: each decimal mark of the file, and a column that shows it."""
    codes, known, folded, numbers = texts.known_codes, texts.known, texts.folded, texts.numbers
    if not len(known):
        return Column(name, "empty", codes, known, np.empty(0))
    if numbers.are_numbers.all() and not numbers.censored.all():
        kind, read, described = _as_number(texts, conventions, commas, shown_by)
        return Column(name, kind, codes, known, read, described)
    if _all(pc.is_in(folded, value_set=pa.array(["false", "true"]))):
        return Column(name, "boolean", codes, known, mask(pc.equal(folded, "true")).astype(float))
    either = np.fmax(numbers.read("."), numbers.read(","))
    if match(folded, _DATE).all():
        return Column(name, "date", codes, known, either)
    plain = numbers.are_numbers & ~numbers.censored
    alike = plain | look_like_numbers(folded)
    if alike.all():
        return Column(name, "unplain", codes, known, np.where(plain, either, np.nan))
    if plain.any() or 2 * alike.sum() > len(known):
        return Column(name, "mixed", codes, known, numbers.with_limits(either, conventions.censored))
    return texts.text(name)


def _as_number(
    texts: _Texts, conventions: Conventions, commas: bool, shown_by: Mapping[Decimal, str]
) -> tuple[Kind, np.ndarray, str]:
    """The kind and the numbers of a column whose texts all are numbers, and what a sentence adds to that."""
    numbers, source = texts.numbers, ""
    own = next(iter(numbers.marks), MARKS[0]) if conventions.decimal is None else conventions.decimal
    if not conventions.decimal:
        if len(numbers.marks) == 2:
            return "unplain", np.where(numbers.plain("."), numbers.read("."), np.nan), ""
        if not numbers.marks and numbers.undecided.any():
            if len(shown_by) != 1:
                return "ambiguous", np.where(numbers.undecided, np.nan, numbers.read(".")), ""
            own, source = next(iter(shown_by.items()))
        if own == "," and not commas:
            kind: Kind = "ambiguous" if source else "unplain"
            wrong = numbers.undecided if source else ~numbers.plain(".")
            return kind, np.where(wrong, np.nan, numbers.read(".")), own
    read = numbers.read(own)
    if np.isnan(read).any():
        return "unplain", read, ""
    held = numbers.with_limits(read, conventions.censored)
    if np.isnan(held).any():
        return "censored" if conventions.censored == "refuse" else "mixed", held, ""
    odd = ~numbers.plain(own)
    if not odd.any():
        return "number", held, ""
    at = int(odd.argmax())
    since = f", as decimal {'commas' if own == ',' else 'points'} in {shown(source, 40)} say" if source else ""
    return "number", held, f"{shown(str(texts.known[at]), 40)} is {held[at]:.15g}{since}"


def typed(name: str, values: pa.ChunkedArray, conventions: Conventions) -> Column:
    """Read a column of a Parquet file, whose kind is its type's; NaN and an empty text are no values."""
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    kind, described = _kind(values.type), str(values.type)
    if kind == "other":
        return Column(name, kind, np.zeros(len(values), np.int32), pa.array([described]), np.full(1, np.nan), described)
    if kind == "text":
        return _typed_text(name, values, conventions)
    if pa.types.is_float16(values.type):
        values = pc.cast(values, pa.float32())
    codes, held = _encoded(values)
    if pa.types.is_floating(held.type):
        codes, held = _without(codes, held, pc.is_nan(held))
    if not len(held):
        return Column(name, "empty", codes, held, np.empty(0))
    is_number = kind in ("number", "boolean")
    numbers = _as_numbers(held) if is_number else np.full(len(held), np.nan)
    return Column(name, kind, codes, held, numbers)


def _typed_text(name: str, values: pa.ChunkedArray, conventions: Conventions) -> Column:
    """A column that a Parquet file calls text: categories, also if these are plain numbers and no decimal mark is given.

    Numbers written in another way are no categories.
    """
    texts = _Texts(values, conventions)
    column = _column(name, texts, conventions, commas=False, shown_by={})
    if column.kind == "number" and not match(texts.known, _WHOLE).all():
        limits = conventions.censored != "refuse" and texts.numbers.censored.any()
        if conventions.decimal or limits:
            return column
        if column.described:
            return replace(column, kind="unplain", numbers=np.where(texts.numbers.plain("."), column.numbers, np.nan))
    if column.kind in ("date", "unplain", "ambiguous", "censored"):
        return column
    return replace(texts.text(name), kind="text" if len(texts.texts) else "empty", described=column.kind)


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
    kept = ~mask(dropped)
    if kept.all():
        return codes, values
    places = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
    return np.append(places, np.int32(-1))[codes], values.filter(pa.array(kept))


def _all(flags: pa.Array) -> bool:
    return bool(pc.all(flags).as_py())
