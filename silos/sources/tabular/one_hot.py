"""The features of a table: numbers and booleans as they are, and one-hot columns for texts."""

import re
from collections.abc import Sequence

import numpy as np

from silos.dataset import some
from silos.errors import UserError, shown
from silos.io.free_memory import must_fit
from silos.schema import MAX_TEXT_LENGTH, Feature, describe_duplicate
from silos.sources.source_params import Fill
from silos.sources.tabular.column_kinds import Column
from silos.sources.tabular.missing_values import Rule
from silos.sources.tabular.table_reader import TableSample

_ONE_HOT = (0.0, 1.0)


def build_features(
    sample: TableSample, columns: Sequence[Column], rules: Sequence[Rule], declared: Sequence[Feature]
) -> tuple[np.ndarray, tuple[Feature, ...]]:
    """Return the rows, (rows, features) float32 with NaN for allowed missing values, and their features."""
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
    return x, _with_declared(sample, columns, features, declared)


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
