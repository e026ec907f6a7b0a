"""How much memory this process may still take, and a sentence instead of what the kernel does to those who take more."""

from pathlib import Path

import psutil

from silos.errors import UserError

# controller, limit, use, and what of that is only a cache: control groups (Linux) of version 2, then of version 1
_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_bytes(root: Path = Path("/")) -> int:
    """The least of what the machine has free and what is left to each of the groups of processes around this one."""
    return max(0, min([int(psutil.virtual_memory().available), *_left_to_groups(root)]))


def must_fit(needed: int, what: str, way_out: str, free: int | None = None) -> None:
    """UserError where `what` needs more bytes than are free: here, or where the caller looked."""
    free = free_bytes() if free is None else free
    if needed > free:
        raise UserError(f"{what} takes {size(needed)}, and {size(free)} are free here; {way_out}.")


def size(count: int) -> str:
    """Bytes as people read them."""
    for unit, power in (("TB", 4), ("GB", 3), ("MB", 2)):
        if count >= 1000**power:
            return f"{count / 1000**power:,.1f} {unit}"
    return f"{count / 1000:,.1f} kB"


def _left_to_groups(root: Path) -> list[int]:
    """Of a group without a limit there is nothing to say. Inside a container its own group lies at the root."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []  # not Linux
    remainders = []
    for controller, limit, usage, cache in _FILES:
        paths = [path for _, names, path in (line.split(":", 2) for line in lines) if controller in names.split(",")]
        for path in paths[:1]:
            base = root / "sys/fs/cgroup" / controller
            place = base / path.lstrip("/")
            for folder in (place, *(p for p in place.parents if p.is_relative_to(base))):
                most, taken = _number(folder / limit), _number(folder / usage)
                if most is not None and taken is not None:
                    remainders.append(most - taken + _cached(folder / "memory.stat", cache))
    return remainders


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is no number
        return None


def _cached(path: Path, name: str) -> int:
    """What the kernel gives up as soon as somebody needs it."""
    try:
        return int(dict(line.split(" ", 1) for line in path.read_text().splitlines()).get(name, 0))
    except (OSError, ValueError):
        return 0
