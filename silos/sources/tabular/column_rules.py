"""Which columns of a table can be features, with advice for every other one, and how missing values are handled.

A column has a rule for missing values, and the rules decide which rows are kept. No rule computes fill values here: a
mean of the file would mix the rows of all silos. Each client's mean is computed when clients are made.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from silos.errors import UserError, shown, some
from silos.params_section import Fill
from silos.schema import Feature
from silos.sources.source_checks import stays_distinct
from silos.sources.source_params import Table
from silos.sources.tabular.column_kinds import Column
from silos.sources.tabular.number_parser import WrittenNumbers
from silos.sources.tabular.table_reader import TableSample

_EXACT = 2.0**53  # up to which float64 represents all integers
MAX_CATEGORIES = 200  # distinct values of a text column that become one-hot features
_UNNAMED = re.compile(r"Unnamed: \d+|__index_level_\d+__")
_DROP = "list it under data.source.drop"
_CODES = "list it under data.source.categorical if its values are codes, or under drop"

Rule = Literal["refuse", "drop_rows"] | Fill


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
    """Return whether a column names the units of rows: more than a few texts or whole numbers, and some of them repeat.

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


def describe_odd_numbers(sample: TableSample, column: Column, options: bool = False) -> str:
    """Describe the values that keep a column from being numbers: how many, the first, and how to fix them.

    `options`: name the options of `siloflow init` instead of the keys of params.yaml.
    """
    odd = np.isnan(column.per_row()) & ~column.missing
    index = int(odd.argmax())
    text = column.texts[column.codes[index]]
    first = f"{shown(repr(text), 40)} in {sample.row(index)}"
    count = f"{int(odd.sum()):,} of {sample.rows:,} rows"
    got = {
        "ambiguous": "numbers that may be fractions or thousands",
        "censored": "limits among numbers",
        "unplain": "numbers that are not written plainly",
    }.get(column.kind)
    if got is None:
        wanted = wanted_numbers(column, options)
        return f"got numbers mixed with text: {count} hold no number, the first is {first}; expected {wanted}"
    other = sample.with_points if column.kind == "unplain" and column.detail else ()
    return f"got {got}, such as {first}, in {count}, expected {wanted_numbers(column, options, other)}"


def wanted_numbers(column: Column, options: bool = False, with_point: Sequence[str] = ()) -> str:
    """Say what is expected instead of the values that keep a column from being numbers, and how to fix them.

    with_point: the other columns that have decimal points, if this one has decimal commas: one mark reads a whole file.
    """
    if column.kind == "ambiguous":
        way_out = "Add `--decimal .` or `--decimal ,`"
        way_out = way_out if options else 'Set `decimal: "."` or `decimal: ","` under data.source'
        return f"one decimal mark. {way_out}, write them as 1234.5"
    if column.kind == "censored":
        limit, half = ("Add `--censored limit`", "`--censored half`") if options else _CENSORED_KEYS
        return (
            f"plain numbers. {limit} to read <0.5 as 0.5 and >90 as 90, or {half} to read <0.5 as 0.25; or correct or "
            "empty these"
        )
    if column.kind == "unplain" and with_point:
        return (
            f"a form such as 1234.5. To fix it, write them so, since {some([shown(name, 40) for name in with_point], 3)} "
            f"{'has' if len(with_point) == 1 else 'have'} decimal points, and one mark reads the whole file"
        )
    if column.kind == "unplain" and not column.detail and _have_points(column):
        return "decimal commas, as `decimal` says. To fix it, write them so, or all columns with decimal points"
    if column.kind == "unplain":
        way_out = (
            f"add `--decimal {column.detail}`" if options else f'set `decimal: "{column.detail}"` under data.source'
        )
        key = f"{way_out}, or " if column.detail else ""
        return f"a form such as 1234.5. To fix it, {key}write them so"
    return (
        "numbers only. Correct or empty these, or list the texts that mean a missing value under data.source.na_values"
    )


def _have_points(column: Column) -> bool:
    """Return whether the values that are not read are plain numbers with a decimal point."""
    odd = np.isnan(column.numbers)
    texts = WrittenNumbers(pa.array([column.texts[index] for index in np.flatnonzero(odd).tolist()], pa.string()))
    return bool(odd.any()) and bool((texts.plain(".") & ~np.isnan(texts.read("."))).all())


_CENSORED_KEYS = ("Set `censored: limit` under data.source", "`censored: half`")


