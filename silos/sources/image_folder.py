"""The source `folder`: pictures as domain/class/file, as PACS has them, or as class/file."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from silos.dataset import Rows
from silos.errors import UserError
from silos.schema import first_fault
from silos.sources.image_files import read_pictures
from silos.sources.source_params import Folder

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
}
_SPLITS |= {"test": "test", "testing": "test"}


def folder(source: Folder, root: Path) -> Rows:
    """Read every picture of a folder.

    Args:
        source: The folder and the size of its rows.
        root: The folder of params.yaml, to which the path is relative.

    Returns:
        The rows, sorted by domain, class and file. The folders above the classes are the domains, or the splits if they
        are called train, val and test. Without test, val is the test split.

    Raises:
        UserError: If there are no pictures as domain/class/file or class/file, or if one cannot be read.
    """
    base = root / source.path
    if not base.is_dir():
        raise UserError(
            f"{source.path}: no such folder (looked for {base}); params.yaml: data.source.path is relative to the "
            "folder of params.yaml, and holds domain/class/file or class/file."
        )
    found = list_pictures(source.path, base)
    domains, labels, paths = zip(*found, strict=True)
    for named in (set(domains), set(labels)):
        wrong = first_fault(np.array(sorted(named)))
        if wrong:
            raise UserError(f"{source.path}: the folder {sorted(named)[wrong[0]]!r} {wrong[1]}.")
    classes = sorted(set(labels))
    split = np.array([_SPLITS[domain.lower()] for domain in domains]) if are_splits(domains) else None
    if split is not None and "test" not in split:
        split[split == "validation"] = "test"  # as in ImageNet, whose val is what methods are compared on
    return Rows(
        x=read_pictures(paths, source.size, source.range),
        y=np.array([classes.index(label) for label in labels], np.int64),
        classes=classes,
        domain=np.array(domains) if split is None and any(domains) else None,
        split=split,
    )


def list_pictures(name: str, base: Path) -> list[tuple[str, str, Path]]:
    """List the domain, the class and the file of each picture, sorted; the domain is "" in class/file.

    Hidden files and files of other types are left out. `name` is the folder in errors. UserError if there are none, if
    folders hold pictures at different depths, or if the pictures would need more than two levels.
    """
    flat = [("", label.name, path) for label in _folders(base) for path in _pictures(label)]
    deep = [
        (domain.name, label.name, path)
        for domain in _folders(base)
        for label in _folders(domain)
        for path in _pictures(label)
    ]
    if flat and deep:
        raise UserError(
            f"{name}: got pictures as class/file ({_inside(base, flat)}) and as domain/class/file ({_inside(base, deep)}), "
            "expected one layout. Move one of them."
        )
    if not flat and not deep:
        raise UserError(
            f"{name} holds no pictures as domain/class/file or class/file ({', '.join(SUFFIXES)}); put them so."
        )
    return flat or deep


def are_splits(domains: Collection[str]) -> bool:
    """Whether the folders above the classes are the splits of one set, and not domains."""
    splits = {_SPLITS.get(domain.lower()) for domain in domains}
    return len(splits) > 1 and "train" in splits and None not in splits


def _inside(base: Path, found: list[tuple[str, str, Path]]) -> str:
    return str(found[0][2].relative_to(base))


def _folders(base: Path) -> list[Path]:
    held = [path for path in base.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return sorted(held, key=lambda path: path.name)


def _pictures(folder: Path) -> list[Path]:
    held = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
    return sorted(held, key=lambda path: path.name)
