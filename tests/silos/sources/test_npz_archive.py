"""An archive may claim and hold anything: it is read, or refused in a sentence that names it, without a warning."""

import io
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from silos.errors import UserError
from silos.sources.source_params import Npz
from silos.sources.source_registry import load_source

X = np.arange(24, dtype=np.float64).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2])
CLIENT = np.array(["a", "b"] * 3)
BELL = np.array(["\x07[/b]\n$x$"] * 6)


def member(array: np.ndarray) -> bytes:
    """A .npy file."""
    content = io.BytesIO()
    np.lib.format.write_array(content, array, allow_pickle=True)
    return content.getvalue()


def claims(shape: Any, descr: Any = "<f8", version: int = 1, body: bytes = bytes(64)) -> bytes:
    """A .npy file whose header says this, and that holds 64 bytes."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + body


def zipped(*more: tuple[str, bytes], compression: int = zipfile.ZIP_STORED, **arrays: Any) -> bytes:
    """An archive of x, y, client and what is given instead of them or beside them: arrays, or files as they are."""
    content = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w", compression) as archive:
        warnings.simplefilter("ignore")  # of two members of one name
        for name, held in [*{"x": X, "y": Y, "client": CLIENT, **arrays}.items(), *more]:
            archive.writestr(f"{name}.npy", held if isinstance(held, bytes) else member(np.asanyarray(held)))
    return content.getvalue()


def patched(archive: bytes, offset: int, value: int) -> bytes:
    """The archive with two bytes changed in each of its entries, in the local and in the central header."""
    changed = bytearray(archive)
    for signature, at in ((b"PK\x03\x04", offset), (b"PK\x01\x02", offset + 2)):
        start = -1
        while (start := archive.find(signature, start + 1)) >= 0:
            changed[start + at : start + at + 2] = value.to_bytes(2, "little")
    return bytes(changed)


def flipped(archive: bytes, at: int) -> bytes:
    """The archive with the bits of one byte turned over."""
    return archive[:at] + bytes([archive[at] ^ 0xFF]) + archive[at + 1 :]


def text(*points: int) -> np.ndarray:
    """Six strings of these 32-bit letters, which need be none."""
    return np.tile(np.array(points, np.uint32), 6).view(f"<U{len(points)}")


REFUSED = {
    "encrypted": (patched(zipped(), 6, 1), r"own\.npz: x: got an encrypted array, expected a plain one"),
    "unknown compression": (patched(zipped(), 8, 93), r"own\.npz: x: got an unsupported compression \(zip's method"),
    "needs a later zip": (patched(zipped(), 4, 90), "cannot be read as a .npz archive .*zip file version"),
    "32 PiB in the header": (zipped(x=claims((2**52,))), r"own\.npz: x: got 64 bytes for shape"),
    "a header beyond 64 bits": (zipped(x=claims((2**70, 2**70))), r"\. The file is damaged; write it again\."),
    "a client column of 32 PiB": (zipped(client=claims((2**52,), "<U2")), r"own\.npz: client: got 64 bytes for"),
    "a negative shape": (zipped(x=claims((-6, 4))), r"\. The file is damaged; write it again\."),
    "a shape that is no shape": (zipped(x=claims("many")), "cannot be read as a .npz archive"),
    "a type that is no type": (zipped(x=claims((6,), "<q99")), "cannot be read as a .npz archive"),
    "a header of brackets": (
        zipped(x=b"\x93NUMPY\x01\x00\x00\x20" + b"(" * 0x2000),
        "cannot be read as a .npz archive",
    ),
    "a header cut short": (zipped(x=b"\x93NUMPY\x01\x00\xff\xffabc"), "cannot be read as a .npz archive"),
    "a header of 4 GiB": (zipped(x=b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}"), "cannot be read as a .npz archive"),
    "version 3": (zipped(x=claims((6,), version=3)), r"own\.npz: x: got a table of named columns, expected one"),
    "version 9": (zipped(x=claims((6,), version=9)), r"own\.npz: x: got an array of NumPy's format 9, expected one"),
    "no NumPy array": (zipped(x=b"1,2,3"), r"own\.npz: x: got something other than a NumPy array, expected one"),
    "an empty member": (zipped(x=b""), r"own\.npz: x: got something other than a NumPy array, expected one"),
    "a pickle": (zipped(x=X.astype(object)), r"own\.npz: x: got an array of Python objects, which is not read for"),
    "a pickle inside a table": (zipped(y=np.zeros(6, [("a", "O")])), r"own\.npz: y: got an array of Python objects"),
    "values of no length": (zipped(client=claims((6,), "<U0")), r"own\.npz: client: got 64 bytes for shape \("),
    "two arrays of one name": (zipped(("x", member(X))), r"own\.npz: x: got this array 2 times, expected it once"),
    "rows without a number": (zipped(x=X[:, :0]), r"own\.npz: x: got shape \(6, 0\), expected at least one number a"),
    "images without a pixel": (zipped(x=np.zeros((6, 3, 0))), r"own\.npz: x: got shape \(6, 3, 0\), expected at"),
    "one number": (zipped(x=3.0, y=1), r"own\.npz: x: got no rows, expected at least one"),
    "a column of one number": (zipped(client=3), r"own\.npz: client: got shape \(\), expected one value a row"),
    "a table": (zipped(x=np.zeros(6, [("a", "f4"), ("b", "f4")])), r"own\.npz: x: got \[\('a', '<f4'\), \('b'"),
    "classes in a table": (zipped(y=np.zeros(6, [("a", "f4")])), r"own\.npz: y: got \[\('a', '<f4'\)\], expected"),
    "clients in a table": (zipped(client=np.zeros(6, [("a", "i4")])), r"own\.npz: client: got \[\('a', '<i4'\)\]"),
    "splits in a table": (zipped(split=np.zeros(6, [("a", "i4")])), "expected 0 or train, 1 or test, 2 or"),
    "complex": (zipped(x=X + 1j), r"own\.npz: x: got complex128, expected numbers"),
    "complex splits": (zipped(split=Y + 1j), "expected 0 or train, 1 or test, 2 or validation"),
    "dates": (zipped(x=X.astype("datetime64[s]")), r"own\.npz: x: got datetime64\[s\], expected numbers"),
    "dates as clients": (zipped(client=Y.astype("datetime64[D]")), r"own\.npz: client: got datetime64\[D\]"),
    "spans as splits": (zipped(split=Y.astype("timedelta64[D]")), "expected 0 or train, 1 or test, 2 or validation"),
    "splits of 1e300": (zipped(split=np.full(6, 1e300)), r"own\.npz: split: got '1e\+300', expected 0 or train, 1"),
    "splits that are no numbers": (zipped(split=np.full(6, np.nan)), r"own\.npz: split: got 'nan', expected 0 or"),
    "clients that are no numbers": (zipped(client=np.full(6, np.nan)), r"own\.npz: client: got float64, expected"),
    "clients that are true": (zipped(client=Y == 0), r"own\.npz: client: got bool, expected strings or whole"),
    "bytes that are not UTF-8": (zipped(client=np.array([b"\xff"] * 6)), r"own\.npz: client: got bytes that are not"),
    "half a character": (zipped(client=text(0x61, 0xD800)), r"own\.npz: client of row 0: got an incomplete"),
    "half a class": (zipped(y=text(0xDFFF)), r"own\.npz: y of row 0: got an incomplete character, expected text"),
    "half a domain": (zipped(domain=np.array(["a"] * 5 + ["\udc80"])), r"own\.npz: domain of row 5: got an"),
    "letters beyond Unicode": (zipped(client=text(0xFFFFFFFF)), r"own\.npz: client of row 0: got an incomplete"),
    "big-endian halves": (zipped(client=text(0xD800).astype(">U1")), r"own\.npz: client of row 0: got an incomplete"),
    "a client of 5,000 digits": (zipped(client=np.array(["7" * 5000] * 6)), r"own\.npz: client of row 0: got 5000"),
    "a class of 5,000 digits": (zipped(y=np.array(["7" * 5000] * 6)), r"own\.npz: y of row 0: got 5000 characters"),
    "truncated": (zipped()[:-40], r"own\.npz: got another format, expected a \.npz archive"),
    "nothing": (b"", r"own\.npz: got another format, expected a \.npz archive"),
    "an empty archive": (
        zipped()[-22:][:4] + bytes(18),
        r"own\.npz: got no array x \(the archive has none\), expected x",
    ),
    "one bit": (zipped().replace(member(X)[-8:], bytes(8)), "cannot be read as a .npz archive .*CRC"),
    "a bit of what is deflated": (flipped(zipped(compression=zipfile.ZIP_DEFLATED), 60), "cannot be read as a .npz"),
}


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], Any]:
    def build(archive: bytes) -> Any:
        (tmp_path / "own.npz").write_bytes(archive)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return load_source(Npz(kind="npz", path="own.npz"), tmp_path, 0)

    return build


@pytest.mark.parametrize(("archive", "said"), REFUSED.values(), ids=REFUSED)
def test_an_odd_archive_is_refused_in_one_sentence_that_names_it(read, archive, said):
    with pytest.raises(UserError, match=said) as caught:
        read(archive)
    assert str(caught.value).startswith("own.npz")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("arrays", "x"),
    [
        ({"x": np.asfortranarray(X)}, X),
        ({"x": X.astype(">f8"), "y": Y.astype(">i2"), "client": CLIENT.astype(">U1")}, X),
        ({"x": X.astype(np.float16)}, X),
        ({"x": X.astype(np.longdouble)}, X),
        ({"x": np.ma.masked_greater(X, 90.0)}, X),
        ({"x": X, "y": Y.astype(np.uint64) + np.uint64(2**63)}, X),
        ({"x": claims((6,), version=2)}, np.zeros((6, 1))),
        ({"x": X, "domain": BELL, "extra": np.array([None] * 6)}, X),
        ({"x": X, "split": np.array([-0.0, 1, 2] * 2)}, X),
        ({"x": X, "split": Y == 1}, X),
        ({"x": X, "client": np.array(["7" * 1000] * 6)}, X),
    ],
)
def test_what_is_only_unusual_is_read(read, arrays, x):
    rows = read(zipped(**arrays))
    np.testing.assert_array_equal(rows.x, x.astype(np.float32))
    assert rows.x.dtype.isnative
    assert len(rows.y) == 6


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_may_be_compressed_in_any_way_that_python_knows(read, compression):
    np.testing.assert_array_equal(read(zipped(compression=compression)).x, X.astype(np.float32))


@pytest.mark.slow
def test_an_archive_that_unpacks_to_more_than_the_memory_is_refused_before_it_is_read(read, monkeypatch):
    archive = zipped(x=np.zeros((6, 100_000)), compression=zipfile.ZIP_DEFLATED)
    assert len(archive) < 10_000
    assert read(archive).x.shape == (6, 100_000)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 4_000_000}))
    with pytest.raises(UserError, match=r"own\.npz: x: got shape \(6, 100000\) of float64 \(with its copies\), which"):
        read(archive)


def test_a_folder_with_the_name_of_an_archive_is_called_a_folder(tmp_path):
    (tmp_path / "own.npz").mkdir()
    with pytest.raises(UserError, match=r"own\.npz: got a folder \(looked for"):
        load_source(Npz(kind="npz", path="own.npz"), tmp_path, 0)


def test_an_archive_that_python_2_wrote_is_read(read):
    old = b"{'descr': '<f8', 'fortran_order': False, 'shape': (6L,), }\n"
    x = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(old)) + old + bytes(48)
    assert read(zipped(x=x)).x.shape == (6, 1)
