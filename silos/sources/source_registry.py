"""Load the rows of a source, and check the features, missing values and ranges of flat tables."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np

from silos.dataset import Clients, Partition, Rows
from silos.errors import UserError
from silos.io.hashing import file_digest
from silos.plugin_registry import accepted_arguments, run_entry
from silos.raw_cells import cells_of_arrays
from silos.row_units import count_copies
from silos.schema import Feature, default_features, is_table
from silos.sources.source_params import SOURCES, Folder, Npz, OwnSource, Source, Table, is_public

_MAX_NAMED = 3  # features that a note names at most


def attach_features(where: str, rows: Rows, declared: tuple[Feature, ...]) -> Rows:
    """Attach features to the rows of a source: those that params declare, else those that the source names.

    In a table, NaN is a missing value: the feature's `fill` replaces it, and a mask is stored if any feature has a
    `fill`. If `fill` is mean, 0 stands there until clients are made.

    Args:
        where: The source's name in errors.
        rows: The rows as read.
        declared: The features that params declare.

    Raises:
        UserError: If the features do not match the rows, or a value is missing of a feature that refuses it.
    """
    if not is_table(rows.x.shape[1:], rows.x.dtype):
        if declared:
            raise UserError(
                f"params.yaml: data.features: got columns for {where}, whose rows are images, {rows.x.shape[1:]} "
                f"{rows.x.dtype}, expected a flat table, since images are compared by agreed projections and not "
                "value by value. Drop data.features, or save x as float32 (rows, features)."
            )
        return rows
    features = _match_features(where, rows, declared)
    is_missing = np.isnan(rows.x)
    may_miss = np.array([feature.fill is not None for feature in features] or [False] * rows.x.shape[1])
    _check_missing(where, rows, is_missing & ~may_miss, features)
    if not may_miss.any():
        return replace(rows, features=features)
    for feature in features:
        # the mean of a 0/1 column is a share of rows, which may stand for a missing value
        if feature.fill == "mean" and {*feature.categories} - {0.0, 1.0}:
            raise UserError(
                f"{where}: {feature.name!r}: got missing: {{fill: mean}}, expected a number, since the categories "
                f"are codes without a mean. Set `missing: {{fill: v}}` under data.features in params.yaml, with a "
                "number v."
            )
    fills = np.array([0.0 if feature.fill == "mean" else feature.fill or 0.0 for feature in features], np.float32)
    return replace(rows, x=np.where(is_missing, fills, rows.x), missing=is_missing, features=features)


def range_notes(partition: Partition) -> list[str]:
    """Return a note about the rows with values outside a feature's bounds or categories; empty if there are none."""
    groups: list[Clients | Rows] = [partition.clients, *([] if partition.common is None else [partition.common])]
    parts = []
    for index, feature in enumerate(partition.features):
        masks = [
            feature.outside(rows.x[:, index]) & (True if rows.missing is None else ~rows.missing[:, index])
            for rows in groups
        ]
        count = int(sum(mask.sum() for mask in masks))
        if count:
            allowed = "its categories" if feature.categories else f"{feature.low:g} to {feature.high:g}"
            parts.append(f"{count} row{'s' * (count > 1)} of {feature.name!r} ({allowed})")
    if not parts:
        return []
    more = len(parts) - _MAX_NAMED
    rest = f", and rows of {more} more feature{'s' * (more > 1)}" if more > 0 else ""
    return [
        f"Values outside of the categories and bounds in data.features are kept: {', '.join(parts[:_MAX_NAMED])}{rest}."
    ]


def _match_features(where: str, rows: Rows, declared: tuple[Feature, ...]) -> tuple[Feature, ...]:
    """Return the features of the columns; empty if they equal the default features."""
    count = rows.x.shape[1]
    if declared and len(declared) != count:
        raise UserError(
            f"params.yaml: data.features: got {len(declared)} entr{'y' if len(declared) == 1 else 'ies'}, "
            f"expected {count} for the {count} feature{'s' * (count > 1)} of {where}. Give one entry a column, in "
            "the order of the columns."
        )
    for index, (expected, actual) in enumerate(zip(declared, rows.features, strict=False)):
        if expected.name != actual.name:
            raise UserError(
                f"params.yaml: data.features.{index}: got {expected.name!r}, expected {actual.name!r}, the name "
                f"of that column in {where}. List the features in the order of the columns, under the same names."
            )
    features = declared or rows.features
    return () if features and features == default_features(count) else features


