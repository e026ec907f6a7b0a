"""The sets read through torchvision, each on small files in its own format, and a sentence where they are not there."""

import gzip
import hashlib
import io
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter

from silos.errors import UserError
from silos.sources.source_params import Source
from silos.sources.source_registry import load_source
from silos.sources.torchvision_datasets import torchvision

MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def read(root: Path, seed: int = 0, **source: object):
    return load_source(TypeAdapter(Source).validate_python({"download": False, **source}), root, seed)


def idx(array: np.ndarray) -> bytes:
    """An array of bytes as the idx format has it."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def arrays(n: int, classes: int, first: int = 0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 28, 28)).astype(np.uint8), np.arange(n) % classes + first


def put_mnist(folder: Path, end: str = "", name: str = "MNIST") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    raw = folder / name / "raw"
    raw.mkdir(parents=True)
    parts = {"train": arrays(30, 10), "test": arrays(12, 10, seed=1)}
    for file, array in zip(MNIST, [*parts["train"], *parts["test"]], strict=True):
        (raw / f"{file}{end}").write_bytes(PACKERS[end](idx(array)))
    return parts


# --- idx files ---


@pytest.mark.parametrize(("kind", "name"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
@pytest.mark.parametrize("end", PACKERS)
def test_idx_files_are_read_packed_or_not(tmp_path, kind, name, end):
    parts = put_mnist(tmp_path / "downloads", end, name)
    rows = read(tmp_path, kind=kind)
    assert rows.x.shape == (42, 28, 28)
    assert rows.x.dtype == np.uint8
    assert rows.y.dtype == np.int64
    np.testing.assert_array_equal(rows.x, np.concatenate([parts["train"][0], parts["test"][0]]))
    np.testing.assert_array_equal(rows.y, np.concatenate([parts["train"][1], parts["test"][1]]))
    assert rows.split.tolist() == ["train"] * 30 + ["test"] * 12
    assert rows.classes[3] == ("3" if kind == "mnist" else "Dress")
    np.testing.assert_array_equal(read(tmp_path, kind=kind).x, rows.x)
    raw = tmp_path / "downloads" / name / "raw"
    assert {path.name for path in raw.iterdir()} == {*MNIST, *(f"{file}{end}" for file in MNIST)}


@pytest.mark.parametrize(
    ("split", "classes", "names"),
    [
        ("byclass", 62, {0: "0", 10: "A", 35: "Z", 36: "a", 61: "z"}),
        ("bymerge", 47, {9: "9", 10: "A", 36: "a", 46: "t"}),
        ("balanced", 47, {9: "9", 46: "t"}),
        ("letters", 26, {0: "a", 25: "z"}),
        ("digits", 10, {9: "9"}),
        ("mnist", 10, {0: "0"}),
    ],
)
@pytest.mark.parametrize("form", ["", ".gz", "gzip/", "gzip.zip"])
def test_emnist_is_turned_upright_with_its_classes_named(tmp_path, split, classes, names, form):
    raw = tmp_path / "mine" / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    files, stored = {}, {}
    for seed, part in enumerate(("train", "test")):
        x, y = arrays(70, classes, int(split == "letters"), seed)
        stored[part] = (x, y)
        files[f"emnist-{split}-{part}-images-idx3-ubyte"] = idx(x)
        files[f"emnist-{split}-{part}-labels-idx1-ubyte"] = idx(y)
    if form == "gzip.zip":
        with zipfile.ZipFile(raw / "gzip.zip", "w") as archive:
            for file, data in files.items():
                archive.writestr(f"gzip/{file}.gz", gzip.compress(data))
    else:
        (raw / "gzip").mkdir()
        for file, data in files.items():
            place = raw / "gzip" / f"{file}.gz" if form == "gzip/" else raw / f"{file}{form}"
            place.write_bytes(data if form == "" else gzip.compress(data))
    rows = read(tmp_path, kind="emnist", split=split, download_dir="mine")
    np.testing.assert_array_equal(rows.x[:70], np.swapaxes(stored["train"][0], 1, 2))
    np.testing.assert_array_equal(rows.x[70:], np.swapaxes(stored["test"][0], 1, 2))
    np.testing.assert_array_equal(rows.y[:70], stored["train"][1] - int(split == "letters"))
    assert len(rows.classes) == classes
    assert {code: rows.classes[code] for code in names} == names


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-1], "got a file that is no valid idx file"),
        (lambda data: data + b"x", "got a file that is no valid idx file"),
        (lambda _: b"", "got a file that is no valid idx file"),
        (lambda _: b"<html>not found</html>", "got a file that is no valid idx file"),
        (lambda data: bytes([0, 0, 13]) + data[3:], "got a file that is no valid idx file"),
    ],
)
@pytest.mark.parametrize("file", MNIST)
def test_a_corrupt_idx_file_is_named(tmp_path, file, damage, said):
    put_mnist(tmp_path / "downloads")
    path = tmp_path / "downloads" / "MNIST" / "raw" / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=rf"{file}: {said}") as caught:
        read(tmp_path, kind="mnist")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("end", [".gz", ".xz"])
def test_a_corrupt_packed_file_is_named_and_leaves_nothing_behind(tmp_path, end):
    put_mnist(tmp_path / "downloads", end)
    path = tmp_path / "downloads" / "MNIST" / "raw" / f"{MNIST[0]}{end}"
    whole = path.read_bytes()
    for damaged in (whole[:-40], whole[:200] + bytes(100) + whole[300:], whole[:10] + b"\xff" * 50 + whole[60:]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{path.name}: cannot be unpacked"):
            read(tmp_path, kind="mnist")
        assert not [left.name for left in path.parent.iterdir() if left.suffix == ".tmp" or left.name == MNIST[0]]


def test_a_zip_that_cannot_be_opened_is_named(tmp_path):
    raw = tmp_path / "downloads" / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    with zipfile.ZipFile(raw / "gzip.zip", "w") as archive:
        archive.writestr("gzip/emnist-digits-train-images-idx3-ubyte.gz", gzip.compress(b"x"))
    whole = (raw / "gzip.zip").read_bytes()
    for at, value in ((8, 93), (6, 1)):  # an unknown compression; a password
        local, central = whole.find(b"PK\x03\x04") + at, whole.find(b"PK\x01\x02") + at + 2
        damaged = bytearray(whole)
        damaged[local] = damaged[central] = value
        (raw / "gzip.zip").write_bytes(damaged)
        with pytest.raises(UserError, match=r"gzip\.zip: cannot be unpacked \("):
            read(tmp_path, kind="emnist", split="digits")


def test_files_that_do_not_belong_together_are_named(tmp_path):
    put_mnist(tmp_path / "downloads")
    raw = tmp_path / "downloads" / "MNIST" / "raw"
    (raw / MNIST[1]).write_bytes(idx(np.zeros(7)))
    with pytest.raises(UserError, match="train-images-idx3-ubyte: got 30 images and in train-labels-idx1-ubyte 7"):
        read(tmp_path, kind="mnist")
    (raw / MNIST[1]).write_bytes(idx(np.arange(30)))
    with pytest.raises(UserError, match="train-labels-idx1-ubyte: got the label 10 at row 10, expected one of 10"):
        read(tmp_path, kind="mnist")


@pytest.mark.parametrize("download", [False, True])
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"kind": "mnist"}, r"expected MNIST/raw/train-images-idx3-ubyte, .*\.gz or \.xz"),
        ({"kind": "fashion_mnist"}, r"FashionMNIST/raw/t10k-labels-idx1-ubyte"),
        ({"kind": "emnist", "split": "letters"}, r"EMNIST/raw/emnist-letters-train-images-idx3-ubyte.*gzip\.zip"),
        ({"kind": "cifar10"}, r"cifar-10-batches-py/data_batch_1, .*or cifar-10-python\.tar\.gz"),
        ({"kind": "cifar100"}, r"cifar-100-python/train, .*cifar-100-python\.tar\.gz"),
        ({"kind": "gtsrb"}, r"gtsrb/GTSRB/Training, gtsrb/GTSRB/Final_Test/Images, gtsrb/GT-final_test.csv"),
    ],
)
def test_what_is_not_there_and_cannot_be_had_is_said_with_its_place(tmp_path, monkeypatch, source, said, download):
    torchvision()
    from torchvision import datasets

    nowhere = "http://127.0.0.1:9/"
    for cls in (datasets.MNIST, datasets.FashionMNIST):
        monkeypatch.setattr(cls, "mirrors", [nowhere])
    for cls in (datasets.EMNIST, datasets.CIFAR10, datasets.CIFAR100):
        monkeypatch.setattr(cls, "url", f"{nowhere}{cls.__name__}.zip")

    def refused(*_: object, **__: object) -> None:
        raise OSError("connection refused")

    monkeypatch.setattr("torchvision.datasets.gtsrb.download_and_extract_archive", refused)
    why = "the download failed: .+" if download else "data.source.download is false"
    with pytest.raises(
        UserError, match=rf"{source['kind']}: got no files in {tmp_path}/downloads \({why}\), .*{said}"
    ) as caught:
        read(tmp_path, download=download, **source)
    assert "\n" not in str(caught.value)


# --- some rows only ---


def test_some_rows_are_drawn_at_random_and_stay_in_order(tmp_path):
    parts = put_mnist(tmp_path / "downloads")
    limited = read(tmp_path, kind="mnist", rows={"train": 12, "test": 5})
    assert limited.split.tolist() == ["train"] * 12 + ["test"] * 5
    places = [int((parts["train"][0] == image).all(axis=(1, 2)).argmax()) for image in limited.x[:12]]
    assert places == sorted(set(places))
    assert places != list(range(12))
    np.testing.assert_array_equal(limited.y[:12], parts["train"][1][places])
    other = read(tmp_path, seed=1, kind="mnist", rows={"train": 12, "test": 5})
    assert not np.array_equal(other.x, limited.x)
    assert set(read(tmp_path, kind="mnist", rows={"train": 12}).split) == {"train", "test"}


def test_without_test_rows_the_source_has_no_split_of_its_own(tmp_path):
    put_mnist(tmp_path / "downloads")
    assert read(tmp_path, kind="mnist", rows={"test": 0}).split is None


def test_more_rows_than_there_are_is_a_sentence(tmp_path):
    put_mnist(tmp_path / "downloads")
    with pytest.raises(UserError, match=r"data\.source\.rows\.train: got 31, expected at most the 30 train rows of"):
        read(tmp_path, kind="mnist", rows={"train": 31})


# --- cifar ---


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Writes small CIFAR pickles, and makes theirs the published checksums."""
    torchvision()
    from torchvision import datasets

    def build(kind: str) -> tuple[Path, np.ndarray, np.ndarray]:
        cls = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[kind]
        folder = tmp_path / "downloads" / cls.base_folder
        folder.mkdir(parents=True)
        rng = np.random.default_rng(0)
        images, labels, lists = [], [], {"train_list": [], "test_list": []}

        def put(name: str, held: dict) -> str:
            data = pickle.dumps(held)
            (folder / name).write_bytes(data)
            return hashlib.md5(data).hexdigest()

        for which, listed in (("train_list", cls.train_list), ("test_list", cls.test_list)):
            for name, _ in listed:
                data = rng.integers(0, 256, (4, 3072)).astype(np.uint8)
                coarse_or_not = "labels" if kind == "cifar10" else "fine_labels"
                codes = rng.integers(0, 10, 4).tolist()
                md5 = put(name, {"data": data, coarse_or_not: codes, "coarse_labels": [0] * 4})
                images.append(data)
                labels += codes
                lists[which].append([name, md5])
        names = [f"class {code}" for code in range(10 if kind == "cifar10" else 100)]
        meta = {**cls.meta, "md5": put(cls.meta["filename"], {cls.meta["key"]: names})}
        for which, listed in lists.items():
            monkeypatch.setattr(cls, which, listed)
        monkeypatch.setattr(cls, "meta", meta)
        return folder, np.concatenate(images).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels)

    return build


