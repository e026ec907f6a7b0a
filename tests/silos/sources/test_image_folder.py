"""Folders of pictures, domain/class/file, in a fixed order; a broken one is named."""

import io
import os
import warnings

import numpy as np
import pytest
from PIL import Image

from silos.errors import UserError
from silos.sources.image_folder import read_pictures
from silos.sources.source_params import Folder
from silos.sources.source_registry import load_source

PICTURES = {
    "sketch/dog/b.png": 1,
    "art/dog/2.PNG": 2,
    "art/dog/10.png": 3,
    "art/cat/x.png": 4,
    "sketch/house/ü ß.png": 5,
}


@pytest.fixture
def pacs(tmp_path):
    """Pictures whose red tells their number."""
    for name, red in PICTURES.items():
        path = tmp_path / "pacs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (17, 9), (red, 100, 200)).save(path, "PNG")
    return tmp_path / "pacs"


def read(root, size=4):
    return load_source(Folder(kind="folder", path="pacs", size=size), root, 0)


def test_pictures_are_rows_in_the_order_of_their_names(tmp_path, pacs):
    (pacs / "README.txt").write_text("no domain")
    (pacs / "art" / "dog" / "notes.txt").write_text("no picture")
    (pacs / "art" / "dog" / ".hidden.png").write_text("no picture")
    (pacs / ".git" / "objects").mkdir(parents=True)
    rows = read(tmp_path)
    assert rows.x.shape == (5, 4, 4, 3)
    assert rows.x.dtype == np.uint8
    assert rows.x[:, 0, 0, 0].tolist() == [4, 3, 2, 1, 5]
    assert rows.domain.tolist() == ["art"] * 3 + ["sketch"] * 2
    assert rows.classes == ["cat", "dog", "house"]
    assert rows.y.tolist() == [0, 1, 1, 1, 2]
    assert rows.split is None


def test_grey_and_transparent_pictures_become_colour(tmp_path, pacs):
    Image.new("L", (5, 5), 7).save(pacs / "art" / "cat" / "a.png")
    Image.new("RGBA", (5, 5), (8, 9, 10, 255)).save(pacs / "art" / "cat" / "b.webp", lossless=True)
    assert read(tmp_path).x[:2, 0, 0].tolist() == [[7, 7, 7], [8, 9, 10]]


@pytest.mark.parametrize("damage", [lambda data: data[:45], lambda _: b"", lambda data: b"GIF89a" + data])
def test_a_broken_picture_is_named(tmp_path, pacs, damage):
    path = pacs / "art" / "dog" / "10.png"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"got a file that cannot be read as an image \(") as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_or_empty_folder_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"pacs: got no such folder \(looked for"):
        read(tmp_path)
    (tmp_path / "pacs").mkdir()
    (tmp_path / "pacs" / "x.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"pacs: got no images, expected domain/class/file or class/file \(\.bmp"):
        read(tmp_path)


def draw(folder, *names):
    """Pictures whose red tells their place in `names`."""
    for red, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (red, 100, 200)).save(folder / name)


def test_pictures_without_a_domain_have_classes_only(tmp_path):
    draw(tmp_path / "pacs", "dog/a.png", "cat/b.png", "cat/a.png", "test/a.png")
    rows = read(tmp_path)
    assert rows.x[:, 0, 0, 0].tolist() == [2, 1, 0, 3]
    assert rows.classes == ["cat", "dog", "test"]
    assert (rows.domain, rows.split) == (None, None)


def test_folders_that_are_called_as_splits_are_splits(tmp_path):
    draw(tmp_path / "pacs", "train/cat/a.png", "VAL/cat/a.png", "test/dog/a.png")
    rows = read(tmp_path)
    assert rows.split.tolist() == ["validation", "test", "train"]
    assert rows.domain is None
    draw(tmp_path / "other" / "pacs", "train/cat/a.png", "val/cat/a.png")
    assert read(tmp_path / "other").split.tolist() == ["train", "test"]
    draw(tmp_path / "pacs", "art/cat/a.png")
    assert read(tmp_path).domain.tolist() == ["VAL", "art", "test", "train"]


def test_pictures_at_two_depths_are_refused(tmp_path, pacs):
    draw(pacs, "art/over.png")
    with pytest.raises(UserError, match=r"as class/file \(art/over\.png\) and as domain/class/file \(art/cat/x\.png\)"):
        read(tmp_path)


def test_the_range_of_deep_pictures_is_given_in_params(tmp_path, pacs):
    Image.fromarray(np.full((5, 5), 0.25, np.float32)).save(pacs / "art" / "cat" / "a.tif")
    given = Folder(kind="folder", path="pacs", size=4, range=[-1, 1])
    assert load_source(given, tmp_path, 0).x[0, 0, 0].tolist() == [159] * 3
    with pytest.raises(ValueError, match=r"range: got \[1, 1\], expected two increasing numbers"):
        Folder(kind="folder", path="pacs", size=4, range=[1, 1])


@pytest.mark.parametrize("form", ["TIFF", "PNG", "WEBP"])
def test_a_picture_with_any_byte_wrong_is_read_or_named_without_a_warning(tmp_path, pacs, form, capfd):
    content = io.BytesIO()
    Image.new("RGB", (17, 9), (5, 6, 7)).save(content, form)
    path = pacs / "art" / "dog" / "10.png"
    said = []
    for at in range(min(150, len(content.getvalue()))):
        damaged = bytearray(content.getvalue())
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                read(tmp_path)
            except UserError as error:
                said.append(str(error))
    assert said
    assert all("got a file that cannot be read as an image (" in sentence for sentence in said)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("place", ["{}/cat", "art/{}"])
def test_a_folder_whose_name_is_no_text_is_a_sentence(tmp_path, pacs, place):
    folder = pacs / place.format(os.fsdecode(b"\xff"))
    folder.mkdir(parents=True)
    Image.new("L", (5, 5), 7).save(folder / "a.png")
    with pytest.raises(UserError, match=r"pacs: the folder '\\udcff': got an incomplete character, expected text"):
        read(tmp_path)


def test_pictures_that_no_memory_holds_are_told_before_any_is_read(tmp_path):
    with pytest.raises(
        UserError, match=r"data\.source\.size: got 10,000 for 1,000,000 images in colour, which needs 300\.0 TB of"
    ):
        read_pictures([tmp_path / "one.png"] * 10**6, 10_000)
