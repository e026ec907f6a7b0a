"""DVC's hash of a folder, computed without DVC."""

import hashlib
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

_Stamp = tuple[int, int, int, int]


def folder_digest(folder: Path, cache: Path | None = None) -> str:
    """DVC's hash of a folder, "<md5>.dir", computed without DVC.

    `cache` is a JSON file that remembers the hashes of files by path, size, time and inode.
    """
    return listing_digest(file_hashes(Path(folder), cache))


def file_hashes(folder: Path, cache: Path | None) -> dict[str, str]:
    """The md5 of each file under `folder`, by its path in it; `cache` as in `folder_digest`."""
    known = _read_cache(cache)
    seen: dict[str, list] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
        relative = path.relative_to(folder).as_posix()
        old = known.get(relative)
        seen[relative] = old if old is not None and old[:3] == stamp else [*stamp, _md5(path)]
    if cache is not None and seen != known:
        _write_cache(cache, seen)
    return {relative: entry[3] for relative, entry in seen.items()}


@lru_cache
def code_digest() -> str:
    """A hash of the code that makes silos: other code may make other bytes of the same recipe."""
    package = Path(__file__).parents[1]
    sources = {path.relative_to(package).as_posix(): _md5(path) for path in sorted(package.rglob("*.py"))}
    return listing_digest(sources)


def listing_digest(hashes: Mapping[str, str]) -> str:
    """DVC's hash of a folder whose files have these md5s."""
    listing = [{"md5": md5, "relpath": relative} for relative, md5 in sorted(hashes.items())]
    return hashlib.md5(json.dumps(listing).encode(), usedforsecurity=False).hexdigest() + ".dir"


def file_digest(path: str) -> str:
    """A file's md5: hashed where a process first asks for it, and again at another stamp, so cheap at every opening.

    Raises OSError, as for a file that is gone.
    """
    status = os.stat(path)  # noqa: PTH116 - making a Path would cost as much again
    # the last one nobody can put back; it also moves when nothing was written, and then the hash decides
    stamp = (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
    held = _hashed.get(path)
    if held is None or held[0] != stamp:
        if len(_hashed) >= _MOST:
            _hashed.clear()  # a hash that is forgotten costs time, and nothing else
        held = _hashed[path] = (stamp, _md5(Path(path)))
    return held[1]


_MOST = 100_000  # files that a process remembers
# what this process found in the files that it opened, by path
_hashed: dict[str, tuple[_Stamp, str]] = {}


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _read_cache(cache: Path | None) -> dict[str, list]:
    try:
        held = json.loads(cache.read_bytes()) if cache is not None else {}
    except (OSError, ValueError):
        return {}  # it only saves time
    if not isinstance(held, dict):
        return {}
    return {path: entry for path, entry in held.items() if isinstance(entry, list) and len(entry) == 4}


def _write_cache(cache: Path, seen: dict[str, list]) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    unfinished = cache.with_name(f"{cache.name}.{os.getpid()}.tmp")
    unfinished.write_text(json.dumps(seen))
    unfinished.replace(cache)
