"""Whether a file system is full, and which one that is."""

import os
import shutil
from pathlib import Path

ROOM = 2**19  # bytes; the tables of Prefect's server take as much


def full_disk(place: Path) -> str | None:
    """Return a clause that names the file system of the place if it has no room for a database; None if it has room."""
    if shutil.disk_usage(place).free >= ROOM:
        return None
    return f"the file system {file_system(place)} is full; free some space"


def file_system(place: Path) -> Path:
    """Return the folder at which the file system of the place is mounted."""
    place = place.resolve()
    return next(folder for folder in (place, *place.parents) if os.path.ismount(folder))
