"""The memory that this process may still take, with an error instead of the kernel's kill, and whether a disk is full."""

import os
import shutil
from pathlib import Path

import psutil

from silos.errors import UserError

# controller, limit, usage, cached part of the usage: Linux control groups of version 2, then of version 1
_CONTROL_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_DATABASE_BYTES = 2**19  # bytes; the tables of Prefect's server take about as much


def free_bytes(root: Path = Path("/")) -> int:
    """Return the least of the machine's free memory and what each enclosing control group has left."""
    return max(0, min([int(psutil.virtual_memory().available), *_left_in_control_groups(root)]))


def must_fit(needed: int, what: str, way_out: str, free: int | None = None) -> None:
    """Raise UserError if `what` needs more bytes than are free; `free` defaults to this machine's."""
    free = free_bytes() if free is None else free
    if needed > free:
        raise UserError(
            f"{what}, which needs {size(needed)} of memory, expected at most the {size(free)} that are free. {way_out}."
        )


def size(count: int) -> str:
    """Format a number of bytes."""
    for unit, power in (("TB", 4), ("GB", 3), ("MB", 2)):
        if count >= 1000**power:
            return f"{count / 1000**power:,.1f} {unit}"
    return f"{count / 1000:,.1f} kB"


def full_disk(path: Path) -> str | None:
    """Return a clause that names the path's file system if it has no room for a database; None if it has room."""
    if shutil.disk_usage(path).free >= _DATABASE_BYTES:
        return None
    return f"the file system {file_system(path)} is full. Free some space"


def file_system(path: Path) -> Path:
    """Return the folder at which the path's file system is mounted."""
    path = path.resolve()
    return next(folder for folder in (path, *path.parents) if os.path.ismount(folder))


def _left_in_control_groups(root: Path) -> list[int]:
    """Return what is left in each control group with a limit; inside a container, its group lies at the root."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []  # not Linux
    remainders = []
    for controller, limit, usage, cache in _CONTROL_FILES:
        paths = [path for _, names, path in (line.split(":", 2) for line in lines) if controller in names.split(",")]
        for path in paths[:1]:
            base = root / "sys/fs/cgroup" / controller
            leaf = base / path.lstrip("/")
            for folder in (leaf, *(parent for parent in leaf.parents if parent.is_relative_to(base))):
                limit_bytes, used_bytes = _read_int(folder / limit), _read_int(folder / usage)
                if limit_bytes is not None and used_bytes is not None:
                    remainders.append(limit_bytes - used_bytes + _reclaimable_bytes(folder / "memory.stat", cache))
    return remainders


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" means no limit
        return None


def _reclaimable_bytes(path: Path, name: str) -> int:
    """Return the bytes that the kernel frees on demand."""
    try:
        return int(dict(line.split(" ", 1) for line in path.read_text().splitlines()).get(name, 0))
    except (OSError, ValueError):
        return 0
