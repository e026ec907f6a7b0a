"""The published sets of images: `mnist`, `fashion_mnist`, `emnist`, `cifar10`, `cifar100` and `gtsrb`.

Torchvision downloads and reads them; it is imported only when it is used. The package index pairs its torchvision with
torch's CUDA build. With the CPU build, its library does not load, and the import fails because two operators are not
registered. Declaring them makes everything work that does not call them (datasets, transforms, classification networks,
most of `ops`).
"""

import gzip
import lzma
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from silos.dataset import Rows, data_stream
from silos.errors import UserError
from silos.sources.image_folder import read_pictures
from silos.sources.source_params import Cifar, Downloaded, Emnist, Gtsrb, Mnist, RowLimits

_declared: list[object] = []  # declarations last as long as the library object

_ACCEPTED = "each may be unpacked, or end in .gz or .xz"
_MNIST_SETS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}

_STARTS = {"train": "train", "test": "t10k"}
Parts = dict[str, tuple[np.ndarray, np.ndarray, Path]]
"""Images, labels and the file of labels of each split."""


def torchvision() -> ModuleType:
    """Import torchvision; on a mismatched build `nms`, `deform_conv2d` and the image codecs stay unusable."""
    try:
        import torchvision as package
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        package = _declare_and_import()
    return package


def _declare_and_import() -> ModuleType:
    import torch

    for name in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    if not _declared:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
    import torchvision as package

    return package


def cifar(source: Cifar, root: Path, seed: int) -> Rows:
    """Read CIFAR-10 or CIFAR-100 with its fine labels (Krizhevsky 2009), in the published order.

    The files are pickles, which can run code: torchvision opens them only with the published checksums.
    """
    torchvision()
    from torchvision import datasets

    cls: Any = datasets.CIFAR10 if source.kind == "cifar10" else datasets.CIFAR100
    folder = root / source.download_dir
    checksums = [*cls.train_list, *cls.test_list, (cls.meta["filename"], cls.meta["md5"])]
    files = {folder / cls.base_folder / name: md5 for name, md5 in checksums}
    missing = [path for path in files if not path.is_file()]
    if missing and _is_published(folder / cls.filename, cls.tgz_md5):
        cls(str(folder), download=True)  # unpacks it
        missing = []
    fetch(source, root, missing, lambda: cls(str(folder), download=True), f"or {cls.filename}, as published")
    for path, md5 in files.items():
        if not _is_published(path, md5):
            raise UserError(
                f"{path}: got a file that is not the published one, expected the md5 {md5}. Delete the folder "
                f"{path.parent.name}; the next start downloads or unpacks the file again."
            )
    parts = {}
    for split in ("train", "test"):
        dataset = cls(str(folder), train=split == "train")
        parts[split] = (dataset.data, np.array(dataset.targets, np.int64))
        classes = dataset.classes
    return limited_rows(parts, classes, source.rows, seed)


def _is_published(path: Path, md5: str) -> bool:
    from torchvision.datasets.utils import check_integrity

    return bool(check_integrity(str(path), md5))


_SIGNS = [str(sign) for sign in range(43)]


def gtsrb(source: Gtsrb, root: Path, seed: int) -> Rows:
    """Read the German traffic signs (Stallkamp et al. 2012): each whole picture resized to a square, in colour."""
    torchvision()
    from torchvision import datasets

    folder = root / source.download_dir
    base = folder / "gtsrb"
    needed = [base / "GTSRB" / "Training", base / "GTSRB" / "Final_Test" / "Images", base / "GT-final_test.csv"]

    def download() -> None:
        for split in ("train", "test"):
            datasets.GTSRB(str(folder), split=split, download=True)

    missing = [path for path in needed if not path.exists()]
    accepted = "the folders hold <class>/*.ppm and *.ppm, as in the published archives"
    fetch(source, root, missing, download, accepted)
    samples = {split: _list_samples(folder, split) for split in ("train", "test")}
    chosen = choose_rows({split: len(pictures) for split, pictures in samples.items()}, source.rows, seed)
    parts = {}
    for split, pictures in samples.items():
        selected = [pictures[index] for index in chosen[split]]
        labels = np.array([label for _, label in selected], np.int64)
        parts[split] = (read_pictures([path for path, _ in selected], source.size), labels)
    return join_splits(parts, _SIGNS)


