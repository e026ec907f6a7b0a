"""What is done where a table has no value: each column's rule, and the rows that are kept by it.

No rule looks at other rows for what to fill in: a mean of the file would be one of all silos' rows, so that a client's own
is made where clients are.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from silos.errors import UserError, shown
from silos.schema import Feature
from silos.sources.source_params import Fill, Table
from silos.sources.tabular.column_kinds import Column
from silos.sources.tabular.table_reader import TableSample

Rule = Literal["refuse", "drop_rows"] | Fill


def rule_of(source: Table, column: Column, declared: Sequence[Feature]) -> Rule:
    """What is declared of the feature if anything is, else what the source says for all columns."""
    for feature in declared:
        if feature.name == column.name and "missing" in feature.model_fields_set:
            return feature.missing
    return source.missing


def kept_rows(
    look: TableSample, source: Table, columns: Sequence[Column], rules: Sequence[Rule], roles: Mapping[str, Column]
) -> np.ndarray:
    """The rows that no rule drops: (rows,) bool; UserError for a value that must not be missing, or if none is left."""
    dropped = np.zeros(look.rows, bool)
    if source.missing == "drop_rows":
        for column in roles.values():
            dropped |= column.missing
    if source.na_values is None:
        for role, column in roles.items():
            _must_not_be_na(look, role, column)
    refused = []
    for column, rule in zip(columns, rules, strict=True):
        if rule == "drop_rows":
            dropped |= column.missing
        elif rule == "refuse" and column.missing.any():
            refused.append(column)
    for role, column in roles.items():
        if (column.missing & ~dropped).any():
            raise UserError(
                f"{look.name}: the {role} {_gaps(look, column)}; fill in or delete such rows, or say `missing: drop_rows` "
                "under data.source."
            )
    if refused:
        more = len(refused) - 1
        also = f"; {more} more column{'s' * (more > 1)} miss{'es' * (more == 1)} values, too" if more else ""
        raise UserError(
            f"{look.name}: the column {_gaps(look, refused[0])}{also}; fill in, or say `missing: drop_rows` or `missing: "
            "{fill: mean}` under data.source, or list the column under its drop."
        )
    if dropped.all():
        raise UserError(f"{look.name}: every row misses a value, and drop_rows leaves none; list columns under drop.")
    return ~dropped


def _must_not_be_na(look: TableSample, role: str, column: Column) -> None:
    """UserError if a text of the column may be a missing value, such as R's NA, and the user does not say what it is."""
    texts = column.na_texts
    if not texts:
        return
    rows = column.codes == column.texts.index(texts[0])
    raise UserError(
        f"{look.name}: the {role} {shown(repr(column.name))} is {texts[0]!r} in {int(rows.sum()):,} of {look.rows:,} rows, "
        f"the first {look.row(int(rows.argmax()))}, which may be a missing value; say `na_values: {json.dumps(texts)}` "
        "under data.source if it is one, or `na_values: []` if it is a name."
    )


def _gaps(look: TableSample, column: Column) -> str:
    count = int(column.missing.sum())
    where = "in" if count == 1 else f"in {count:,} rows, the first"
    return f"{shown(repr(column.name))} has no value {where} {look.row(int(column.missing.argmax()))}"
