"""Whether somebody has a file open: a server that still runs."""

from collections.abc import Sequence
from pathlib import Path

import psutil


def open_elsewhere(places: Sequence[Path]) -> bool:
    """Whether a process of this user has one of these files open."""
    wanted = {str(place.resolve()) for place in places}
    for process in psutil.process_iter():
        try:
            if any(file.path in wanted for file in process.open_files()):
                return True
        except (psutil.Error, OSError):
            continue  # it ended, or is another's
    return False
