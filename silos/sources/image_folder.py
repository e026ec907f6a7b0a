"""The source `folder`: picture files as domain/class/file, the layout of PACS, or as class/file."""

import logging
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from silos.dataset import Rows
from silos.errors import UserError
from silos.io.memory_and_disk import must_fit
from silos.schema import find_invalid_name
from silos.sources.source_checks import SPLIT_WORDS
from silos.sources.source_params import Folder

if TYPE_CHECKING:
    from PIL.Image import Image


_FEW_SHADES = 16  # of 256, below which pictures of more than 8 bits lose their content
_SET_RANGE = "et data.source.range to [lowest, highest], the values that become black and white"

_PILLOW_MOST = 65535.0  # to which Pillow spreads the values of a PGM file

# tags of TIFF
_SUBFILE, _BITS, _PHOTOMETRIC, _SAMPLE_FORMAT = 254, 258, 262, 339


def read_pictures(paths: Sequence[Path], size: int, limits: tuple[float, float] | None = None) -> np.ndarray:
    """Read picture files as squares in colour.

    Each picture is rotated as its EXIF orientation says, and laid on white where it is transparent. Grey pictures of
    more than 8 bits are scaled linearly from their range to 0 to 255.

    Args:
        paths: One file for each picture.
        size: The pixels of a side, to which each picture is resized.
        limits: The values of pictures of more than 8 bits that become 0 and 255. If not given, the range of the
            picture's integer type is used.

    Returns:
        The pictures, (n, size, size, 3) uint8.

    Raises:
        UserError: If a file is missing or is not one picture, if its values have no known range or lie outside of
            `limits`, or if scaling leaves almost none of the 256 shades.
    """
    from PIL import Image

    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # it would repeat the error below
    must_fit(
        len(paths) * size * size * 3,
        f"params.yaml: data.source.size: got {size:,} for {len(paths):,} images in colour",
        "Lower it",
    )
    x = np.empty((len(paths), size, size, 3), np.uint8)
    shades = _Shades()
    for index, path in enumerate(paths):
        try:
            with warnings.catch_warnings(), Image.open(path) as picture:
                warnings.simplefilter("ignore")  # about large pictures, and odd ones that can be read
                _check_single(picture, path)
                colour = _in_colour(picture, path, limits, shades)
                x[index] = np.asarray(colour.resize((size, size), Image.Resampling.BILINEAR))
        except UserError:
            raise
        except FileNotFoundError:
            raise UserError(f"{path} is missing. Restore the image.") from None
        except Exception as error:  # of many types: each format has its own reader
            reason = " ".join(str(error).replace(repr(str(path)), "it").split())
            raise UserError(
                f"{path}: got a file that cannot be read as an image ({reason}), expected an image. "
                "Replace or delete it."
            ) from error
    shades.check()
    return x


