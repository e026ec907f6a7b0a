"""Writing small files so that a kill at any moment leaves the old one or the new one."""

import errno
import json
import math
import os
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder: whole or not at all, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, content: Any) -> None:
    """As `write_bytes`, in a fixed order of keys; NaN and infinity, which JSON does not have, become null."""
    write_bytes(path, (json.dumps(_finite(content), indent=1, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> Any:
    """The file's content, None if it is not there."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def unwritable(error: BaseException | None) -> str | None:
    """What a person should do about a folder or a disk that takes no files; None for any other error."""
    if not isinstance(error, OSError):
        return None
    words = [words for words, codes in _UNWRITABLE.items() if error.errno in codes]
    if not words:
        return None
    if not error.filename:
        return f"cannot write: {words[0]}."
    place = Path(error.filename)
    in_the_way = [path for path in (place, *place.parents) if path.is_file()]
    return f"cannot write {(in_the_way or [place])[0]}: {words[0]}."


_UNWRITABLE = {
    "a file is where a folder should be; move it away": {errno.EEXIST, errno.ENOTDIR},
    "the disk is full; free some space": {errno.ENOSPC, errno.EDQUOT},
    "you may not write there; change the permissions": {errno.EACCES, errno.EPERM, errno.EROFS},
}


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {k: _finite(v) for k, v in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(v) for v in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
