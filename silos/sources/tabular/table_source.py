"""The source `table`: a user's CSV or Parquet file, with classes or numbers as labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from silos.dataset import Rows, some
from silos.errors import UserError, shown
from silos.schema import Feature, find_invalid_name
from silos.sources.source_checks import split_names
from silos.sources.source_params import Table
from silos.sources.tabular.column_kinds import ODD_NUMBERS, Column, Conventions
from silos.sources.tabular.column_selection import check_fits_float32, check_usable, describe_odd_numbers, is_row_number
from silos.sources.tabular.ingest_report import ingest_notes
from silos.sources.tabular.missing_values import missing_rule, rows_to_keep
from silos.sources.tabular.one_hot import build_features, sort_texts
from silos.sources.tabular.table_reader import TableSample, sample_table
from silos.units import hash_units

_FEW = 20  # classes that a table of any size may have


def check_targets(sample: TableSample, label: Column) -> None:
    """Raise UserError if a label is no column of numbers that can be predicted."""
    if label.kind in ODD_NUMBERS:
        raise UserError(
            f"{sample.name}: the label {shown(repr(label.name))}: {describe_odd_numbers(sample, label)}, or drop "
            "`task: regression` for classes."
        )
    if label.kind not in ("number", "boolean"):
        raise UserError(
            f"{sample.name}: the label {shown(repr(label.name))}: got values such as {label.example}, expected "
            "plain numbers for a regression. Drop `task: regression` for classes."
        )
    check_fits_float32(sample, "label", label)


def class_codes(name: str, label: Column) -> tuple[list[str], np.ndarray]:
    """Return the sorted class names and each row's code, (rows,) int64; UserError for implausible classes."""
    used, where = label.used, f"{name}: the label {shown(repr(label.name))}"
    fractional = used[label.numbers[used] != np.floor(label.numbers[used])]
    if len(used) > _FEW and label.kind == "number" and len(fractional):
        raise UserError(
            f"{where}: got {len(used):,} values, such as {shown(label.texts[fractional[0]], 40)}, expected "
            "classes, and these look like a regression. Add `task: regression` to data.source in params.yaml, or "
            "give whole numbers or text as classes."
        )
    if len(used) > max(_FEW, len(label.codes) // 2):
        raise UserError(
            f"{where}: got {len(used):,} different values in {len(label.codes):,} rows, expected classes. Name "
            "the column with the classes, or add `task: regression` to data.source in params.yaml for a number."
        )
    texts = [label.texts[code] for code in used]
    fault = find_invalid_name(np.array(texts))
    if fault:
        raise UserError(f"{where}: {shown(repr(texts[fault[0]]), 40)}: {fault[1]}.")
    classes = sort_texts(texts)
    class_of = {text: index for index, text in enumerate(classes)}
    return classes, np.array([class_of.get(text, -1) for text in label.texts], np.int64)[label.codes]


def table(source: Table, root: Path, declared: tuple[Feature, ...] = ()) -> Rows:
    """Read the rows of a file, whose path is relative to `root`; NaN marks values that are and may be missing.

    `declared` is what params declare of single features, by name.
    """
    conventions = Conventions(source.decimal, source.censored, source.na_values)
    sample = sample_table(Path(root) / source.path, source.path, conventions)
    _check_columns_exist(sample, source)
    excluded = {*source.roles.values(), *source.drop}
    columns = [column for column in sample.columns if column.name not in excluded]
    row_numbers = [column for column in columns if is_row_number(column, sample.rows)]
    columns = [column for column in columns if not is_row_number(column, sample.rows)]
    if not columns:
        raise UserError(
            f"{sample.name}: got no column left as a feature, expected at least one besides the "
            "label. Shorten data.source.drop."
        )
    for column in columns:
        check_usable(sample, column, column.name in source.categorical)
    columns = [replace(column, kind="text") if column.name in source.categorical else column for column in columns]
    rules = [missing_rule(source, column, declared) for column in columns]
    roles = {role: _role(sample, role, name) for role, name in source.roles.items()}
    regression = source.task == "regression"
    if regression:
        check_targets(sample, roles["label"])
    keep = rows_to_keep(sample, source, columns, rules, roles)
    columns = [column.take(keep) for column in columns]
    roles = {role: column.take(keep) for role, column in roles.items()}
    x, features = build_features(sample, columns, rules, declared)
    label = roles["label"]
    classes, y = ([], label.per_row().astype(np.float32)) if regression else class_codes(sample.name, label)
    rows = Rows(
        x=x,
        y=y,
        classes=classes,
        client=_names(sample, "client", roles.get("client")),
        domain=_names(sample, "domain", roles.get("domain")),
        split=None if "split" not in roles else split_names(sample.name, _texts(roles["split"])),
        task=source.task,
        features=features,
        unit=hash_units(_texts(roles["unit"])) if "unit" in roles else None,
    )
    return replace(rows, notes=ingest_notes(sample, source, columns, label, rules, row_numbers, ~keep, rows))


def _check_columns_exist(sample: TableSample, source: Table) -> None:
    """Raise UserError if params name a column that the table lacks."""
    parts = [("drop", name) for name in source.drop] + [("categorical", name) for name in source.categorical]
    for key, name in [*source.roles.items(), *parts]:
        if sample.column(name) is None:
            available = some([shown(repr(column.name), 40) for column in sample.columns])
            separated = f" (separated by {sample.separator!r})" if sample.separator else ""
            raise UserError(
                f"params.yaml: data.source.{key}: got {shown(repr(name))}, expected a column of {sample.name}: "
                f"{available}{separated}. Correct the name."
            )


def _role(sample: TableSample, role: str, name: str) -> Column:
    column = sample.column(name)
    assert column is not None
    if column.kind == "other":
        raise UserError(
            f"{sample.name}: the {role} {shown(repr(name))}: got {column.detail}, expected text or numbers. "
            "Convert the column."
        )
    return column


def _names(sample: TableSample, role: str, column: Column | None) -> np.ndarray | None:
    if column is None:
        return None
    fault = find_invalid_name(np.array(column.texts))
    if fault:
        raise UserError(f"{sample.name}: the {role} {shown(column.texts[fault[0]], 40)!r}: {fault[1]}.")
    return _texts(column)


def _texts(column: Column) -> np.ndarray:
    """Return each row's text: (rows,) str."""
    return np.array(column.texts)[column.codes]