@pytest.mark.parametrize(("kind", "train", "classes"), [("cifar10", 20, 10), ("cifar100", 4, 100)])
def test_cifar_is_read_in_colour_with_fine_labels(tmp_path, cifar, kind, train, classes):
    _, images, labels = cifar(kind)
    rows = read(tmp_path, kind=kind)
    assert rows.x.shape == (train + 4, 32, 32, 3)
    np.testing.assert_array_equal(rows.x, images)
    np.testing.assert_array_equal(rows.y, labels)
    assert rows.split.tolist() == ["train"] * train + ["test"] * 4
    assert rows.classes == [f"class {code}" for code in range(classes)]


def test_cifar_is_unpacked_from_its_archive_without_a_download(tmp_path, cifar, monkeypatch):
    from torchvision import datasets

    folder, images, _ = cifar("cifar10")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(folder, folder.name)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    (tmp_path / "downloads" / "cifar-10-python.tar.gz").write_bytes(archive.getvalue())
    monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", hashlib.md5(archive.getvalue()).hexdigest())
    np.testing.assert_array_equal(read(tmp_path, kind="cifar10").x, images)


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_pickle_that_is_not_the_published_one_is_not_opened(tmp_path, cifar, name):
    folder, _, _ = cifar("cifar10")
    (folder / name).write_bytes(b"cos\nsystem\n(S'touch harm'\ntR.")
    with pytest.raises(UserError, match=rf"{name}: got a file that is not the published one"):
        read(tmp_path, kind="cifar10")
    assert not Path("harm").exists()


