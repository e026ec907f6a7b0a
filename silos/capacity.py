"""How much memory this process may still take: of the machine, or of the group of processes that it is confined to."""

from pathlib import Path

import psutil

_FILES = (("", "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))


def available(root: Path = Path("/")) -> int:
    """Bytes; the least of what the machine has free and what is left to each of the control groups (Linux) around."""
    return max(0, min([int(psutil.virtual_memory().available), *_left_to_groups(root)]))


def _left_to_groups(root: Path) -> list[int]:
    """Of a group without a limit there is nothing to say. Inside a container its own group lies at the root."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []  # not Linux
    left = []
    for controller, limit, usage in _FILES:
        own = [path for _, names, path in (line.split(":", 2) for line in lines) if controller in names.split(",")]
        for path in own[:1]:
            base = root / "sys/fs/cgroup" / controller
            place = base / path.lstrip("/")
            for folder in (place, *(p for p in place.parents if p.is_relative_to(base))):
                most, taken = _number(folder / limit), _number(folder / usage)
                if most is not None and taken is not None:
                    left.append(most - taken)
    return left


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is no number
        return None
