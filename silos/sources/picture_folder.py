"""The source `folder`: pictures as domain/class/file, as PACS has them."""

from pathlib import Path

import numpy as np

from silos.errors import UserError
from silos.rows import Rows
from silos.sources.picture_files import read_pictures
from silos.sources.source_names import first_fault
from silos.sources.source_params import Folder

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def folder(source: Folder, root: Path) -> Rows:
    """Every picture of domain/class/file, sorted by these three names; other and hidden files are left alone."""
    base = root / source.path
    if not base.is_dir():
        raise UserError(
            f"{source.path}: no such folder (looked for {base}); params.yaml: data.source.path is relative to the "
            "folder of params.yaml, and holds domain/class/file."
        )
    pictures = [
        (domain.name, label.name, path)
        for domain in _folders(base)
        for label in _folders(domain)
        for path in sorted(label.iterdir(), key=lambda path: path.name)
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]
    if not pictures:
        raise UserError(f"{source.path} holds no pictures as domain/class/file ({', '.join(SUFFIXES)}); put them so.")
    for named in ({domain for domain, _, _ in pictures}, {label for _, label, _ in pictures}):
        wrong = first_fault(np.array(sorted(named)))
        if wrong:
            raise UserError(f"{source.path}: the folder {sorted(named)[wrong[0]]!r} {wrong[1]}.")
    classes = sorted({label for _, label, _ in pictures})
    return Rows(
        x=read_pictures([path for _, _, path in pictures], source.size),
        y=np.array([classes.index(label) for _, label, _ in pictures], np.int64),
        classes=classes,
        domain=np.array([domain for domain, _, _ in pictures]),
    )


def _folders(base: Path) -> list[Path]:
    held = [path for path in base.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return sorted(held, key=lambda path: path.name)