def missing_rule(source: Table, column: Column, declared: Sequence[Feature]) -> Rule:
    """Return the rule that is declared of the feature, else the rule of the source."""
    for feature in declared:
        if feature.name == column.name and "missing" in feature.model_fields_set:
            return feature.missing
    return source.missing


def rows_to_keep(
    sample: TableSample, source: Table, columns: Sequence[Column], rules: Sequence[Rule], roles: Mapping[str, Column]
) -> np.ndarray:
    """Return the rows to keep, (rows,) bool; UserError for a missing value that is refused, or if no row is left."""
    for role, column in roles.items():
        if column.missing.all():
            way_out = "Name another column" + ("." if role == "label" else f", or leave out data.source.{role}.")
            raise UserError(
                f"{sample.name}: the {role} {shown(repr(column.name))}: got an empty column, expected a value in every row. "
                f"{way_out}"
            )
    dropped = np.zeros(sample.rows, bool)
    if source.missing == "drop_rows":
        for column in roles.values():
            dropped |= column.missing
    if source.na_values is None:
        for role, column in roles.items():
            _check_no_na_texts(sample, role, column)
    refused = []
    for column, rule in zip(columns, rules, strict=True):
        if rule == "drop_rows":
            dropped |= column.missing
        elif rule == "refuse" and column.missing.any():
            refused.append(column)
    for role, column in roles.items():
        # after all rules, since a row that a feature's rule drops needs no label and no client
        if (column.missing & ~dropped).any():
            raise UserError(
                f"{sample.name}: the {role} {_describe_gaps(sample, column)}, expected a value in every row. Fill "
                "in or delete such rows, or set `missing: drop_rows` under data.source."
            )
    if refused:
        more = len(refused) - 1
        also = f"; {more} more column{'s' * (more > 1)} also lack{'s' * (more == 1)} values" if more else ""
        raise UserError(
            f"{sample.name}: the column {_describe_gaps(sample, refused[0])}{also}, expected a value in every "
            f"row. Fill in, or set `missing: drop_rows` or `missing: {{fill: mean}}` under data.source, or list "
            "the column under data.source.drop."
        )
    if dropped.all():
        raise UserError(
            f"{sample.name}: got a missing value in every row, expected rows that drop_rows can keep. "
            "List columns under data.source.drop."
        )
    return ~dropped


def dropping_columns(columns: Sequence[Column], rules: Sequence[Rule]) -> list[Column]:
    """Return the columns whose missing values drop rows."""
    return [column for column, rule in zip(columns, rules, strict=True) if rule == "drop_rows"]


def describe_lost(roles: Mapping[str, Column], columns: Sequence[Column], keep: np.ndarray) -> list[str]:
    """Return a phrase for each client, domain or class that loses all its rows, with the columns that it lacks.

    Args:
        roles: The columns with a role.
        columns: The columns whose missing values drop rows.
        keep: (rows,) bool.
    """
    lost = []
    for role in ("client", "domain", "label"):
        column = roles.get(role)
        if column is None or (role == "label" and column.kind != "text" and len(column.used) > MAX_CATEGORIES):
            continue
        left = np.bincount(column.codes[keep & ~column.missing], minlength=len(column.values))
        for code in column.used[left[column.used] == 0].tolist():
            rows = column.codes == code
            empty = [shown(repr(each.name), 40) for each in columns if each.missing[rows].all()]
            reason = f", where {some(empty, 2)} {'is' if len(empty) == 1 else 'are'} empty" if empty else ""
            what = "class" if role == "label" else role
            lost.append(f"{what} {shown(repr(column.texts[code]), 40)} ({int(rows.sum()):,}{reason})")
    return lost


def _check_no_na_texts(sample: TableSample, role: str, column: Column) -> None:
    """Raise UserError if a text may be a missing value, such as R's NA, and params do not say what it is."""
    texts = column.na_texts
    if not texts:
        return
    rows = column.codes == column.texts.index(texts[0])
    raise UserError(
        f"{sample.name}: the {role} {shown(repr(column.name))}: got {texts[0]!r} in {int(rows.sum()):,} of "
        f"{sample.rows:,} rows, the first {sample.row(int(rows.argmax()))}, expected a name, but this may mean a "
        f"missing value. Under data.source set `na_values: {json.dumps(texts)}` for a missing value, or "
        "`na_values: []` for a name."
    )


def _describe_gaps(sample: TableSample, column: Column) -> str:
    count = int(column.missing.sum())
    where = "in" if count == 1 else f"in {count:,} rows, the first"
    return f"{shown(repr(column.name))}: got no value {where} {sample.row(int(column.missing.argmax()))}"
