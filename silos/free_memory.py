"""What a machine's memory still holds, and a sentence instead of what the kernel does to those who take more."""

from pathlib import Path

from silos.errors import UserError

_GROUPS = (  # limit and use of a container, and of that what is only a cache: cgroups of version 2, then of version 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def free_bytes() -> int:
    """What may still be taken: of the machine's memory, and of the container's where that is less."""
    import psutil

    rooms = [int(psutil.virtual_memory().available)]
    for limit, used, cache in _GROUPS:
        try:
            told = dict(line.split() for line in Path(used).with_name("memory.stat").read_text().splitlines())
            rooms.append(int(Path(limit).read_text()) - int(Path(used).read_text()) + int(told.get(cache, 0)))
        except (OSError, ValueError):  # no such group, or one without a limit
            continue
    return max(0, min(rooms))


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
