"""The source `table`: a user's CSV or Parquet file, with classes or numbers as labels.

Numbers and booleans are features as they are; a text becomes one-hot columns.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from silos.dataset import Rows
from silos.errors import UserError, shown, some
from silos.io.memory_and_disk import must_fit
from silos.params_section import Fill
from silos.raw_cells import RawCells, RawColumns, hash_texts
from silos.row_units import hash_units
from silos.schema import MAX_TEXT_LENGTH, Feature, describe_duplicate, find_invalid_name
from silos.sources.source_checks import split_names
from silos.sources.source_params import Table
from silos.sources.tabular.column_kinds import ODD_NUMBERS, Column, Conventions
from silos.sources.tabular.column_rules import (
    Rule,
    check_fits_float32,
    check_usable,
    describe_lost,
    describe_odd_numbers,
    dropping_columns,
    is_row_number,
    missing_rule,
    rows_to_keep,
)
from silos.sources.tabular.ingest_report import ingest_notes
from silos.sources.tabular.table_reader import RawTable, TableSample, raw_table

_FEW = 20  # classes that a table of any size may have

_ONE_HOT = (0.0, 1.0)


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
    spelling = _one_spelling(label)
    texts = list(dict.fromkeys(spelling[code] for code in used))
    fault = find_invalid_name(np.array(texts))
    if fault:
        raise UserError(f"{where}: {shown(repr(texts[fault[0]]), 40)}: {fault[1]}.")
    classes = sort_texts(texts)
    class_of = {text: index for index, text in enumerate(classes)}
    return classes, np.array([class_of.get(text, -1) for text in spelling], np.int64)[label.codes]


def _one_spelling(label: Column) -> list[str]:
    """Return the texts of a label, each of several decimals of one number as the shortest: 0 for 0.0, but not 7 for 007."""
    shortest: dict[Decimal | float, str] = {}
    numbers = [_exact(text, float(number)) for text, number in zip(label.texts, label.numbers, strict=True)]
    for code in label.used.tolist():
        number, text = numbers[code], label.texts[code]
        if number is not None and len(text) < len(shortest.get(number, text + " ")):
            shortest[number] = text
    return [
        text if number is None else shortest.get(number, text)
        for number, text in zip(numbers, label.texts, strict=True)
    ]


def _exact(text: str, number: float) -> Decimal | float | None:
    """Return the number of a plain decimal without rounding, since one float64 stands for several from 2^53 on."""
    if not re.fullmatch(r"[+-]?(0|[1-9]\d*)([.]\d*)?", text, re.ASCII):
        return None
    exact = Decimal(text)
    return exact if float(exact) == number else number  # 1.000 may be a thousand; NaN equals no other


def table(source: Table, root: Path, declared: tuple[Feature, ...] = ()) -> Rows:
    """Read the rows of a file, whose path is relative to `root`; NaN marks values that are and may be missing.

    `declared` is what params declare of single features, by name.
    """
    conventions = Conventions(source.decimal, source.censored, source.na_values)
    raw = raw_table(Path(root) / source.path, source.path)
    sample = raw.sample(conventions)
    _check_columns_exist(sample, source)
    excluded = {*source.roles.values(), *source.drop}
    columns = [column for column in sample.columns if column.name not in excluded]
    row_numbers = [column for column in columns if is_row_number(column, sample.rows)]
    columns = [column for column in columns if not is_row_number(column, sample.rows)]
    if not columns:
        way_out = "Shorten data.source.drop" if source.drop else "Add a column to the file"
        raise UserError(
            f"{sample.name}: got no column left as a feature, expected at least one besides "
            f"{', '.join(f'the {role}' for role in source.roles)}. {way_out}."
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
    classes_and_clients = {role: column for role, column in roles.items() if not (regression and role == "label")}
    # before rows are dropped, after which a lost client or class could not be seen
    lost = describe_lost(classes_and_clients, dropping_columns(columns, rules), keep)
    # before features are built, so that a category of dropped rows alone gets no column
    columns = [column.take(keep) for column in columns]
    roles = {role: column.take(keep) for role, column in roles.items()}
    x, features, widths = build_features(sample, columns, rules, declared)
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
        cells=_cells(raw, source, {column.name for column in row_numbers}, columns, widths).take(keep),
    )
    return replace(rows, notes=ingest_notes(sample, source, columns, label, rules, row_numbers, ~keep, lost, rows))


def _cells(
    raw: RawTable, source: Table, row_numbers: set[str], columns: Sequence[Column], widths: Sequence[int]
) -> RawCells:
    """Return the cells of all rows of the file, of every column but those that say where a row belongs.

    Row numbers are left out: one row less changes all that follow.
    """
    places = {source.client, source.domain, source.split, source.unit, *row_numbers}
    named = [(name, values) for name, values in raw.columns if name not in places]
    hashes = np.empty((raw.columns[0][1].length(), len(named)), np.uint32)
    for index, (_, values) in enumerate(named):
        hashes[:, index] = _hash_cells(values)
    names = tuple(name for name, _ in named)
    at = {name: index for index, name in enumerate(names)}
    of_feature = tuple(at[column.name] for column, width in zip(columns, widths, strict=True) for _ in range(width))
    return RawCells(hashes, RawColumns(names, of_feature, at[source.label]))


def _hash_cells(values: pa.ChunkedArray) -> np.ndarray:
    """Return the hash of each value of a column: (rows,) uint32."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    try:
        encoded = pc.dictionary_encode(values, null_encoding="encode").combine_chunks()
    except pa.ArrowNotImplementedError:  # a rare type, such as half floats
        return hash_texts(values.to_pylist())
    return hash_texts(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]


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