# --- GTSRB ---


@pytest.fixture
def signs(tmp_path):
    """Small traffic signs in the layout of the published archives; a picture's colour tells its number."""
    base = tmp_path / "downloads" / "gtsrb"
    lines = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    number = 0

    def put(path: Path, size: tuple[int, int]) -> None:
        nonlocal number
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (number, 2 * number, 200)).save(path)
        number += 1

    for label in (0, 14, 42):
        for at in range(3):
            put(base / "GTSRB" / "Training" / f"{label:05d}" / f"{at:05d}_00000.ppm", (20 + at, 31))
    for at, label in enumerate((42, 0)):
        put(base / "GTSRB" / "Final_Test" / "Images" / f"{at:05d}.ppm", (40, 40))
        lines.append(f"{at:05d}.ppm;40;40;5;5;30;30;{label}")
    (base / "GT-final_test.csv").write_text("\n".join(lines) + "\n")
    return base


@pytest.mark.usefixtures("signs")
def test_signs_are_resized_with_their_classes(tmp_path):
    rows = read(tmp_path, kind="gtsrb")
    assert rows.x.shape == (11, 32, 32, 3)
    assert rows.y.tolist() == [0, 0, 0, 14, 14, 14, 42, 42, 42, 42, 0]
    assert rows.split.tolist() == ["train"] * 9 + ["test"] * 2
    assert rows.classes == [str(sign) for sign in range(43)]
    np.testing.assert_array_equal(rows.x[:, 5, 7], [(number, 2 * number, 200) for number in range(11)])
    few = read(tmp_path, kind="gtsrb", size=8, rows={"train": 4, "test": 1})
    assert few.x.shape == (5, 8, 8, 3)


@pytest.mark.parametrize("content", [b"", b"P6 20 31 255\n12", b"no picture"])
def test_a_broken_sign_is_named(tmp_path, signs, content):
    path = signs / "GTSRB" / "Training" / "00014" / "00001_00000.ppm"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"got a file that cannot be read as an image \(") as caught:
        read(tmp_path, kind="gtsrb")
    assert "\n" not in str(caught.value)


def test_a_strange_list_of_signs_is_a_sentence(tmp_path, signs):
    (signs / "GT-final_test.csv").write_text("a;b\n1;2\n")
    with pytest.raises(UserError, match=r"gtsrb: got another layout than GTSRB's \('Filename'\), expected"):
        read(tmp_path, kind="gtsrb")
    (signs / "GT-final_test.csv").write_text("Filename;ClassId\n00000.ppm;43\n")
    with pytest.raises(UserError, match=r"00000\.ppm: got the class 43, expected one of 43 classes"):
        read(tmp_path, kind="gtsrb")
    (signs / "GT-final_test.csv").write_text("Filename;ClassId\nnone.ppm;3\n")
    with pytest.raises(UserError, match=r"none\.ppm is missing"):
        read(tmp_path, kind="gtsrb")
