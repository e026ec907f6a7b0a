"""Pictures of any depth, mode and orientation are read as a viewer shows them, or refused with the file's name."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from silos.errors import UserError
from silos.sources.image_folder import read_pictures

GREYS = np.arange(256, dtype=np.uint8).reshape(16, 16)
RAMP = np.round(np.linspace(0, 1, 256).reshape(16, 16) * 65535).astype(np.uint16)


def encode(picture: Image.Image, form: str, **options) -> bytes:
    content = io.BytesIO()
    picture.save(content, form, **options)
    return content.getvalue()


def tiff(values: np.ndarray, bits: int, sample_format: int, photometric: int = 1) -> bytes:
    """A TIFF of one channel and one strip, with the tags that Pillow does not write."""
    data = values.tobytes()
    height, width = values.shape
    tags = [(256, width), (257, height), (258, bits), (259, 1), (262, photometric), (273, 8), (277, 1)]
    tags += [(278, height), (279, len(data)), (339, sample_format)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = b"II*\0" + struct.pack("<I", 8 + len(data))
    return head + data + struct.pack("<H", len(tags)) + entries + bytes(4)


@pytest.fixture
def read(tmp_path):
    """Read one or more files of these contents, 16 x 16."""

    def build(*contents: bytes, name: str = "a.png", **options) -> np.ndarray:
        paths = [tmp_path / f"{at}-{name}" for at in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        return read_pictures(paths, 16, **options)

    return build


DEEP = {
    "PNG of 16 bits": encode(Image.fromarray(RAMP), "PNG"),
    "TIFF of 16 bits": encode(Image.fromarray(RAMP), "TIFF"),
    "TIFF of 16 bits, compressed": encode(Image.fromarray(RAMP), "TIFF", compression="tiff_lzw"),
    "TIFF of 16 bits, big-endian": encode(Image.fromarray(RAMP.astype(">u2")), "TIFF"),
    "TIFF of 16 bits, signed": tiff((RAMP.astype(np.int32) - 32768).astype(np.int16), 16, 2),
    "TIFF of 16 bits, white is 0": tiff(65535 - RAMP, 16, 1, photometric=0),
    "TIFF of 32 bits": tiff(RAMP.astype(np.uint32) * 65537, 32, 1),
    "TIFF of 32 bits, signed": tiff((RAMP.astype(np.int64) * 65537 - 2**31).astype(np.int32), 32, 2),
    "PGM of 16 bits": encode(Image.fromarray(RAMP), "PPM"),
    "PGM of 12 bits": b"P5 16 16 4095\n" + np.round(RAMP / 65535 * 4095).astype(">u2").tobytes(),
}


@pytest.mark.parametrize("content", DEEP.values(), ids=DEEP)
def test_integers_of_more_than_8_bits_are_scaled_by_the_range_of_their_type(read, content):
    np.testing.assert_array_equal(read(content)[0], np.dstack([GREYS] * 3))


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_colours_of_16_bits_keep_their_shades(read, mode):
    channels = [GREYS, GREYS.T, 255 - GREYS] + [np.full_like(GREYS, 255)] * (mode == "RGBA")
    content = encode(Image.fromarray(np.dstack(channels)), "PNG")
    deep = _as_16_bits(content, len(channels))
    np.testing.assert_array_equal(read(deep), read(content))


def _as_16_bits(content: bytes, channels: int) -> bytes:
    """The same picture as a PNG of 16 bits a channel, which Pillow does not write."""
    import zlib

    pixels = np.asarray(Image.open(io.BytesIO(content))).astype(">u2") * 257
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in pixels)
    head = struct.pack(">IIBBBBB", 16, 16, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


FLOATS = encode(Image.fromarray((GREYS / 255).astype(np.float32)), "TIFF")


def test_pictures_of_floats_have_no_range_but_the_one_that_is_given(read):
    with pytest.raises(UserError, match=r"0-a\.tif: got an image of floating-point numbers, expected integers of a"):
        read(FLOATS, name="a.tif")
    np.testing.assert_array_equal(read(FLOATS, limits=(0.0, 1.0))[0, ..., 1], GREYS)


@pytest.mark.parametrize("worst", [1.5, -0.1, np.nan, np.inf])
def test_values_outside_of_the_range_that_is_given_are_refused(read, worst):
    values = (GREYS / 255).astype(np.float32)
    values[3, 4] = worst
    with pytest.raises(UserError, match=rf"0-a\.tif: got the value {worst:g}, expected 0 to 1\. Widen"):
        read(encode(Image.fromarray(values), "TIFF"), name="a.tif", limits=(0.0, 1.0))


TWELVE = np.round(RAMP / 65535 * 4095).astype(np.uint16)


def test_12_bits_in_16_are_refused_unless_their_range_is_given(read):
    content = encode(Image.fromarray(TWELVE), "PNG")
    with pytest.raises(
        UserError, match=r"0-a\.png: got images of more than 8 bits with values in 6\.2% of the range of their type"
    ):
        read(content, content)
    np.testing.assert_array_equal(read(content, limits=(0.0, 4095.0))[0, ..., 0], GREYS)


@pytest.mark.parametrize("maxval", [1023, 4095])
@pytest.mark.parametrize("magic", ["P5", "P2"])
def test_a_range_is_of_the_values_in_a_pgm_whatever_pillow_makes_of_them(read, maxval, magic):
    values = np.round(RAMP / 65535 * maxval).astype(">u2")
    content = values.tobytes() if magic == "P5" else " ".join(map(str, values.ravel().tolist())).encode()
    file = f"{magic} 16 16 {maxval}\n".encode() + content
    np.testing.assert_array_equal(read(file, limits=(0, maxval)), read(file))
    half = read(file, limits=(0, 2 * maxval))
    assert np.abs(2.0 * half - read(file)).max() <= 1
    with pytest.raises(UserError, match=rf"got the value \d+, expected 0 to {maxval // 2}\. Widen"):
        read(file, limits=(0, maxval // 2))


def test_dark_pictures_of_16_bits_are_read_beside_bright_ones(read):
    dark, bright = encode(Image.fromarray(TWELVE), "PNG"), encode(Image.fromarray(RAMP), "PNG")
    assert read(dark, bright).max(axis=(1, 2, 3)).tolist() == [16, 255]
    assert read(encode(Image.new("I;16", (9, 9), 32896), "PNG")).max() == 128


@pytest.mark.parametrize("opaque", [[], [np.full_like(GREYS, 255)]], ids=["RGB", "RGBA"])
def test_colours_of_12_bits_in_16_are_refused(read, opaque):
    small = encode(Image.fromarray(np.dstack([GREYS // 16] * 3 + opaque)), "PNG")
    assert read(small).max() == 15
    for limits in (None, (0.0, 4095.0)):
        with pytest.raises(UserError, match="leaves 16 of 256 shades"):
            read(_as_16_bits(small, 3 + len(opaque)), limits=limits)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("deep", [False, True])
def test_pictures_are_turned_as_exif_says(read, orientation, deep):
    grey = np.where(np.tri(16, dtype=bool), GREYS, 0)  # differs in all eight orientations
    picture = Image.fromarray(grey.astype(np.uint16) * 257 if deep else grey)
    tags = Image.Exif()
    tags[0x0112] = orientation
    for form in ("PNG", "TIFF"):
        turned = read(encode(picture, form, exif=tags), name=f"a.{form.lower()}")
        upright = Image.open(io.BytesIO(encode(Image.fromarray(grey), "PNG", exif=tags)))
        np.testing.assert_array_equal(turned[0, ..., 0], np.asarray(ImageOps.exif_transpose(upright)))


def _sixteen(mode: str, value) -> Image.Image:
    return Image.new(mode, (16, 16), value)


def _palette(mode: str = "P") -> Image.Image:
    """A picture of the second colour of a palette."""
    picture = Image.new(mode, (16, 16), 1 if mode == "P" else (1, 255))
    picture.putpalette([9, 9, 9, 200, 100, 50])
    return picture


def _lab(colour: tuple[int, int, int]) -> Image.Image:
    profiles = (ImageCms.createProfile(name) for name in ("sRGB", "LAB"))
    return ImageCms.profileToProfile(_sixteen("RGB", colour), *profiles, outputMode="LAB")


MODES = {
    "1": (_sixteen("1", 1), "PNG", {}, (255, 255, 255)),
    "1 bit TIFF": (_sixteen("1", 1), "TIFF", {"compression": "group4"}, (255, 255, 255)),
    "L": (_sixteen("L", 77), "PNG", {}, (77, 77, 77)),
    "LA": (_sixteen("LA", (77, 255)), "PNG", {}, (77, 77, 77)),
    "LA, transparent": (_sixteen("LA", (0, 0)), "PNG", {}, (255, 255, 255)),
    "P": (_palette(), "PNG", {}, (200, 100, 50)),
    "P of 16 colours": (_palette(), "PNG", {"bits": 4}, (200, 100, 50)),
    "P, transparent": (_palette(), "PNG", {"transparency": 1}, (255, 255, 255)),
    "PA": (_palette("PA"), "TIFF", {}, (200, 100, 50)),
    "RGB": (_sixteen("RGB", (200, 100, 50)), "PNG", {}, (200, 100, 50)),
    "RGB, a transparent colour": (_sixteen("RGB", (9, 9, 9)), "PNG", {"transparency": (9, 9, 9)}, (255, 255, 255)),
    "RGBA": (_sixteen("RGBA", (200, 100, 50, 255)), "PNG", {}, (200, 100, 50)),
    "RGBA, half transparent": (_sixteen("RGBA", (0, 0, 0, 128)), "PNG", {}, (127, 127, 127)),
    "RGBA, transparent": (_sixteen("RGBA", (0, 0, 0, 0)), "WEBP", {"lossless": True, "exact": True}, (255, 255, 255)),
    "CMYK": (_sixteen("CMYK", (55, 155, 205, 0)), "TIFF", {}, (200, 100, 50)),
    "LAB": (_lab((200, 100, 50)), "TIFF", {}, (200, 100, 50)),
    "YCbCr": (_sixteen("RGB", (200, 100, 50)).convert("YCbCr"), "TIFF", {}, (200, 100, 50)),
}


@pytest.mark.parametrize(("picture", "form", "options", "colour"), MODES.values(), ids=MODES)
def test_every_mode_becomes_the_colours_that_a_viewer_shows(read, picture, form, options, colour):
    shown = read(encode(picture, form, **options))
    assert np.abs(shown.astype(int) - colour).max() <= 1  # of LAB and YCbCr


@pytest.mark.parametrize("form", ["TIFF", "PNG", "WEBP", "GIF"])
def test_a_file_of_several_pictures_is_refused(read, form):
    frames = [Image.new("RGB", (16, 16), (at, 0, 0)) for at in (10, 100, 200)]
    content = encode(frames[0], form, save_all=True, append_images=frames[1:])
    with pytest.raises(UserError, match="got 3 images in one file, expected one"):
        read(content, name="a.tif")


def test_previews_behind_a_photograph_are_no_pictures_of_their_own(read):
    photo, preview = Image.fromarray(GREYS), Image.new("L", (4, 4))
    preview.encoderinfo = {"tiffinfo": {254: 1}}
    assert (read(encode(photo, "TIFF", save_all=True, append_images=[preview]))[0, ..., 0] == GREYS).all()
    assert len(read(encode(photo.convert("RGB"), "MPO", save_all=True, append_images=[preview.convert("RGB")]))) == 1


def test_pictures_of_all_sizes_are_squeezed_to_one(tmp_path):
    for name, size in (("1.png", (1, 1)), ("2.png", (300, 7)), ("3.png", (16, 16))):
        Image.new("L", size, 50).save(tmp_path / name)
    paths = sorted(Path(tmp_path).iterdir())
    assert (read_pictures(paths, 16) == 50).all()
