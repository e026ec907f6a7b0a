"""The source `gtsrb`, found by torchvision."""

from pathlib import Path

import numpy as np

from silos.errors import UserError
from silos.rows import Rows
from silos.sources.download import choose, fetch, joined
from silos.sources.picture_files import read_pictures
from silos.sources.source_params import Gtsrb
from silos.sources.vision import torchvision

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
