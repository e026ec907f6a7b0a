"""JSON on disk, whole or not at all, and what to say of a disk that takes no files."""

import errno
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from silos.errors import UserError
from silos.io.atomic_io import is_there, write_bytes

_MEANS_MORE = re.compile("[?#%]")

ANEW = "bring it back from a copy, or start anew without --resume"
"""What to do about a damaged file without which nothing goes on."""


def write_json(path: Path, content: Any) -> None:
    """As `write_bytes`, in a fixed order of keys; NaN and infinity, which JSON does not have, become null."""
    write_bytes(path, (json.dumps(finite(content), indent=1, sort_keys=True) + "\n").encode())


def write_records(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping of records with one record a line, so that a version control system shows what changed.

    A list of mappings is written as one line for each of them. Mappings that hold such lists are spread over lines, as is
    the outermost one. Everything else stays on the line of its key.
    """
    write_bytes(path, f"{_record_lines(finite(content), '', outermost=True)}\n".encode())


def _record_lines(value: Any, indent: str, outermost: bool = False) -> str:
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


def _is_record_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(record, dict) for record in value)


def _holds_record_list(value: Any) -> bool:
    return isinstance(value, dict) and any(_is_record_list(one) or _holds_record_list(one) for one in value.values())


def compact(content: Any) -> bytes:
    """What `write_json` writes, on one line, in a fraction of the time: for records of many clients."""
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except ValueError:
        text = json.dumps(finite(content), sort_keys=True)
    return f"{text}\n".encode()


def read_json(path: Path, way_out: str = "bring it back from a copy, or move it away", keys: Iterable[str] = ()) -> Any:
    """The object in the file, None if it is not there; UserError with the way out if it is damaged or lacks a key."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"it holds {type(content).__name__}")
        missing = [key for key in keys if key not in content]
        if missing:
            raise ValueError(f"it has no {missing[0]}")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); {way_out}.") from None
    return content


def plain_path(path: Path) -> str:
    """The path as a database's address may hold it, where ?, # and % mean something else: then from the current folder."""
    whole = str(path.resolve())
    if not _MEANS_MORE.search(whole):
        return whole
    within = os.path.relpath(whole)
    if _MEANS_MORE.search(within):
        raise UserError(
            f"{whole}: no database can be named there, because of ?, # or % in the path; go into the folder."
        )
    return within


def unwritable(error: BaseException | None) -> str | None:
    """What a person should do about a folder or a disk that takes no files; None for any other error."""
    if not isinstance(error, OSError):
        return None
    reasons = [reason for reason, codes in _UNWRITABLE.items() if error.errno in codes]
    if not reasons:
        return None
    if not error.filename:
        return f"cannot write: {reasons[0]}."
    place = Path(error.filename)
    in_the_way = [] if error.errno == errno.EISDIR else [p for p in (place, *place.parents) if is_there(p)]
    return f"cannot write {(in_the_way or [place])[0]}: {reasons[0]}."


_UNWRITABLE = {
    "a file is where a folder should be; move it away": {errno.EEXIST, errno.ENOTDIR},
    "a folder is where a file should be; move it away": {errno.EISDIR},
    "files may not grow that large; raise the limit (`ulimit -f`)": {errno.EFBIG},
    "the disk is full; free some space": {errno.ENOSPC, errno.EDQUOT},
    "its name is too long; choose a shorter one": {errno.ENAMETOOLONG},
    "you may not write there; change the permissions": {errno.EACCES, errno.EPERM, errno.EROFS},
}


def finite(content: Any) -> Any:
    """The same with null for NaN and infinity, which JSON does not have."""
    if isinstance(content, dict):
        return {k: finite(v) for k, v in content.items()}
    if isinstance(content, list | tuple):
        return [finite(v) for v in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