def build_features(
    sample: TableSample, columns: Sequence[Column], rules: Sequence[Rule], declared: Sequence[Feature]
) -> tuple[np.ndarray, tuple[Feature, ...], list[int]]:
    """Return the rows, (rows, features) float32 with NaN for missing values, their features, and each column's number."""
    feature_lists = [
        (column, rule, _features(sample, column, rule)) for column, rule in zip(columns, rules, strict=True)
    ]
    features = tuple(feature for _, _, of_column in feature_lists for feature in of_column)
    fault = describe_duplicate([feature.name for feature in features])
    if fault:
        raise UserError(f"{sample.name}: with the one-hot columns of texts, {shown(fault, 300)}.")
    rows = len(columns[0].codes)
    must_fit(
        8 * rows * len(features), f"{sample.name}: got {rows:,} rows of {len(features):,} features", "Drop columns"
    )
    x = np.empty((rows, len(features)), np.float32)
    start = 0
    for column, _, of_column in feature_lists:
        _write_features(x[:, start : start + len(of_column)], column)
        start += len(of_column)
    return x, _with_declared(sample, columns, features, declared), [len(each) for _, _, each in feature_lists]


def sort_texts(texts: Sequence[str]) -> list[str]:
    """Sort texts: integers by value, other texts alphabetically."""
    all_integers = all(re.fullmatch(r"[+-]?[0-9]{1,1000}", text) for text in texts)
    return sorted(texts, key=lambda text: (int(text), text)) if all_integers else sorted(texts)


def _features(sample: TableSample, column: Column, rule: Rule) -> list[Feature]:
    """Return one feature for numbers or booleans; for texts one for each value, and one for missing values."""
    if column.kind != "text":
        settings: dict = {"missing": rule} if isinstance(rule, Fill) else {}
        if column.kind == "boolean":
            settings |= {"kind": "categorical", "categories": _ONE_HOT} | _source_column(column)
        return [_feature(sample, column.name, settings)]
    names = [f"{column.name}={text}" for text in _sorted_values(column)]
    if column.missing.any():
        names.append(f"{column.name} is missing")
    return [
        _feature(sample, name, {"kind": "categorical", "categories": _ONE_HOT} | _source_column(column))
        for name in names
    ]


def _source_column(column: Column) -> dict[str, str]:
    return {"column": column.name} if "=" in column.name or column.name.endswith(" is missing") else {}


def _feature(sample: TableSample, name: str, settings: dict) -> Feature:
    if len(name) > MAX_TEXT_LENGTH:
        raise UserError(
            f"{sample.name}: the feature {shown(repr(name))}: got a name of {len(name):,} characters, expected at "
            f"most {MAX_TEXT_LENGTH:,}. Shorten it, or list the column under data.source.drop."
        )
    return Feature(name=name, **settings)


def _sorted_values(column: Column) -> list[str]:
    return sort_texts([column.texts[code] for code in column.used])


def _write_features(x: np.ndarray, column: Column) -> None:
    """Write a column's features into x: (rows, features)."""
    if column.kind != "text":
        x[:, 0] = column.per_row()
        return
    position_of = {text: position for position, text in enumerate(_sorted_values(column))}
    by_code = np.array([position_of.get(text, -1) for text in column.texts])
    position = np.where(column.missing, len(position_of), by_code[column.codes])  # missing values have the last feature
    x[:] = 0
    x[np.arange(len(x)), position] = 1


def _with_declared(
    sample: TableSample, columns: Sequence[Column], features: tuple[Feature, ...], declared: Sequence[Feature]
) -> tuple[Feature, ...]:
    """Return the features with what params declare of single ones, by name."""
    single = [column.name for column in columns if column.kind != "text"]
    for index, feature in enumerate(declared):
        if feature.name not in single:
            raise UserError(
                f"params.yaml: data.features.{index}: got {shown(repr(feature.name))}, expected a column of "
                f"{sample.name}: {some([shown(repr(name), 40) for name in single]) or 'none'}. The one-hot "
                "columns of a text need no entry; correct the name, or drop the entry."
            )
    declarations = {feature.name: feature for feature in declared}
    return tuple(_merged(feature, declarations.get(feature.name)) for feature in features)


def _merged(feature: Feature, declaration: Feature | None) -> Feature:
    if declaration is None:
        return feature
    missing = declaration.missing if "missing" in declaration.model_fields_set else feature.missing
    return declaration.model_copy(update={"missing": missing})
