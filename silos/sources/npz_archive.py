"""The arrays of a .npz, of which nothing is believed: what a header claims is held against the file before it is read."""

import math
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from silos.errors import UserError
from silos.io.free_memory import must_fit
from silos.schema import first_fault
from silos.sources.source_checks import must_be_there

_READABLE = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA}
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(name: str, path: Path, needed: Sequence[str], others: Sequence[str]) -> dict[str, np.ndarray]:
    """The `needed` arrays and those of the `others` that are there; the rest is left alone. `name` stands in errors."""
    must_be_there(name, path)
    if not zipfile.is_zipfile(path):
        raise UserError(f"{name} is not a .npz archive; write one with numpy.savez({path.name!r}, x=…, y=…).")
    try:
        with zipfile.ZipFile(path) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of archives that Python 2 wrote
            held = [member.filename.removesuffix(".npy") for member in archive.infolist()]
            for key in needed:
                if key not in held:
                    raise UserError(
                        f"{name} has no array {key} (it holds {', '.join(held) or 'nothing'}); it needs "
                        f"{' and '.join(needed)}."
                    )
            return {key: _array(f"{name}: {key}", key, archive) for key in (*needed, *others) if key in held}
    except UserError:
        raise
    except Exception as error:  # of many types: zipfile, its codecs and NumPy trust the file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{name} cannot be read as a .npz archive ({reason}); write it again.") from error


def _array(where: str, key: str, archive: zipfile.ZipFile) -> np.ndarray:
    member, *more = [member for member in archive.infolist() if member.filename.removesuffix(".npy") == key]
    if more:
        raise UserError(f"{where} is there {1 + len(more)} times; write the archive again.")
    if member.flag_bits & 1:
        raise UserError(f"{where} is encrypted; write the archive without a password.")
    if member.compress_type not in _READABLE:
        raise UserError(
            f"{where} is compressed in a way that is not known here (zip's method {member.compress_type}); write the "
            "archive with numpy.savez or numpy.savez_compressed."
        )
    with archive.open(member) as file:
        _check_header(where, file, member.file_size)
    with archive.open(member) as file:
        array: np.ndarray = npy.read_array(file, allow_pickle=False)
    return _text(where, array) if array.dtype.kind in "SU" else array


def _check_header(where: str, file: IO[bytes], size: int) -> None:
    try:
        version = npy.read_magic(file)
    except ValueError:
        raise UserError(f"{where} is not a NumPy array; write the archive with numpy.savez.") from None
    if version not in _HEADERS:
        kind = "a table of named columns" if version == (3, 0) else f"of NumPy's format {version[0]}, not known here"
        raise UserError(f"{where} is {kind}; give it as one array of numbers or strings.")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise UserError(
            f"{where} is an array of Python objects, which are not read for safety; convert it with "
            "numpy.asarray(…, dtype=…) to numbers or strings before saving."
        )
    count = math.prod(shape)
    claimed, there = count * dtype.itemsize, size - file.tell()
    if claimed > there or min(shape, default=0) < 0 or dtype.itemsize == 0:
        raise UserError(
            f"{where} is damaged: shape {shape} of {dtype} takes {claimed} bytes, and it has {there}; write it again."
        )
    as_float = 0 if dtype == np.uint8 else 4 * count  # pictures stay bytes
    must_fit(claimed + as_float, f"{where} has shape {shape} of {dtype}, which with its copies", "save fewer rows")


def _text(where: str, array: np.ndarray) -> np.ndarray:
    """Bytes as the text that they are, and text of which each entry can be a name."""
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{where} holds bytes that are no UTF-8 ({error.reason}); save it as strings.") from None
    fault = first_fault(array.ravel())
    if fault:
        raise UserError(f"{where} of row {fault[0]} {fault[1]}.")
    return array
