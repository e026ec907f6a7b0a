"""The source `table`: a CSV or Parquet file of the user's own, a row a line."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from silos.errors import UserError, shown
from silos.rows import Rows, some
from silos.schema import Feature
from silos.sources.own_file import split_names
from silos.sources.source_names import first_fault
from silos.sources.source_params import Table
from silos.sources.tables.column_kinds import Column, Conventions
from silos.sources.tables.look_at import Look, look_at
from silos.sources.tables.missing_values import kept_rows, rule_of
from silos.sources.tables.one_hot import features_of
from silos.sources.tables.table_labels import classes_of, must_be_targets
from silos.sources.tables.table_notes import notes_of
from silos.sources.tables.usable_columns import is_row_number, must_be_usable


def table(source: Table, root: Path, declared: tuple[Feature, ...] = ()) -> Rows:
    """The rows of a file, whose path is relative to `root`: NaN is a value that is missing and may be.

    `declared` are what params say of single features, by name.
    """
    conventions = Conventions(source.decimal, source.censored, source.na_values)
    look = look_at(Path(root) / source.path, source.path, conventions)
    _must_have(look, source)
    named = {*source.roles.values(), *source.drop}
    columns = [column for column in look.columns if column.name not in named]
    numbering = [column for column in columns if is_row_number(column, look.rows)]
    columns = [column for column in columns if not is_row_number(column, look.rows)]
    if not columns:
        raise UserError(f"{look.name} has no column left that is a feature; leave one at least beside the label.")
    for column in columns:
        must_be_usable(look, column, column.name in source.categorical)
    columns = [replace(c, kind="text") if c.name in source.categorical else c for c in columns]
    rules = [rule_of(source, column, declared) for column in columns]
    roles = {role: _role(look, role, name) for role, name in source.roles.items()}
    regression = source.task == "regression"
    if regression:
        must_be_targets(look, roles["label"])
    kept = kept_rows(look, source, columns, rules, roles)
    columns = [column.take(kept) for column in columns]
    roles = {role: column.take(kept) for role, column in roles.items()}
    x, features = features_of(look, columns, rules, declared)
    label = roles["label"]
    classes, y = ([], label.per_row().astype(np.float32)) if regression else classes_of(look.name, label)
    made = Rows(
        x=x,
        y=y,
        classes=classes,
        client=_names(look, "client", roles.get("client")),
        domain=_names(look, "domain", roles.get("domain")),
        split=None if "split" not in roles else split_names(look.name, _texts(roles["split"])),
        task=source.task,
        features=features,
    )
    return replace(made, notes=notes_of(look, source, columns, label, rules, numbering, ~kept, made))


def _must_have(look: Look, source: Table) -> None:
    """UserError where params name a column that is not there."""
    parts = [("drop", name) for name in source.drop] + [("categorical", name) for name in source.categorical]
    for key, name in [*source.roles.items(), *parts]:
        if look.column(name) is None:
            there = some([shown(repr(column.name), 40) for column in look.columns])
            separated = f" (separated by {look.separator!r})" if look.separator else ""
            raise UserError(
                f"params.yaml: data.source.{key} names the column {shown(repr(name))}, and {look.name} has none of this "
                f"name; it has {there}{separated}."
            )


def _role(look: Look, role: str, name: str) -> Column:
    column = look.column(name)
    assert column is not None
    if column.kind == "other":
        raise UserError(
            f"{look.name}: the {role} {shown(repr(name))} holds {column.described}; give it as text or numbers."
        )
    return column


def _names(look: Look, role: str, column: Column | None) -> np.ndarray | None:
    if column is None:
        return None
    fault = first_fault(np.array(column.texts))
    if fault:
        raise UserError(f"{look.name}: the {role} {shown(column.texts[fault[0]], 40)!r} {fault[1]}.")
    return _texts(column)


def _texts(column: Column) -> np.ndarray:
    """Each row's text: (rows,) str."""
    return np.array(column.texts)[column.codes]