class _Shades:
    """The shades, 0 to 255, that pictures of more than 8 bits take after scaling."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.low, self.high = np.inf, -np.inf

    def add(self, path: Path, levels: np.ndarray) -> None:
        """Add the shades of one picture."""
        self.path = self.path or path
        self.low, self.high = min(self.low, levels.min()), max(self.high, levels.max())

    def check(self) -> None:
        """Raise a UserError if the pictures differ by so few shades that they lose their content."""
        if 0 < self.high - self.low < _FEW_SHADES:
            span = (self.high - self.low) / 255
            raise UserError(
                f"{self.path}: got images of more than 8 bits with values in {span:.1%} of the range of their "
                f"type, which leaves {int(255 * span) + 1} of 256 shades, expected more than {_FEW_SHADES}. "
                f"Stretch the values before you save the images, or, if these are grey, s{_SET_RANGE}."
            )


def _check_single(picture: "Image", path: Path) -> None:
    """Raise a UserError if a file holds several pictures. Previews do not count."""
    frames = getattr(picture, "n_frames", 1)
    if picture.format == "MPO":  # a camera's JPEG, with previews and depth maps behind the photograph
        return
    if picture.format == "TIFF":
        count = frames
        for index in range(1, count):
            picture.seek(index)
            frames -= bool(_tags(picture).get(_SUBFILE, 0) & 0b101)  # a reduced copy, or a mask
        picture.seek(0)
    if frames > 1:
        raise UserError(f"{path}: got {frames} images in one file, expected one. Save each as a file of its own.")


def _in_colour(picture: "Image", path: Path, limits: tuple[float, float] | None, shades: _Shades) -> "Image":
    """Rotate a picture upright and convert it to RGB of 8 bits."""
    from PIL import Image, ImageOps

    maxval = _maxval(picture)
    halved = ";16" in str(getattr(picture, "tile", ""))  # Pillow reads colours of 16 bits by their upper 8
    ImageOps.exif_transpose(picture, in_place=True)
    if picture.mode[0] in "IF":
        levels = _scaled(picture, path, limits, maxval)
        if limits is None:
            shades.add(path, levels)
        return Image.fromarray(np.floor(levels + 0.5).astype(np.uint8)).convert("RGB")
    if halved:
        shades.add(path, np.asarray(picture.convert("RGB")).astype(float))
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return picture.convert("RGB")


def _maxval(picture: "Image") -> int | None:
    """Return the largest value that a PGM file declares if Pillow spreads its values over 0 to 65535; else None."""
    tiles: Any = getattr(picture, "tile", [])
    if not tiles or picture.format != "PPM" or picture.mode != "I" or tiles[0][0] not in ("ppm", "ppm_plain"):
        return None
    return int(tiles[0][3][-1])


def _scaled(picture: "Image", path: Path, limits: tuple[float, float] | None, maxval: int | None = None) -> np.ndarray:
    """Scale a picture of one channel of integers or floats to 0 to 255: (height, width) float64.

    `limits` are values as the file has them, also if Pillow spreads those up to `maxval`.
    """
    low, high = limits or _type_range(picture, path)
    values, tags = np.asarray(picture), _tags(picture)
    if tags.get(_BITS) == (32,) and tags.get(_SAMPLE_FORMAT, (1,)) == (1,):
        values = values.view(np.uint32)  # Pillow has no unsigned type of 32 bits
    values = values.astype(float)
    if limits is not None and maxval is not None:
        values = np.round(values * (maxval / _PILLOW_MOST))
    outside = ~((values >= low) & (values <= high))
    if outside.any():
        raise UserError(
            f"{path}: got the value {values[outside][0]:g}, expected {low:g} to {high:g}. Widen "
            "data.source.range, or correct the image."
        )
    levels = (values - low) * (255 / (high - low))
    return 255 - levels if tags.get(_PHOTOMETRIC) == 0 else levels  # 0: the lowest value is white


def _type_range(picture: "Image", path: Path) -> tuple[float, float]:
    """Return the least and the largest value of the picture's integer type."""
    if picture.mode == "F" or (picture.mode == "I" and picture.format not in ("PPM", "TIFF")):
        kind = "floating-point numbers" if picture.mode == "F" else "integers of 32 bits"
        raise UserError(
            f"{path}: got an image of {kind}, expected integers of a known range. S{_SET_RANGE}, or save the "
            "images as PNG."
        )
    tags = _tags(picture)  # of TIFF only: PNG and PPM are read as 16 bits
    bits = tags.get(_BITS, (16,))[0]
    if tags.get(_SAMPLE_FORMAT, (1,))[0] == 2:
        return -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1
    return 0.0, 2.0**bits - 1


def _tags(picture: "Image") -> dict[int, Any]:
    return getattr(picture, "tag_v2", {})


SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


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
            f"{source.path}: got no such folder (looked for {base}), expected one with domain/class/file or "
            "class/file. Correct data.source.path in params.yaml, which is relative to the folder of "
            "params.yaml."
        )
    pictures = list_pictures(source.path, base)
    domains, labels, paths = zip(*pictures, strict=True)
    for named in (set(domains), set(labels)):
        fault = find_invalid_name(np.array(sorted(named)))
        if fault:
            raise UserError(f"{source.path}: the folder {sorted(named)[fault[0]]!r}: {fault[1]}.")
    classes = sorted(set(labels))
    split = np.array([SPLIT_WORDS[domain.lower()] for domain in domains]) if are_splits(domains) else None
    if split is not None and "test" not in split:
        split[split == "validation"] = "test"  # as in ImageNet, where methods are compared on val
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
    nested = [
        (domain.name, label.name, path)
        for domain in _folders(base)
        for label in _folders(domain)
        for path in _pictures(label)
    ]
    if flat and nested:
        raise UserError(
            f"{name}: got images as class/file ({_first_path(base, flat)}) and as domain/class/file ("
            f"{_first_path(base, nested)}), expected one layout. Move one of them."
        )
    if not flat and not nested:
        raise UserError(
            f"{name}: got no images, expected domain/class/file or class/file ({', '.join(SUFFIXES)}). Arrange "
            "the files so."
        )
    return flat or nested


def are_splits(domains: Collection[str]) -> bool:
    """Return whether the folders above the classes are the splits of one set instead of domains."""
    splits = {SPLIT_WORDS.get(domain.lower()) for domain in domains}
    return len(splits) > 1 and "train" in splits and None not in splits


def _first_path(base: Path, pictures: list[tuple[str, str, Path]]) -> str:
    return str(pictures[0][2].relative_to(base))


def _folders(base: Path) -> list[Path]:
    folders = [path for path in base.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return sorted(folders, key=lambda path: path.name)


def _pictures(folder: Path) -> list[Path]:
    files = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
    return sorted(files, key=lambda path: path.name)
