"""The sources `cifar10`, `cifar100` and `gtsrb`, read by torchvision, which is imported only when it is used.

The package index pairs its torchvision with torch's CUDA build. With the CPU build, its library does not load, and the
import fails because two operators are not registered. Declaring them makes everything work that does not call them
(datasets, transforms, classification networks, most of `ops`).
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from silos.dataset import Rows
from silos.errors import UserError
from silos.sources.download import choose_rows, fetch, join_splits, limited_rows
from silos.sources.image_folder import read_pictures
from silos.sources.source_params import Cifar, Gtsrb

_declared: list[Any] = []  # declarations last as long as the library object


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


CLASSES = [str(sign) for sign in range(43)]


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
    return join_splits(parts, CLASSES)


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
        if not 0 <= label < len(CLASSES):
            raise UserError(
                f"{path}: got the class {label}, expected one of {len(CLASSES)} classes. Replace the files."
            )
    return pictures
