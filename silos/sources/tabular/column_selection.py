"""Which columns of a table can be features: a sentence with the way out for every other."""

import re

import numpy as np

from silos.errors import UserError, shown
from silos.sources.source_checks import stays_distinct
from silos.sources.tabular.column_kinds import Column
from silos.sources.tabular.table_reader import TableSample

_EXACT = 2.0**53  # up to which a float64 tells whole numbers apart
MOST = 200  # values of a text that become columns of their own
_UNNAMED = re.compile(r"Unnamed: \d+|__index_level_\d+__")
_DROP = "list it under data.source.drop"
_CODES = "list it under data.source.categorical if its values are codes, or under drop"


def is_row_number(column: Column, rows: int) -> bool:
    """Whether it is what pandas writes of an index: no name, and another whole number in each row; or nothing at all."""
    if _UNNAMED.fullmatch(column.name) is None:
        return False
    numbers = column.numbers
    return column.kind == "empty" or (len(numbers) == rows and bool((numbers == np.floor(numbers)).all()))


def must_be_usable(look: TableSample, column: Column, listed: bool) -> None:
    """UserError where no feature can be made of a column; `listed` says that params call it categorical."""
    where = f"{look.name}: the column {shown(repr(column.name))}"
    if _UNNAMED.fullmatch(column.name):
        raise UserError(f"{where} has no name in the file; give it one there, or {_DROP}.")
    if column.kind == "empty":
        raise UserError(f"{where} has no value in any row; {_DROP}.")
    if column.kind == "other":
        raise UserError(f"{where} holds {shown(column.described)}; make a column of each number in it, or {_DROP}.")
    if listed or column.kind == "text":
        if len(column.values) > MOST:
            raise UserError(
                f"{where} has {len(column.values):,} different values, such as {column.example}, and at most {MOST} become "
                f"columns of their own; group them into fewer, or {_DROP}."
            )
    elif column.kind in ("number", "boolean"):
        must_be_single(look, "column", column)
    elif column.kind == "date":
        raise UserError(
            f"{where} holds dates or times, such as {column.example}; give numbers, such as days since one day, or {_DROP}."
        )
    else:
        raise UserError(f"{where} {fault_of_numbers(look, column)}, or {_CODES}.")


def must_be_single(look: TableSample, what: str, column: Column) -> None:
    """UserError where float32 cannot hold a column's numbers or tell them apart."""
    where = f"{look.name}: the {what} {shown(repr(column.name))}"
    numbers = column.per_row()
    held = numbers[~column.missing]
    with np.errstate(over="ignore"):
        single = held.astype(np.float32)
    if not np.isfinite(single).all():
        at = int(np.flatnonzero(~column.missing)[(~np.isfinite(single)).argmax()])
        raise UserError(
            f"{where} is {numbers[at]:g} in {look.row(at)}, no finite float32; correct or empty it, or drop the row."
        )
    as_one = len(column.used) > 1 and np.ptp(held) == 0 and abs(held[0]) > _EXACT
    if as_one or (len(held) and not stays_distinct(held, single)):
        raise UserError(
            f"{where} differs by less than float32 can tell at its size, such as {column.example}; subtract its mean"
            + (f", or {_CODES}." if what == "column" else ".")
        )


def fault_of_numbers(look: TableSample, column: Column) -> str:
    """Say which values keep a column from being numbers, how many, where the first is, and what to do about it."""
    odd = np.isnan(column.per_row()) & ~column.missing
    at = int(odd.argmax())
    text = column.texts[column.codes[at]]
    first = f"{shown(repr(text), 40)} in {look.row(at)}"
    count = f"{int(odd.sum()):,} of {look.rows:,} rows"
    if column.kind == "ambiguous":
        return (
            f'holds numbers that may be fractions or thousands, such as {first}, in {count}; say `decimal: "."` or '
            '`decimal: ","` under data.source, write them as 1234.5'
        )
    if column.kind == "censored":
        return (
            f"holds limits among numbers, such as {first}, in {count}; say `censored: limit` under data.source to read "
            "<0.5 as 0.5 and >90 as 90, or `censored: half` to read <0.5 as 0.25; or correct or empty these"
        )
    if column.kind == "unplain":
        key = f'say `decimal: "{column.described}"` under data.source, ' if column.described else ""
        return f"holds numbers that are not written plainly, such as {first}, in {count}; {key}write them as 1234.5"
    return (
        f"mixes numbers with text: {count} hold no number, the first is {first}; correct or empty these, or list under "
        "data.source.na_values what stands for a missing value"
    )
