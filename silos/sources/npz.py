"""The source `npz`: a user's NumPy archive, whose headers are checked against the file before arrays are read."""

import math
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from silos.dataset import Rows
from silos.errors import UserError
from silos.io.memory_and_disk import must_fit
from silos.row_units import hash_units
from silos.schema import Feature, describe_duplicate, find_invalid_name, is_table
from silos.sources.source_checks import ROUNDED, must_be_there, split_names, stays_distinct
from silos.sources.source_params import NPZ_ARRAYS, Npz

_READABLE = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA}
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(name: str, path: Path, needed: Sequence[str], others: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the `needed` arrays and those `others` that exist, and ignore the rest; `name` is used in errors."""
    must_be_there(name, path)
    if not zipfile.is_zipfile(path):
        raise UserError(
            f"{name}: got another format, expected a .npz archive. Write one with numpy.savez({path.name!r}, x=…, y=…)."
        )
    try:
        with zipfile.ZipFile(path) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about archives that Python 2 wrote
            stored = [member.filename.removesuffix(".npy") for member in archive.infolist()]
            for key in needed:
                if key not in stored:
                    raise UserError(
                        f"{name}: got no array {key} (the archive has {', '.join(stored) or 'none'}), expected "
                        f"{' and '.join(needed)}. Add the missing array."
                    )
            return {key: _read_array(f"{name}: {key}", key, archive) for key in (*needed, *others) if key in stored}
    except UserError:
        raise
    except Exception as error:  # of many types: zipfile, its codecs and NumPy do not check the file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{name}: cannot be read as a .npz archive ({reason}). Write it again.") from error


def _read_array(where: str, key: str, archive: zipfile.ZipFile) -> np.ndarray:
    member, *more = [member for member in archive.infolist() if member.filename.removesuffix(".npy") == key]
    if more:
        raise UserError(f"{where}: got this array {1 + len(more)} times, expected it once. Write the archive again.")
    if member.flag_bits & 1:
        raise UserError(f"{where}: got an encrypted array, expected a plain one. Write the archive without a password.")
    if member.compress_type not in _READABLE:
        raise UserError(
            f"{where}: got an unsupported compression (zip's method {member.compress_type}), expected that of "
            "NumPy. Write the archive with numpy.savez or numpy.savez_compressed."
        )
    with archive.open(member) as file:
        _check_header(where, file, member.file_size)
    with archive.open(member) as file:
        array: np.ndarray = npy.read_array(file, allow_pickle=False)
    return _decoded_text(where, array) if array.dtype.kind in "SU" else array


def _check_header(where: str, file: IO[bytes], size: int) -> None:
    try:
        version = npy.read_magic(file)
    except ValueError:
        raise UserError(
            f"{where}: got something other than a NumPy array, expected one. Write the archive with numpy.savez."
        ) from None
    if version not in _HEADERS:
        kind = "a table of named columns" if version == (3, 0) else f"an array of NumPy's format {version[0]}"
        raise UserError(f"{where}: got {kind}, expected one array of numbers or strings. Convert it.")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise UserError(
            f"{where}: got an array of Python objects, which is not read for safety, expected numbers or strings. "
            "Convert it with numpy.asarray(…, dtype=…) before saving."
        )
    count = math.prod(shape)
    claimed, available = count * dtype.itemsize, size - file.tell()
    if claimed > available or min(shape, default=0) < 0 or dtype.itemsize == 0:
        raise UserError(
            f"{where}: got {available} bytes for shape {shape} of {dtype}, expected {claimed}. The file is "
            "damaged; write it again."
        )
    as_float = 0 if dtype == np.uint8 else 4 * count  # pictures stay bytes
    must_fit(claimed + as_float, f"{where}: got shape {shape} of {dtype} (with its copies)", "Save fewer rows")


def _decoded_text(where: str, array: np.ndarray) -> np.ndarray:
    """Decode bytes as UTF-8, and check that each text can be a name."""
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{where}: got bytes that are not UTF-8 ({error.reason}), expected text. Save it as strings."
            ) from None
    fault = find_invalid_name(array.ravel())
    if fault:
        raise UserError(f"{where} of row {fault[0]}: {fault[1]}.")
    return array


_DOUBLE_DIGITS = 52  # binary digits of a float64 after the first
_SINGLE_LIMIT = 2**24  # up to which float32 represents all integers
_CHANNELS = (1, 3, 4)  # that a picture may have
_SHRINK_ADVICE = "Subtract its smallest value, or save it in another unit"
_ADVICE = {
    "M": "save the days since one day as numbers",
    "m": "save it in days as numbers",
    "c": "save its real and imaginary parts as columns",
    "V": "save its fields as the columns of one array",
}


def npz(source: Npz, root: Path) -> Rows:
    """Read the rows of an archive, whose path is relative to `root`."""
    name = source.path
    needed = ("x", "y") if source.unit is None else ("x", "y", source.unit)
    arrays = read_arrays(name, Path(root) / name, needed, NPZ_ARRAYS[2:])
    x, y = arrays["x"], arrays["y"]
    if x.ndim == 0 or len(x) == 0:
        raise UserError(f"{name}: x: got no rows, expected at least one. Add rows.")
    if x.size == 0:
        raise UserError(f"{name}: x: got shape {x.shape}, expected at least one number a row. Add a column.")
    # as a data frame of one column is saved
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    _check_channels(name, x)
    features = _feature_names(name, x, arrays.pop("features", None))
    # after x, with which the length of every other array is compared
    for key, array in {**arrays, "y": y}.items():
        if key != "x" and array.ndim != 1:
            raise UserError(
                f"{name}: {key}: got shape {array.shape}, expected one value a row. Save it as a flat array."
            )
        if len(array) != len(x):
            raise UserError(
                f"{name}: {key}: got {len(array)} entries for {len(x)} rows of x, expected one a row. Save arrays "
                "of equal length."
            )
    client = _name_column(name, "client", arrays.get("client"))
    unit = _name_column(name, source.unit or "", arrays.get(source.unit or ""))
    split = arrays.get("split")
    classes, targets = _class_codes(name, y) if source.task == "classification" else ([], _regression_targets(name, y))
    return Rows(
        x=_inputs(name, x, client, features),
        y=targets,
        classes=classes,
        client=client,
        domain=_name_column(name, "domain", arrays.get("domain")),
        split=None if split is None else split_names(name, split),
        task=source.task,
        features=features,
        unit=None if unit is None else hash_units(unit),
    )


def _check_channels(name: str, x: np.ndarray) -> None:
    """Raise a UserError for pictures that look like channels × height × width."""
    if x.ndim != 4:
        return
    first, height, width = x.shape[1:]
    if first < min(height, width) and width not in _CHANNELS and (first in _CHANNELS or height == width):
        raise UserError(
            f"{name}: x: got rows of shape {x.shape[1:]}, expected images as height × width × channels. Save "
            "numpy.moveaxis(x, 1, -1) instead; if the channels are last already, save numpy.swapaxes(x, 1, 2)."
        )


def _inputs(name: str, x: np.ndarray, client: np.ndarray | None, features: tuple[Feature, ...]) -> np.ndarray:
    """Return x as uint8 or as float32, (n, *shape); one number a row becomes one feature.

    Float32 values are finite, except for NaN in a table.
    """
    if x.ndim == 1:
        x = x[:, None]
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if x.dtype.kind not in "fiub":
        advice = _ADVICE.get(x.dtype.kind, "encode its columns first")
        raise UserError(f"{name}: x: got {x.dtype}, expected numbers. To fix it, {advice}.")
    exact = x
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, dtype=np.float32)
    valid = np.isfinite(x)
    if is_table(x.shape[1:], x.dtype):
        valid |= np.isnan(x)
    invalid = ~valid.reshape(len(x), -1).all(axis=1)
    if invalid.any():
        row = int(invalid.argmax())
        owner = "" if client is None else f" (client {client[row]})"
        more = "" if invalid.sum() == 1 else f", as do {int(invalid.sum()) - 1} more rows"
        raise UserError(
            f"{name}: x: got a value in row {row}{owner} that is not a finite float32{more}, expected finite "
            "numbers. Fill in or drop such rows."
        )
    exact_in_float32 = exact.dtype.kind in "iu" and exact.min() >= -_SINGLE_LIMIT and exact.max() <= _SINGLE_LIMIT
    if not exact_in_float32 and not np.can_cast(exact.dtype, np.float32):
        _check_rounding(name, exact, x, features)
    return x


def _check_rounding(name: str, exact: np.ndarray, x: np.ndarray, features: tuple[Feature, ...]) -> None:
    """Raise a UserError if float32 cannot distinguish the values of a column, or those of pictures.

    exact: (n, *shape) as saved; x: the same as float32, NaN in a table only.
    """
    if x.ndim > 2:
        wide_type = np.float64 if exact.dtype == np.float64 else np.longdouble
        spread = wide_type(exact.max()) - wide_type(exact.min())
        moved = max(np.abs(row - rounded).max() for row, rounded in zip(map(wide_type, exact), x, strict=True))
        if spread and moved > ROUNDED * spread:
            raise UserError(
                f"{name}: x: got values from {exact.min():.17g} to {exact.max():.17g}, expected differences that "
                f"float32 can represent at that size. {_SHRINK_ADVICE}."
            )
        return
    for index, (column, rounded) in enumerate(zip(exact.T, x.T, strict=True)):
        present = ~np.isnan(rounded)
        if not stays_distinct(column[present], rounded[present]):
            feature = f" ({features[index].name!r})" if features else ""
            raise UserError(
                f"{name}: x: got values such as {column[present][0]} in column {index}{feature}, expected "
                f"differences that float32 can represent at that size. {_SHRINK_ADVICE}."
            )


def _feature_names(name: str, x: np.ndarray, names: np.ndarray | None) -> tuple[Feature, ...]:
    """Return features with the names in the archive's array `features`; empty if there is no such array."""
    if names is None:
        return ()
    shape = x.shape[1:] or (1,)
    if not is_table(shape, x.dtype):
        raise UserError(
            f"{name}: features: got column names for x of shape {x.shape} of {x.dtype}, expected a flat table, "
            "since these rows are images. Save the array under another name, or x as float32 (rows, features)."
        )
    if names.dtype.kind != "U" or names.shape != shape:
        raise UserError(
            f"{name}: features: got shape {names.shape} of {names.dtype}, expected one string for each of the "
            f"{shape[0]} columns of x. Correct it, or save it under another name."
        )
    if (names == "").any():
        raise UserError(
            f"{name}: features: got no name for column {int((names == '').argmax())}, expected one. Name the column."
        )
    fault = describe_duplicate(names.tolist())
    if fault:
        raise UserError(f"{name}: features: {fault}.")
    return tuple(Feature(name=feature_name) for feature_name in names.tolist())


def _class_codes(name: str, y: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the sorted class names and each row's code, (n,) int64; integers sort as numbers, strings as text."""
    if y.dtype.kind == "f":
        if not np.isfinite(y).all():
            row = int((~np.isfinite(y)).argmax())
            raise UserError(f"{name}: y: got {y[row]} in row {row}, expected a label. Label or drop such rows.")
        if not (y == np.floor(y)).all():
            row = int((y != np.floor(y)).argmax())
            raise UserError(
                f"{name}: y: got {y[row]} in row {row}, expected whole numbers or strings as classes. Correct it, "
                "or add `task: regression` to data.source in params.yaml."
            )
        digits = min(np.finfo(y.dtype).nmant, _DOUBLE_DIGITS) + 1
        if (np.abs(y) > 2.0**digits).any():
            row = int((np.abs(y) > 2.0**digits).argmax())
            raise UserError(
                f"{name}: y: got {y[row]} in row {row}, expected labels below 2^{digits}, beyond which {y.dtype} "
                "cannot tell whole numbers apart. Write labels as int64 or as strings."
            )
        y = y.astype(np.int64)
    if y.dtype.kind not in "iubU":
        raise UserError(f"{name}: y: got {y.dtype}, expected whole numbers or strings as classes. Convert it.")
    values, codes = np.unique(y, return_inverse=True)
    return [str(value) for value in values.tolist()], codes.astype(np.int64)


def _regression_targets(name: str, y: np.ndarray) -> np.ndarray:
    """Return y as finite float32: (n,)."""
    if y.dtype.kind not in "fiu":
        raise UserError(
            f"{name}: y: got {y.dtype}, expected numbers for a regression. Drop `task: regression` for classes."
        )
    with np.errstate(over="ignore"):
        targets = np.ascontiguousarray(y, dtype=np.float32)
    if not np.isfinite(targets).all():
        row = int((~np.isfinite(targets)).argmax())
        raise UserError(
            f"{name}: y: got a target in row {row} that is not a finite float32, expected finite "
            "numbers. Fill in or drop such rows."
        )
    if not stays_distinct(y, targets):
        raise UserError(
            f"{name}: y: got targets that float32 cannot tell apart at their size, expected distinct values. "
            "Subtract the mean before saving."
        )
    return targets


def _name_column(name: str, key: str, column: np.ndarray | None) -> np.ndarray | None:
    """Return a column of names as strings: (n,) str."""
    if column is None:
        return None
    if column.dtype.kind not in "iuU":
        is_float = column.dtype.kind == "f"
        advice = "Drop rows where it is NaN. " if is_float and np.isnan(column).any() else ""
        type_name = "int" if is_float and (np.isnan(column) | (column == np.floor(column))).all() else "str"
        raise UserError(
            f"{name}: {key}: got {column.dtype}, expected strings or whole numbers. {advice}Save {key}.astype("
            f"{type_name})."
        )
    names = column.astype(str)
    empty = np.char.str_len(names) == 0
    if len(names) and empty.all():
        raise UserError(
            f"{name}: {key}: got no name in any row, expected one in each. Save the names, or leave out the array and its "
            "key under data.source."
        )
    if empty.any():
        raise UserError(
            f"{name}: {key}: got no name in row {int(empty.argmax())}, expected one. Name it or drop the row."
        )
    return names