def _list_samples(folder: Path, split: str) -> list[tuple[Path, int]]:
    """List the pictures of a split with their classes, as torchvision finds them."""
    from torchvision import datasets

    base = folder / "gtsrb"
    try:
        # torchvision numbers the folders that exist, which are the classes only if all exist
        pictures = [
            (Path(path), int(Path(path).parent.name) if split == "train" else label)
            for path, label in datasets.GTSRB(str(folder), split=split)._samples
        ]
    except Exception as error:  # of many types: torchvision does not check the files
        raise UserError(
            f"{base}: got another layout than GTSRB's ({error}), expected GTSRB/Training/<class>/*.ppm, "
            "GTSRB/Final_Test/Images/*.ppm and GT-final_test.csv as published. Put these files there."
        ) from error
    for path, label in pictures:
        if not 0 <= label < len(_SIGNS):
            raise UserError(f"{path}: got the class {label}, expected one of {len(_SIGNS)} classes. Replace the files.")
    return pictures


def mnist(source: Mnist, root: Path, seed: int) -> Rows:
    """Read MNIST (LeCun et al. 1998) or Fashion-MNIST (Xiao et al. 2017), in the published order."""
    torchvision()
    from torchvision import datasets

    cls = getattr(datasets, _MNIST_SETS[source.kind])
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


def _read(
    source: Downloaded,
    root: Path,
    name: str,
    names: dict[str, list[str]],
    download: Callable[[str], object],
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


def fetch(
    source: Downloaded, root: Path, missing: Sequence[Path], download: Callable[[], object], accepted: str
) -> None:
    """Download what is missing, if that is allowed; else a UserError says which files to put where.

    `accepted` names the other forms in which the files may lie there.
    """
    if not missing:
        return
    folder = root / source.download_dir
    files = ", ".join(path.relative_to(folder).as_posix() for path in missing)
    reason = "data.source.download is false"
    if source.download:
        try:
            download()
        except Exception as error:  # torchvision raises whatever urllib, zipfile or tarfile do
            reason = f"the download failed: {_first_line(error)}"
        if all(path.exists() for path in missing):
            return
    raise UserError(
        f"{source.kind}: got no files in {folder} ({reason}), expected {files}. Put them there; {accepted}."
    )


def limited_rows(
    parts: dict[str, tuple[np.ndarray, np.ndarray]], classes: Sequence[str], limits: RowLimits, seed: int
) -> Rows:
    """Return the source's training and test rows as one table, with `limits` applied."""
    chosen = choose_rows({split: len(y) for split, (_, y) in parts.items()}, limits, seed)
    return join_splits({split: (x[chosen[split]], y[chosen[split]]) for split, (x, y) in parts.items()}, classes)


def choose_rows(counts: dict[str, int], limits: RowLimits, seed: int) -> dict[str, np.ndarray]:
    """Return the indices of the rows taken of each split: random, without repeats, in the source's order."""
    chosen = {}
    for split, count in counts.items():
        limit = getattr(limits, split)
        if limit is None:
            limit = count
        if limit > count:
            raise UserError(
                f"params.yaml: data.source.rows.{split}: got {limit}, expected at most the {count} {split} rows "
                "of the source. Lower it."
            )
        order = data_stream(seed, "source", "rows", split).permutation(count)
        chosen[split] = np.sort(order[:limit])
    return chosen


def join_splits(parts: dict[str, tuple[np.ndarray, np.ndarray]], classes: Sequence[str]) -> Rows:
    """Return training and test rows as one table; without test rows, the source has no splits."""
    split = np.concatenate([np.full(len(y), name) for name, (_, y) in parts.items()])
    return Rows(
        x=np.ascontiguousarray(np.concatenate([x for x, _ in parts.values()])),
        y=np.concatenate([y for _, y in parts.values()]).astype(np.int64),
        classes=list(classes),
        split=split if (split != "train").any() else None,
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(":.") if lines else type(error).__name__
