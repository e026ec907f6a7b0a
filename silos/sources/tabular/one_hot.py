"""The features of a table: numbers and truths as they are, a column of 0 and 1 for each value of a text."""

import re
from collections.abc import Sequence

import numpy as np

from silos.dataset import some
from silos.errors import UserError, shown
from silos.io.free_memory import must_fit
from silos.schema import LONGEST, Feature, twice
from silos.sources.source_params import Fill
from silos.sources.tabular.column_kinds import Column
from silos.sources.tabular.missing_values import Rule
from silos.sources.tabular.table_reader import TableSample

_BOTH = (0.0, 1.0)


def features_of(
    look: TableSample, columns: Sequence[Column], rules: Sequence[Rule], declared: Sequence[Feature]
) -> tuple[np.ndarray, tuple[Feature, ...]]:
    """The rows, (rows, features) float32 with NaN where a value is missing and may be, and what their features are."""
    named = [(column, rule, _features(look, column, rule)) for column, rule in zip(columns, rules, strict=True)]
    features = tuple(feature for _, _, each in named for feature in each)
    fault = twice([feature.name for feature in features])
    if fault:
        raise UserError(f"{look.name}: with the columns that texts become, {shown(fault, 300)}.")
    rows = len(columns[0].codes)
    must_fit(8 * rows * len(features), f"{look.name} as {rows:,} rows of {len(features):,} features", "drop columns")
    x = np.empty((rows, len(features)), np.float32)
    at = 0
    for column, _, each in named:
        _fill(x[:, at : at + len(each)], column)
        at += len(each)
    return x, _with_declared(look, columns, features, declared)


def ordered(texts: Sequence[str]) -> list[str]:
    """Whole numbers by value, other texts as text."""
    whole = all(re.fullmatch(r"[+-]?[0-9]{1,1000}", text) for text in texts)
    return sorted(texts, key=lambda text: (int(text), text)) if whole else sorted(texts)


def _features(look: TableSample, column: Column, rule: Rule) -> list[Feature]:
    """One of a column of numbers or truths; of a text one for each of its values, and one for none."""
    if column.kind != "text":
        said: dict = {"missing": rule} if isinstance(rule, Fill) else {}
        if column.kind == "boolean":
            said |= {"kind": "categorical", "categories": _BOTH} | _column(column)
        return [_feature(look, column.name, said)]
    names = [f"{column.name}={text}" for text in _values(column)]
    if column.missing.any():
        names.append(f"{column.name} is missing")
    return [_feature(look, name, {"kind": "categorical", "categories": _BOTH} | _column(column)) for name in names]


def _column(column: Column) -> dict[str, str]:
    return {"column": column.name} if "=" in column.name or column.name.endswith(" is missing") else {}


def _feature(look: TableSample, name: str, said: dict) -> Feature:
    if len(name) > LONGEST:
        raise UserError(
            f"{look.name}: the feature {shown(repr(name))} would have a name of {len(name):,} characters, and a name has "
            f"{LONGEST:,} at most; shorten it, or list the column under data.source.drop."
        )
    return Feature(name=name, **said)


def _values(column: Column) -> list[str]:
    return ordered([column.texts[code] for code in column.used])


def _fill(x: np.ndarray, column: Column) -> None:
    """Writes a column's features: (rows, features)."""
    if column.kind != "text":
        x[:, 0] = column.per_row()
        return
    places = {text: place for place, text in enumerate(_values(column))}
    by_code = np.array([places.get(text, -1) for text in column.texts])
    place = np.where(column.missing, len(places), by_code[column.codes])  # of a missing one the last
    x[:] = 0
    x[np.arange(len(x)), place] = 1


def _with_declared(
    look: TableSample, columns: Sequence[Column], features: tuple[Feature, ...], declared: Sequence[Feature]
) -> tuple[Feature, ...]:
    """The features with what params say of single ones, by name; of others params need say nothing."""
    single = [column.name for column in columns if column.kind != "text"]
    for at, feature in enumerate(declared):
        if feature.name not in single:
            raise UserError(
                f"params.yaml: data.features.{at} is {shown(repr(feature.name))}, and of {look.name} these can be "
                f"described: {some([shown(repr(name), 40) for name in single]) or 'none'}. A text's columns of 0 and 1 "
                "need no entry; correct the name, or drop the entry."
            )
    said = {feature.name: feature for feature in declared}
    return tuple(
        feature
        if feature.name not in said
        else said[feature.name].model_copy(update={"missing": _missing(said, feature)})
        for feature in features
    )


def _missing(said: dict[str, Feature], feature: Feature) -> object:
    mine = said[feature.name]
    return mine.missing if "missing" in mine.model_fields_set else feature.missing
