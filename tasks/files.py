"""Writing small files so that a kill at any moment leaves the old one or the new one."""

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


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {k: _finite(v) for k, v in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(v) for v in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
