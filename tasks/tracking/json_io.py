"""Read and write JSON files, completely or not at all, and explain to the user why a file cannot be written."""

import errno
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from silos.errors import UserError, shown
from silos.io.atomic_io import is_there, write_bytes

_SPECIAL = re.compile("[?#%]")

RESTORE_ADVICE = "Restore it from a copy, or start again without --resume"
"""Advice for a damaged file without which a run cannot be resumed."""


def write_json(path: Path, content: object) -> None:
    """Write JSON with sorted keys, completely or not at all; NaN and infinity, which JSON lacks, become null."""
    write_bytes(path, (json.dumps(replace_nonfinite(content), indent=1, sort_keys=True) + "\n").encode())


def output_file(root: Path, output: str, source: str | None, allowed: Path | None = None) -> Path:
    """Return the file that `--output` names, or to which a link of this name leads.

    Args:
        root: The project's folder.
        output: The path, relative to the current folder.
        source: The file or folder of rows that `data.source` names, relative to the project; None if it names none.
        allowed: A folder within the project's own ones that takes outputs.

    Raises:
        UserError: For a folder or a device, and for a place that siloflow, DVC or git writes itself.
    """
    place = Path(output).resolve()
    if place.exists() and not place.is_file():
        raise UserError(
            f"--output: got {shown(repr(output))}, which exists and is not a file, expected a file. Name another one."
        )
    if source is not None and _is_within(place, root, source):
        raise UserError(
            f"--output: got {shown(repr(output))}, which holds rows of data.source, expected another file. Name another one."
        )
    within = [name for name in _OWNED if _is_within(place, root, name)]
    if within and not (allowed is not None and _is_within(place, root, allowed)):
        raise UserError(
            f"--output: got {shown(repr(output))}, which is {'' if _is_same(place, root, within[0]) else 'in '}the "
            f"project's own {within[0]}, expected a file elsewhere. Name another one."
        )
    return place


_OWNED = (
    *("data", "private", "runs", "cache", "downloads", ".prefect", ".data-use", ".data-used", ".dvc", ".git"),
    *("params.yaml", "data.dvc", "dvc.yaml", "dvc.lock", "prefect.yaml"),
)
"""Folders and files that siloflow, DVC and git write in a project, and those by which the user steers them."""


def _is_within(place: Path, root: Path, name: str | Path) -> bool:
    """Return whether the path is the file or folder of this name in the project, or in this folder."""
    return any(_is_same(path, root, name) for path in (place, *place.parents))


def _is_same(path: Path, root: Path, name: str | Path) -> bool:
    """Return whether the path is the file or folder of this name in the project.

    It may have another name: a link, or other capitals, which are the same file on a disk that ignores case. A name in
    other capitals counts as the same on every disk, since the file may not exist yet.
    """
    own, folder = root / name, root.resolve()
    if path == own.resolve():
        return True
    if path.is_relative_to(folder) and str(path.relative_to(folder)).casefold() == str(name).casefold():
        return True
    return path.exists() and own.exists() and path.samefile(own)


def write_records(path: Path, content: Mapping[str, object]) -> None:
    """Write a mapping of records with one record a line, so that a version control system shows what changed.

    A list of mappings is written as one line for each of them. Mappings that hold such lists are spread over lines, as is
    the outermost one. Everything else stays on the line of its key.
    """
    write_bytes(path, f"{_record_lines(replace_nonfinite(content), '', outermost=True)}\n".encode())


def _record_lines(value: object, indent: str, outermost: bool = False) -> str:
    inner = f"{indent} "
    if _is_record_list(value):
        lines = [f"{inner}{json.dumps(record, sort_keys=True)}" for record in value]
        brackets = "[]"
    elif isinstance(value, dict) and value and (outermost or _holds_record_list(value)):
        lines = [f"{inner}{json.dumps(key)}: {_record_lines(value[key], inner)}" for key in sorted(value)]
        brackets = "{}"
    else:
        return json.dumps(value, sort_keys=True)
    return f"{brackets[0]}\n" + ",\n".join(lines) + f"\n{indent}{brackets[1]}"


def _is_record_list(value: object) -> TypeGuard[list[dict[str, object]]]:
    return isinstance(value, list) and bool(value) and all(isinstance(record, dict) for record in value)


def _holds_record_list(value: object) -> bool:
    return isinstance(value, dict) and any(_is_record_list(item) or _holds_record_list(item) for item in value.values())


def compact_json(content: object) -> bytes:
    """Return the content as JSON on one line, which is much faster than `write_json` for records of many clients."""
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except ValueError:
        text = json.dumps(replace_nonfinite(content), sort_keys=True)
    return f"{text}\n".encode()


def read_json(path: Path, way_out: str = "Restore it from a copy, or move it away", keys: Iterable[str] = ()) -> Any:
    """Read the object in the file, or return None if there is no file.

    UserError with the advice `way_out` if the file is damaged or lacks a key.
    """
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"got {type(content).__name__}, expected a mapping")
        missing = [key for key in keys if key not in content]
        if missing:
            raise ValueError(f"got no {missing[0]}, expected it")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}). {way_out}.") from None
    return content


def plain_path(path: Path) -> str:
    """Return the path for a database address, relative to the current folder if it contains ?, # or %.

    These characters have a meaning in addresses. UserError if the relative path contains them, too.
    """
    absolute = str(path.resolve())
    if not _SPECIAL.search(absolute):
        return absolute
    relative = os.path.relpath(absolute)
    if _SPECIAL.search(relative):
        raise UserError(
            f"{absolute}: got a path with ?, # or %, expected none of these, since a database cannot be named "
            "there. Rename the folder, or change into it."
        )
    return relative


def unwritable(error: BaseException | None) -> str | None:
    """Return advice to the user about a folder or disk that accepts no files; None for any other error."""
    if not isinstance(error, OSError):
        return None
    reasons = [reason for reason, codes in _UNWRITABLE.items() if error.errno in codes]
    if not reasons:
        return None
    if not error.filename:
        return f"cannot write: {reasons[0]}."
    path = Path(error.filename)
    existing = [] if error.errno == errno.EISDIR else [p for p in (path, *path.parents) if is_there(p)]
    return f"cannot write {(existing or [path])[0]}: {reasons[0]}."


_UNWRITABLE = {
    "a file has the name of the needed folder; move it away": {errno.EEXIST, errno.ENOTDIR},
    "a folder has the name of the needed file; move it away": {errno.EISDIR},
    "files may not become that large; raise the limit (`ulimit -f`)": {errno.EFBIG},
    "the disk is full; free some space": {errno.ENOSPC, errno.EDQUOT},
    "its name is too long; choose a shorter one": {errno.ENAMETOOLONG},
    "you have no permission to write there; change the permissions": {errno.EACCES, errno.EPERM, errno.EROFS},
}


def replace_nonfinite(content: object) -> object:
    """Replace NaN and infinity, which JSON lacks, by null."""
    if isinstance(content, dict):
        return {k: replace_nonfinite(v) for k, v in content.items()}
    if isinstance(content, list | tuple):
        return [replace_nonfinite(v) for v in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
