"""Where rows come from: one function a kind of source."""

from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np

from silos.dataset import Rows
from silos.errors import UserError
from silos.plugin_registry import run_entry, taken
from silos.schema import Feature
from silos.sources.declared_features import described
from silos.sources.source_params import SOURCES, Folder, Npz, OwnSource, Source, Table
from silos.versioning.hashing import file_digest


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
