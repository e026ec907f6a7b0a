"""The sources `mnist`, `fashion_mnist` and `emnist`: idx files, read by torchvision."""

import gzip
import lzma
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from silos.dataset import Rows
from silos.errors import UserError
from silos.sources.download import fetch, limited_rows
from silos.sources.source_params import Downloaded, Emnist, Mnist
from silos.sources.torchvision_datasets import torchvision

_ACCEPTED = "each may be unpacked, or end in .gz or .xz"
_CLASSES = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}


def mnist(source: Mnist, root: Path, seed: int) -> Rows:
    """Read MNIST (LeCun et al. 1998) or Fashion-MNIST (Xiao et al. 2017), in the published order."""
    torchvision()
    from torchvision import datasets

    cls = getattr(datasets, _CLASSES[source.kind])
    names = {split: [f"{start}-images-idx3-ubyte", f"{start}-labels-idx1-ubyte"] for split, start in _STARTS.items()}
    parts = _read(source, root, cls.__name__, names, lambda folder: cls(folder, download=True), _ACCEPTED)
    classes = [str(digit) for digit in range(10)] if source.kind == "mnist" else cls.classes
    return limited_rows(_check_labels(parts, 0, classes), classes, source.rows, seed)


def emnist(source: Emnist, root: Path, seed: int) -> Rows:
    """Read a split of EMNIST (Cohen et al. 2017); its images are stored transposed, and are turned upright."""
    torchvision()
    from torchvision import datasets

    names = {
        split: [f"emnist-{source.split}-{split}-{what}-ubyte" for what in ("images-idx3", "labels-idx1")]
        for split in ("train", "test")
    }
    parts = _read(
        source,
        root,
        "EMNIST",
        names,
        lambda folder: datasets.EMNIST(folder, split=source.split, download=True),
        f"{_ACCEPTED}, or lie in the published gzip.zip",
    )
    classes = datasets.EMNIST.classes_split_dict[source.split]
    first = 1 if source.split == "letters" else 0  # its labels count from 1
    coded = _check_labels(parts, first, classes[first:])
    upright = {split: (x.transpose(0, 2, 1), y) for split, (x, y) in coded.items()}
    return limited_rows(upright, classes[first:], source.rows, seed)


_STARTS = {"train": "train", "test": "t10k"}
Parts = dict[str, tuple[np.ndarray, np.ndarray, Path]]
"""Images, labels and the file of labels of each split."""


def _read(
    source: Downloaded,
    root: Path,
    name: str,
    names: dict[str, list[str]],
    download: Callable[[str], Any],
    accepted: str,
) -> Parts:
    """Read each split's images and labels from the folder that torchvision reads."""
    from torchvision.datasets.mnist import read_image_file, read_label_file

    folder = root / source.download_dir / name / "raw"
    paths = {split: [folder / file for file in files] for split, files in names.items()}
    flat = [path for pair in paths.values() for path in pair]
    missing = [path for path in flat if not _ensure_unpacked(path)]
    fetch(source, root, missing, lambda: download(str(root / source.download_dir)), accepted)
    parts = {}
    for split, (images, labels) in paths.items():
        x, y = _read_array(images, read_image_file), _read_array(labels, read_label_file)
        if len(x) != len(y):
            raise UserError(
                f"{images}: got {len(x)} images and in {labels.name} {len(y)} labels, expected equal "
                "counts. Replace both files."
            )
        parts[split] = (x, y, labels)
    return parts


def _read_array(path: Path, read: Callable[[str], Any]) -> np.ndarray:
    try:
        return cast(np.ndarray, read(str(path)).numpy())
    except Exception as error:  # of many types: torchvision does not check the file
        raise UserError(
            f"{path}: got a file that is no valid idx file ("
            f"{str(error).splitlines()[0] if str(error) else 'its header is wrong'}), expected one. Delete it; "
            "the next start downloads or unpacks it again."
        ) from error


def _check_labels(parts: Parts, first: int, classes: list[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return labels counted from 0."""
    for _, y, path in parts.values():
        invalid = (y < first) | (y >= first + len(classes))
        if invalid.any():
            raise UserError(
                f"{path}: got the label {int(y[invalid][0])} at row {int(invalid.argmax())}, expected one of "
                f"{len(classes)} classes from {first} on. Replace the file."
            )
    return {split: (x, y - first) for split, (x, y, _) in parts.items()}


def _ensure_unpacked(path: Path) -> bool:
    """Return whether the file exists, after unpacking it from a packed neighbour if necessary."""
    if path.is_file():
        return True
    candidates = [folder / f"{path.name}{end}" for folder in (path.parent, path.parent / "gzip") for end in _OPENERS]
    for packed in [*candidates, path.parent / "gzip.zip"]:
        if packed.is_file():
            return _unpack(packed, path)
    return False


_OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open}


def _unpack(packed: Path, path: Path) -> bool:
    opener = _OPENERS.get(packed.suffix, lambda archive: _member(archive, path.name))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with opener(packed) as file, unfinished.open("wb") as out:
            shutil.copyfileobj(file, out)
        unfinished.replace(path)
    except PermissionError as error:
        raise UserError(
            f"{packed}: cannot be unpacked into its folder ({error.strerror}). Make the folder writable, or "
            f"unpack it to {path}."
        ) from error
    except Exception as error:  # of many types: zlib, lzma and zipfile have their own
        raise UserError(f"{packed}: cannot be unpacked ({error}). Replace the file.") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return True


def _member(packed: Path, name: str) -> Any:
    """Open a gzipped file of the same name in a zip archive."""
    with zipfile.ZipFile(packed) as archive:
        return gzip.open(archive.open(f"gzip/{name}.gz"))
