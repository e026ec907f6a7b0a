"""The sources `cifar10`, `cifar100` and `gtsrb`, read by torchvision, which is imported only where it is used.

The package index pairs its torchvision with torch's CUDA build. With the CPU build its library does not load, and the
import fails because of two operators that were never registered. Declaring them lets everything work that does not call
them (datasets, transforms, classification networks, most of `ops`).
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from silos.dataset import Rows
from silos.errors import UserError
from silos.sources.download import choose, fetch, joined, together
from silos.sources.image_folder import read_pictures
from silos.sources.source_params import Cifar, Gtsrb

_declared: list[Any] = []  # a library's declarations last as long as the object


def torchvision() -> ModuleType:
    """The torchvision package; on a mismatched build `nms`, `deform_conv2d` and the image codecs stay unusable."""
    try:
        import torchvision as package
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        package = _declare_and_import()
    return package


def _declare_and_import() -> ModuleType:
    import torch

    for name in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    if not _declared:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
    import torchvision as package

    return package


def cifar(source: Cifar, root: Path, seed: int) -> Rows:
    """CIFAR-10 or CIFAR-100 with its fine labels (Krizhevsky 2009), in the published order.

    The files are pickles, which can run code: torchvision opens them only if they have the published checksums.
    """
    torchvision()
    from torchvision import datasets

    cls: Any = datasets.CIFAR10 if source.kind == "cifar10" else datasets.CIFAR100
    place = root / source.download_dir
    listed = [*cls.train_list, *cls.test_list, (cls.meta["filename"], cls.meta["md5"])]
    files = {place / cls.base_folder / name: md5 for name, md5 in listed}
    missing = [path for path in files if not path.is_file()]
    if missing and _is_published(place / cls.filename, cls.tgz_md5):
        cls(str(place), download=True)  # unpacks it
        missing = []
    fetch(source, root, missing, lambda: cls(str(place), download=True), f"or {cls.filename}, as published")
    for path, md5 in files.items():
        if not _is_published(path, md5):
            raise UserError(
                f"{path} is not the published file (its md5 is not {md5}); delete the folder {path.parent.name}, so "
                "that it is downloaded or unpacked anew."
            )
    parts = {}
    for split in ("train", "test"):
        held = cls(str(place), train=split == "train")
        parts[split] = (held.data, np.array(held.targets, np.int64))
        classes = held.classes
    return together(parts, classes, source.rows, seed)


def _is_published(path: Path, md5: str) -> bool:
    from torchvision.datasets.utils import check_integrity

    return bool(check_integrity(str(path), md5))


CLASSES = [str(sign) for sign in range(43)]


def gtsrb(source: Gtsrb, root: Path, seed: int) -> Rows:
    """The German traffic signs (Stallkamp et al. 2012): each whole picture resized to a square, in colour."""
    torchvision()
    from torchvision import datasets

    place = root / source.download_dir
    base = place / "gtsrb"
    needed = [base / "GTSRB" / "Training", base / "GTSRB" / "Final_Test" / "Images", base / "GT-final_test.csv"]

    def download() -> None:
        for split in ("train", "test"):
            datasets.GTSRB(str(place), split=split, download=True)

    missing = [path for path in needed if not path.exists()]
    accepted = "the folders hold <class>/*.ppm and *.ppm, as in the published archives"
    fetch(source, root, missing, download, accepted)
    samples = {split: _listed(place, split) for split in ("train", "test")}
    chosen = choose({split: len(pictures) for split, pictures in samples.items()}, source.rows, seed)
    parts = {}
    for split, pictures in samples.items():
        taken = [pictures[number] for number in chosen[split]]
        labels = np.array([label for _, label in taken], np.int64)
        parts[split] = (read_pictures([path for path, _ in taken], source.size), labels)
    return joined(parts, CLASSES)


def _listed(place: Path, split: str) -> list[tuple[Path, int]]:
    """The pictures of a split with their classes, as torchvision finds them; a broken one is named later."""
    from torchvision import datasets

    base = place / "gtsrb"
    try:
        # of folders torchvision counts those that are there, which are the classes only if all are
        pictures = [
            (Path(path), int(Path(path).parent.name) if split == "train" else label)
            for path, label in datasets.GTSRB(str(place), split=split)._samples
        ]
    except Exception as error:  # of many types: torchvision trusts the files
        raise UserError(
            f"{base} is not laid out as GTSRB is ({error}); put there GTSRB/Training/<class>/*.ppm, GTSRB/Final_Test/"
            "Images/*.ppm and GT-final_test.csv as published."
        ) from error
    for path, label in pictures:
        if not 0 <= label < len(CLASSES):
            raise UserError(f"{path} has the class {label}, and there are {len(CLASSES)}; replace the files.")
    return pictures
