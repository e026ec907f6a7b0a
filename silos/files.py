"""Writing a file so that a kill at any moment leaves the old one or the new one."""

import contextlib
import os
import time
from pathlib import Path


def write_bytes(path: Path, content: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder: whole or not at all, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()  # on a full disk it would hold the space that the next try needs
        error.filename = str(path)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
