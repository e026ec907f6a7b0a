"""Describes the columns of a table's file that an exported model reads; pandas and pyarrow are not imported."""

from collections.abc import Sequence
from typing import Literal

from models.model_card import Column, NumberColumn, ReadingRules
from silos.data_params import DataParams
from silos.schema import Feature
from silos.sources.source_params import Table
from silos.storage.manifest import Manifest

_ONE_HOT = (0.0, 1.0)


def input_columns(manifest: Manifest, params: DataParams) -> list[Column] | None:
    """Return the columns that a model's inputs must have, as JSON, in the order of their features.

    For a `table` source these are the columns of its file, for others its features. None if columns have no names.
    """
    if not manifest.features:
        return None
    if isinstance(params.source, Table):
        return raw_columns(params.source, manifest.features, params.features)
    return [_single(feature, "number") for feature in manifest.features]


def reading_rules(params: DataParams) -> ReadingRules | None:
    """Return how the model's table is read from a file, as JSON; None if the source is no table.

    `ignored` lists columns that are no features, such as the label. The other keys are those of `data.source`.
    """
    source = params.source
    if not isinstance(source, Table):
        return None
    return {
        "ignored": sorted({*source.roles.values(), *source.drop}),
        "decimal": source.decimal,
        "censored": source.censored,
        "na_values": None if source.na_values is None else list(source.na_values),
    }


def raw_columns(source: Table, features: Sequence[Feature], declared: Sequence[Feature]) -> list[Column]:
    """Return the columns of a file as JSON, in the order of their features: the inverse of `build_features`.

    A text column has its `values`, and whether there is a feature for `missing` values. Any other column has `missing`,
    the rule of its feature, and its `range` or `allowed` numbers if the schema limits them. Names decide, unless a
    feature has a `column`: a feature `ward=eye` belongs to the text column `ward`, up to the first `=`.

    Args:
        source: The source of the table, whose `categorical` columns are text columns in any case.
        features: All features of the table, as its manifest lists them.
        declared: The features that params declare. None of them comes from a text column.
    """
    single = {feature.name for feature in declared}
    columns: list[Column] = []
    for feature in features:
        last = columns[-1] if columns else None
        one_hot = feature.categories == _ONE_HOT and feature.name not in single
        if one_hot and last is not None and last["kind"] == "text" and feature.column in (None, last["name"]):
            if feature.name.startswith(f"{last['name']}="):
                last["values"].append(feature.name.removeprefix(f"{last['name']}="))
                continue
            if feature.name == f"{last['name']} is missing":
                last["missing"] = True
                continue
        name = _text_column(feature, source) if one_hot else None
        if name is not None:
            value = feature.name.removeprefix(f"{name}=")
            columns.append({"name": name, "kind": "text", "values": [value], "missing": False})
        else:
            columns.append(_single(feature, "boolean" if one_hot else "number"))
    return columns


def _single(feature: Feature, kind: Literal["number", "boolean"]) -> NumberColumn:
    """Return the column of one feature, with the values that its schema allows, if it limits them."""
    column: NumberColumn = {"name": feature.name, "kind": kind, "missing": _rule(feature)}
    if kind == "number" and feature.categories:
        column["allowed"] = list(feature.categories)
    elif feature.low is not None and feature.high is not None:
        column["range"] = [feature.low, feature.high]
    return column


def _rule(feature: Feature) -> float | str:
    """Return the value that replaces a missing value, `mean` or `refuse`."""
    return "refuse" if feature.fill is None else feature.fill


def _text_column(feature: Feature, source: Table) -> str | None:
    """Return the column of a one-hot feature; None if its name is not `column=value`."""
    name = feature.name
    if feature.column is not None:
        return None if name == feature.column else feature.column
    listed = [column for column in source.categorical if name.startswith(f"{column}=")]
    head, equals, _ = name.partition("=")
    return max(listed, key=len, default=head if equals else None)
