"""Where rows come from: one function a kind of source."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from silos.rows import Rows
from silos.schema import Feature
from silos.sources.cifar import cifar
from silos.sources.columns import described
from silos.sources.gtsrb import gtsrb
from silos.sources.idx import emnist, mnist
from silos.sources.npz import npz
from silos.sources.picture_folder import folder
from silos.sources.source_params import Cifar, Digits, Emnist, Folder, Gtsrb, Mnist, Npz, Source, Synthetic, Table
from silos.sources.synthetic import synthetic
from silos.versions.digest import file_digest


def load(source: Source, root: Path, seed: int, features: tuple[Feature, ...] = ()) -> Rows:
    """The rows of `source`; a path in it is relative to `root`, the folder of params.yaml; draws are from `seed`.

    `features` are what params declare of its columns.
    """
    where = source.path if isinstance(source, Npz | Table) else f"the source `{source.kind}`"
    declared = () if isinstance(source, Table) else features  # a table has put them beside its columns, by name
    return described(where, _read(source, Path(root), seed, features), declared)


def contents(source: Source, root: Path) -> dict[str, str]:
    """The md5 of each file that `source` is read from, where they are the user's own; {} of a set known by its name."""
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


def _read(source: Source, root: Path, seed: int, features: tuple[Feature, ...]) -> Rows:
    match source:
        case Digits():
            return digits()
        case Npz():
            return npz(source, root)
        case Table():
            from silos.sources.tables.table_source import table  # Arrow takes long to import

            return table(source, root, features)
        case Mnist():
            return mnist(source, root, seed)
        case Emnist():
            return emnist(source, root, seed)
        case Cifar():
            return cifar(source, root, seed)
        case Gtsrb():
            return gtsrb(source, root, seed)
        case Folder():
            return folder(source, root)
        case Synthetic():
            return synthetic(source, seed)
