"""The source `table`: a CSV or Parquet file of the user, one row a line, with classes or numbers as labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from silos.dataset import Rows, some
from silos.errors import UserError, shown
from silos.schema import Feature, first_fault
from silos.sources.source_checks import split_names
from silos.sources.source_params import Table
from silos.sources.tabular.column_kinds import ODD_NUMBERS, Column, Conventions
from silos.sources.tabular.column_selection import fault_of_numbers, is_row_number, must_be_single, must_be_usable
from silos.sources.tabular.ingest_report import notes_of
from silos.sources.tabular.missing_values import kept_rows, rule_of
from silos.sources.tabular.one_hot import features_of, ordered
from silos.sources.tabular.table_reader import TableSample, sample_table

_FEW = 20  # classes that any table may have


def must_be_targets(look: TableSample, label: Column) -> None:
    """UserError where a label holds no numbers that can be predicted."""
    if label.kind in ODD_NUMBERS:
        raise UserError(
            f"{look.name}: the label {shown(repr(label.name))} {fault_of_numbers(look, label)}, or drop `task: regression` "
            "for classes."
        )
    if label.kind not in ("number", "boolean"):
        raise UserError(
            f"{look.name}: the label {shown(repr(label.name))} holds values such as {label.example}, and a regression needs "
            "plain numbers; drop `task: regression` for classes."
        )
    must_be_single(look, "label", label)


def classes_of(name: str, label: Column) -> tuple[list[str], np.ndarray]:
    """The sorted class names and each row's code: (rows,) int64; UserError where they look like no classes."""
    used, where = label.used, f"{name}: the label {shown(repr(label.name))}"
    broken = used[label.numbers[used] != np.floor(label.numbers[used])]
    if len(used) > _FEW and label.kind == "number" and len(broken):
        raise UserError(
            f"{where} looks like a regression ({len(used):,} values, such as {shown(label.texts[broken[0]], 40)}); add "
            "`task: regression` to data.source in params.yaml, or give whole numbers or text as classes."
        )
    if len(used) > max(_FEW, len(label.codes) // 2):
        raise UserError(
            f"{where} has {len(used):,} different values in {len(label.codes):,} rows, which are no classes; name the "
            "column that holds the classes, or add `task: regression` to data.source in params.yaml for a number."
        )
    texts = [label.texts[code] for code in used]
    fault = first_fault(np.array(texts))
    if fault:
        raise UserError(f"{where} {shown(repr(texts[fault[0]]), 40)} {fault[1]}.")
    classes = ordered(texts)
    places = {text: place for place, text in enumerate(classes)}
    return classes, np.array([places.get(text, -1) for text in label.texts], np.int64)[label.codes]


def table(source: Table, root: Path, declared: tuple[Feature, ...] = ()) -> Rows:
    """The rows of a file, whose path is relative to `root`: NaN is a value that is missing and may be.

    `declared` are what params say of single features, by name.
    """
    conventions = Conventions(source.decimal, source.censored, source.na_values)
    look = sample_table(Path(root) / source.path, source.path, conventions)
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


def _must_have(look: TableSample, source: Table) -> None:
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


def _role(look: TableSample, role: str, name: str) -> Column:
    column = look.column(name)
    assert column is not None
    if column.kind == "other":
        raise UserError(
            f"{look.name}: the {role} {shown(repr(name))} holds {column.described}; give it as text or numbers."
        )
    return column


def _names(look: TableSample, role: str, column: Column | None) -> np.ndarray | None:
    if column is None:
        return None
    fault = first_fault(np.array(column.texts))
    if fault:
        raise UserError(f"{look.name}: the {role} {shown(column.texts[fault[0]], 40)!r} {fault[1]}.")
    return _texts(column)


def _texts(column: Column) -> np.ndarray:
    """Each row's text: (rows,) str."""
    return np.array(column.texts)[column.codes]