def _check_missing(where: str, rows: Rows, invalid: np.ndarray, features: tuple[Feature, ...]) -> None:
    """Raise UserError if a value is missing that must not be; invalid: (n, features) bool."""
    if not invalid.any():
        return
    row = int(invalid.any(axis=1).argmax())
    index = int(invalid[row].argmax())
    name = features[index].name if features else f"x{index}"
    owner = "" if rows.client is None else f" (client {rows.client[row]})"
    count = int(invalid[:, index].sum()) - 1
    more = f", as have {count} more row{'s' * (count > 1)}" if count else ""
    others = int(invalid.any(axis=0).sum()) - 1
    also = f"; {others} more feature{'s' * (others > 1)} miss{'es' * (others == 1)} values, too" if others else ""
    raise UserError(
        f"{where}: x: got no value (NaN) of the feature {name!r}, column {index}, in row {row}{owner}{more}{also}, "
        f"expected a number. Fill in or drop such rows, or set `missing: {{fill: mean}}` for the feature under "
        "data.features in params.yaml."
    )


def load_source(source: Source | OwnSource, root: Path, seed: int, features: tuple[Feature, ...] = ()) -> Rows:
    """Return the rows of `source`.

    Args:
        source: The source; its path is relative to `root`.
        root: The folder of params.yaml.
        seed: The seed of random draws.
        features: The features that params declare.
    """
    where = source.path if isinstance(source, Npz | Table) else f"the source `{source.kind}`"
    declared = () if isinstance(source, Table) else features  # `table` matches them to its columns by name
    if isinstance(source, OwnSource):
        rows = run_entry(source, root=Path(root), seed=seed)
        if not isinstance(rows, Rows):
            raise UserError(f"source {source.kind!r}: got a {type(rows).__name__}, expected silos.dataset.Rows.")
    else:
        read = SOURCES.find(source.kind)
        rows = read(
            **accepted_arguments(read, {"source": source, "root": Path(root), "seed": seed, "declared": features})
        )
    read_rows = cast(Rows, rows)
    if read_rows.cells is None and not is_public(source):
        names = [feature.name for feature in read_rows.features]
        read_rows = replace(read_rows, cells=cells_of_arrays(read_rows.x, read_rows.y, names))
    return _note_copies(attach_features(where, read_rows, declared), source)


def _note_copies(rows: Rows, source: Source | OwnSource) -> Rows:
    """Add a note on copies of rows in a file of the user, if it has no units."""
    copies = (
        0 if rows.unit is not None or not isinstance(source, Npz | Folder | Table) else count_copies(rows.x, rows.y)
    )
    if not copies:
        return rows
    note = (
        f"rows may not be independent: {copies:,} of {len(rows.y):,} equal another row; a diagnosis and intervals take them "
        "for separate ones, unless data.source.unit names the column of what they belong to"
    )
    return replace(rows, notes=(*rows.notes, note))


def content_hashes(source: Source | OwnSource, root: Path) -> dict[str, str]:
    """Return the md5 of each file of the user that `source` is read from; {} for published sets known by name.

    A plugin's source is identified by its code.
    """
    if isinstance(source, OwnSource):
        return {"plugin": source.entry.digest}
    if not isinstance(source, Npz | Folder | Table):
        return {}
    location = Path(root) / source.path
    files = [location] if location.is_file() else sorted(path for path in location.rglob("*") if path.is_file())
    return {path.relative_to(location).as_posix(): file_digest(str(path)) for path in files}


def at_places() -> Rows:
    """Raise UserError: rows that lie at places are read there."""
    raise UserError(
        "params.yaml: data.source.kind: got places, expected rows that lie here: partitions are made from rows. "
        "Change data.seed or data.scheme at each place, and partition there."
    )


def digits() -> Rows:
    """Return scikit-learn's digits, with their 17 shades of grey spread over 0 to 255."""
    table = np.loadtxt(_datasets() / "data" / "digits.csv.gz", delimiter=",")
    x = np.floor(table[:, :-1].reshape(-1, 8, 8) * 255 / 16 + 0.5).astype(np.uint8)
    return Rows(x=x, y=table[:, -1].astype(np.int64), classes=[str(digit) for digit in range(10)])


def tumours() -> Rows:
    """Return scikit-learn's breast tumours, each feature spread over 0 to 1 by the range that their description names."""
    table = np.loadtxt(_datasets() / "data" / "breast_cancer.csv", delimiter=",", skiprows=1)
    described = (_datasets() / "descr" / "breast_cancer.rst").read_text(encoding="utf-8")
    ranges = re.findall(r"^(\w[\w ]* \([\w ]+\)): +([\d.]+) +([\d.]+)$", described, re.MULTILINE)
    low, high = np.array([bounds for _, *bounds in ranges], float).T
    x = ((table[:, :-1] - low) / (high - low)).astype(np.float32)
    features = tuple(Feature(name=name) for name, *_ in ranges)
    return Rows(x=x, y=table[:, -1].astype(np.int64), classes=["malignant", "benign"], features=features)


def _datasets() -> Path:
    """Return the folder of scikit-learn's data; importing it, SciPy and pandas would take longer than reading a file."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "datasets"
