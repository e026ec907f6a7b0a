"""Where rows come from: one function a kind of source.

The columns of a flat table: what params and archive say of them, their missing values, values that nobody agreed on.
"""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np

from silos.dataset import Clients, Partition, Rows
from silos.errors import UserError
from silos.plugin_registry import run_entry, taken
from silos.schema import Feature, is_table, unnamed
from silos.sources.source_params import SOURCES, Folder, Npz, OwnSource, Source, Table
from silos.versioning.hashing import file_digest

_SHOWN = 3  # features that a note names


def described(where: str, rows: Rows, declared: tuple[Feature, ...]) -> Rows:
    """The rows of a source with the features that params declare, else with those that the source names.

    Of a table NaN is a missing value: the feature's `fill` takes its place, and a mask is kept if any feature has one. Where
    that is a mean, 0 does until clients are made.
    `where` is the source in errors. UserError where the features are not those of the rows, or a value is missing of
    a feature that refuses it.
    """
    if not is_table(rows.x.shape[1:], rows.x.dtype):
        if declared:
            raise UserError(
                f"params.yaml: data.features are columns of a flat table, and the rows of {where} are pictures, "
                f"{rows.x.shape[1:]} {rows.x.dtype}, which are compared by agreed projections and not value by value; "
                "drop data.features, or save x as float32 (rows, features)."
            )
        return rows
    features = _agreed(where, rows, declared)
    gaps = np.isnan(rows.x)
    may_miss = np.array([feature.fill is not None for feature in features] or [False] * rows.x.shape[1])
    _check_gaps(where, rows, gaps & ~may_miss, features)
    if not may_miss.any():
        return replace(rows, features=features)
    for feature in features:
        if feature.fill == "mean" and {*feature.categories} - {0.0, 1.0}:
            raise UserError(
                f"{where}: the categories of {feature.name!r} are codes, which have no mean; say `missing: {{fill: v}}` of "
                "it under data.features in params.yaml, with a number v."
            )
    fills = np.array([0.0 if feature.fill == "mean" else feature.fill or 0.0 for feature in features], np.float32)
    return replace(rows, x=np.where(gaps, fills, rows.x), missing=gaps, features=features)


def outside(made: Partition) -> list[str]:
    """A sentence about the rows with values outside of a feature's bounds or categories; none where there are none."""
    owners: list[Clients | Rows] = [made.clients, *([] if made.common is None else [made.common])]
    found = []
    for at, feature in enumerate(made.features):
        wrong = [feature.outside(o.x[:, at]) & (True if o.missing is None else ~o.missing[:, at]) for o in owners]
        count = int(sum(mask.sum() for mask in wrong))
        if count:
            what = "its categories" if feature.categories else f"{feature.low:g} to {feature.high:g}"
            found.append(f"{count} row{'s' * (count > 1)} of {feature.name!r} ({what})")
    if not found:
        return []
    more = len(found) - _SHOWN
    rest = f", and rows of {more} more feature{'s' * (more > 1)}" if more > 0 else ""
    return [f"Values outside of what data.features declares are kept as they are: {', '.join(found[:_SHOWN])}{rest}."]


def _agreed(where: str, rows: Rows, declared: tuple[Feature, ...]) -> tuple[Feature, ...]:
    """What is known of the columns; empty where that is no more than their number."""
    count = rows.x.shape[1]
    if declared and len(declared) != count:
        raise UserError(
            f"params.yaml: data.features has {len(declared)} entr{'y' if len(declared) == 1 else 'ies'}, and the rows of "
            f"{where} have {count} feature{'s' * (count > 1)}; give one entry a column, in the order of the columns."
        )
    for at, (mine, theirs) in enumerate(zip(declared, rows.features, strict=False)):
        if mine.name != theirs.name:
            raise UserError(
                f"params.yaml: data.features.{at} is {mine.name!r}, and {where} names that column {theirs.name!r}; "
                "list the features in the order of the columns, under the same names."
            )
    features = declared or rows.features
    return () if features and features == unnamed(count) else features


def _check_gaps(where: str, rows: Rows, wrong: np.ndarray, features: tuple[Feature, ...]) -> None:
    """UserError where a value is missing that may not be; wrong: (n, features) bool."""
    if not wrong.any():
        return
    row = int(wrong.any(axis=1).argmax())
    at = int(wrong[row].argmax())
    name = features[at].name if features else f"x{at}"
    owner = "" if rows.client is None else f" (client {rows.client[row]})"
    count = int(wrong[:, at].sum()) - 1
    more = f", as have {count} more row{'s' * (count > 1)}" if count else ""
    others = int(wrong.any(axis=0).sum()) - 1
    also = f"; {others} more feature{'s' * (others > 1)} miss{'es' * (others == 1)} values, too" if others else ""
    raise UserError(
        f"{where}: row {row}{owner} of x has no value (NaN) of the feature {name!r}, column {at}{more}{also}; fill in or "
        "drop such rows, or say `missing: {fill: mean}` of the feature under data.features in params.yaml."
    )


def load_source(source: Source | OwnSource, root: Path, seed: int, features: tuple[Feature, ...] = ()) -> Rows:
    """The rows of `source`; a path in it is relative to `root`, the folder of params.yaml; draws are from `seed`.

    `features` are what params declare of its columns.
    """
    where = source.path if isinstance(source, Npz | Table) else f"the source `{source.kind}`"
    declared = () if isinstance(source, Table) else features  # a table has put them beside its columns, by name
    return described(where, _read(source, Path(root), seed, features), declared)


def contents(source: Source | OwnSource, root: Path) -> dict[str, str]:
    """The md5 of each file that `source` is read from, where they are the user's own; {} of a set known by its name.

    A plugin's source is known by its code.
    """
    if isinstance(source, OwnSource):
        return {"plugin": file_digest(source.entry.file)}
    if not isinstance(source, Npz | Folder | Table):
        return {}
    place = Path(root) / source.path
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return {path.relative_to(place).as_posix(): file_digest(str(path)) for path in files}


def digits() -> Rows:
    """The digits of scikit-learn, their 17 shades of grey spread over 0 to 255."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    # read where load_digits reads it: importing scikit-learn, and SciPy and pandas with it, takes longer than the rest
    table = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    x = np.floor(table[:, :-1].reshape(-1, 8, 8) * 255 / 16 + 0.5).astype(np.uint8)
    return Rows(x=x, y=table[:, -1].astype(np.int64), classes=[str(digit) for digit in range(10)])


def _read(source: Source | OwnSource, root: Path, seed: int, declared: tuple[Feature, ...]) -> Rows:
    if isinstance(source, OwnSource):
        rows = run_entry(source, root=root, seed=seed)
        if not isinstance(rows, Rows):
            raise UserError(f"source {source.kind!r}: got a {type(rows).__name__}, expected silos.dataset.Rows.")
        return rows
    read = SOURCES.find(source.kind)
    rows = read(**taken(read, {"source": source, "root": root, "seed": seed, "declared": declared}))
    return cast(Rows, rows)
