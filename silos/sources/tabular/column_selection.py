"""The columns of a table that can be features, and an error with advice for every other column."""

import re

import numpy as np

from silos.errors import UserError, shown
from silos.sources.source_checks import stays_distinct
from silos.sources.tabular.column_kinds import Column
from silos.sources.tabular.table_reader import TableSample

_EXACT = 2.0**53  # up to which float64 represents all integers
MAX_CATEGORIES = 200  # distinct values of a text column that become one-hot features
_UNNAMED = re.compile(r"Unnamed: \d+|__index_level_\d+__")
_DROP = "list it under data.source.drop"
_CODES = "list it under data.source.categorical if its values are codes, or under drop"


def is_row_number(column: Column, rows: int) -> bool:
    """Return whether pandas wrote the column as an index: no name, and distinct integers in all rows, or empty."""
    if _UNNAMED.fullmatch(column.name) is None:
        return False
    numbers = column.numbers
    return column.kind == "empty" or (len(numbers) == rows and bool((numbers == np.floor(numbers)).all()))


_UNIT_NAMES = (
    *("patient", "subject", "person", "participant", "individual", "pid", "mrn", "case", "animal", "machine", "plant"),
    *("device", "id", "identifier"),
)
_ID_ENDINGS = ("id", "no", "nr", "number", "code", "key")
_MIN_UNITS = 10  # distinct values, of which more are units
_REPEATS = 1.5  # rows of a value, on average, from which values repeat, whatever the name
_NESTED = 0.99  # of the values that repeat, with rows at one client
_MIN_NESTED = 20  # values that repeat


def is_unit_name(name: str) -> bool:
    """Return whether a column may be called so if it names the unit of a row, such as a patient."""
    folded = name.casefold().strip()
    return any(folded.removesuffix(ending).rstrip("_ -") in _UNIT_NAMES for ending in ("", *_ID_ENDINGS))


def looks_like_unit(column: Column, client: Column | None = None) -> bool:
    """Return whether a column names the units of rows: texts or whole numbers, more than a few, of which some repeat.

    If its name does not say so, each value that repeats must be of one client, which an id is and a quantity is not.
    """
    used, numbers = column.used, column.numbers[column.used]
    whole = column.kind == "text" or (column.kind == "number" and bool((numbers == np.floor(numbers)).all()))
    present = ~column.missing
    count = int(present.sum())
    if not whole or not _MIN_UNITS < len(used) < count:
        return False
    if is_unit_name(column.name):
        return True
    if client is None or count < _REPEATS * len(used):
        return False
    rows = np.bincount(column.codes[present], minlength=len(column.values))
    pairs = np.unique(np.stack([column.codes[present], client.codes[present]]), axis=1)
    clients = np.bincount(pairs[0], minlength=len(column.values))
    repeated = rows > 1
    several = len(client.used) > 1 and len(used) > 2 * len(client.used)
    return bool(several and repeated.sum() >= _MIN_NESTED and (clients[repeated] == 1).mean() >= _NESTED)


def check_usable(sample: TableSample, column: Column, listed: bool) -> None:
    """Raise UserError if no feature can be made of a column; `listed`: params call it categorical."""
    where = f"{sample.name}: the column {shown(repr(column.name))}"
    if _UNNAMED.fullmatch(column.name):
        raise UserError(f"{where}: got no name in the file, expected one. Name it there, or {_DROP}.")
    if column.kind == "empty":
        raise UserError(f"{where}: got no value in any row, expected numbers or text. To fix it, {_DROP}.")
    if column.kind == "other":
        raise UserError(
            f"{where}: got {shown(column.detail)}, expected single numbers or text. Make a column of "
            f"each number in it, or {_DROP}."
        )
    if listed or column.kind == "text":
        if len(column.values) > MAX_CATEGORIES:
            raise UserError(
                f"{where}: got {len(column.values):,} different values, such as {column.example}, expected at "
                f"most {MAX_CATEGORIES}, which become columns of their own. Group them into fewer, or {_DROP}."
            )
    elif column.kind in ("number", "boolean"):
        check_fits_float32(sample, "column", column)
    elif column.kind == "date":
        raise UserError(
            f"{where}: got dates or times, such as {column.example}, expected numbers. Give numbers, such as days "
            f"since one day, or {_DROP}."
        )
    else:
        raise UserError(f"{where}: {describe_odd_numbers(sample, column)}, or {_CODES}.")


def check_fits_float32(sample: TableSample, what: str, column: Column) -> None:
    """Raise UserError if float32 cannot represent or distinguish a column's numbers."""
    where = f"{sample.name}: the {what} {shown(repr(column.name))}"
    numbers = column.per_row()
    present = numbers[~column.missing]
    with np.errstate(over="ignore"):
        single = present.astype(np.float32)
    if not np.isfinite(single).all():
        index = int(np.flatnonzero(~column.missing)[(~np.isfinite(single)).argmax()])
        raise UserError(
            f"{where}: got {numbers[index]:g} in {sample.row(index)}, expected a finite float32. Correct or empty "
            "it, or drop the row."
        )
    indistinct = len(column.used) > 1 and np.ptp(present) == 0 and abs(present[0]) > _EXACT
    if indistinct or (len(present) and not stays_distinct(present, single)):
        raise UserError(
            f"{where}: got values such as {column.example}, expected differences that float32 can represent at "
            "that size. Subtract the mean" + (f", or {_CODES}." if what == "column" else ".")
        )


def describe_odd_numbers(sample: TableSample, column: Column) -> str:
    """Describe the values that keep a column from being numbers: how many, the first, and how to fix them."""
    odd = np.isnan(column.per_row()) & ~column.missing
    index = int(odd.argmax())
    text = column.texts[column.codes[index]]
    first = f"{shown(repr(text), 40)} in {sample.row(index)}"
    count = f"{int(odd.sum()):,} of {sample.rows:,} rows"
    if column.kind == "ambiguous":
        return (
            f"got numbers that may be fractions or thousands, such as {first}, in {count}, expected one decimal "
            'mark. Set `decimal: "."` or `decimal: ","` under data.source, write them as 1234.5'
        )
    if column.kind == "censored":
        return (
            f"got limits among numbers, such as {first}, in {count}, expected plain numbers. Set `censored: "
            "limit` under data.source to read <0.5 as 0.5 and >90 as 90, or `censored: half` to read <0.5 as "
            "0.25; or correct or empty these"
        )
    if column.kind == "unplain":
        key = f'set `decimal: "{column.detail}"` under data.source, or ' if column.detail else ""
        return (
            f"got numbers that are not written plainly, such as {first}, in {count}, expected a form such as "
            f"1234.5. To fix it, {key}write them so"
        )
    return (
        f"got numbers mixed with text: {count} hold no number, the first is {first}; expected numbers only. "
        "Correct or empty these, or list the texts that mean a missing value under data.source.na_values"
    )
