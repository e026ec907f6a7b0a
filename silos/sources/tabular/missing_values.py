"""How missing values of a table are handled: each column's rule, and the rows that the rules keep.

No rule computes fill values here: a mean of the file would mix the rows of all silos. Each client's mean is computed
when clients are made.
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


def _check_no_na_texts(sample: TableSample, role: str, column: Column) -> None:
    """Raise UserError if a text may be a missing value, such as R's NA, and params do not say what it is."""
    texts = column.na_texts
    if not texts:
        return
    rows = column.codes == column.texts.index(texts[0])
    raise UserError(
        f"{sample.name}: the {role} {shown(repr(column.name))}: got {texts[0]!r} in {int(rows.sum()):,} of "
        f"{sample.rows:,} rows, the first {sample.row(int(rows.argmax()))}, expected a name, and this may be a "
        f"missing value. Set `na_values: {json.dumps(texts)}` under data.source if it is one, or `na_values: []` "
        "if it is a name."
    )


def _describe_gaps(sample: TableSample, column: Column) -> str:
    count = int(column.missing.sum())
    where = "in" if count == 1 else f"in {count:,} rows, the first"
    return f"{shown(repr(column.name))}: got no value {where} {sample.row(int(column.missing.argmax()))}"
