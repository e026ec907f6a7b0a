"""Whether a file system is full, and which one that is."""

import os
import shutil
from pathlib import Path

ROOM = 2**19  # bytes; the tables of Prefect's server take as much


def is_full(place: Path) -> bool:
    """Return whether the file system of the place has no room left for a database."""
    return shutil.disk_usage(place).free < ROOM


def file_system(place: Path) -> Path:
    """Return the folder at which the file system of the place is mounted."""
    place = place.resolve()
    return next(folder for folder in (place, *place.parents) if os.path.ismount(folder))
