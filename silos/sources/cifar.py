"""The sources `cifar10` and `cifar100`, read by torchvision."""

from pathlib import Path
from typing import Any

import numpy as np

from silos.errors import UserError
from silos.rows import Rows
from silos.sources.download import fetch, together
from silos.sources.source_params import Cifar
from silos.sources.vision import torchvision


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
