"""DVC's hash of a folder, computed without DVC, and hashes of files."""

import hashlib
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from silos.io.atomic_io import file_stamp


def folder_digest(folder: Path, cache: Path | None = None) -> str:
    """Return DVC's hash of a folder, "<md5>.dir".

    `cache` is a JSON file that stores the hashes of files by path, size, time and inode.
    """
    return listing_digest(file_hashes(Path(folder), cache))


def file_hashes(folder: Path, cache: Path | None) -> dict[str, str]:
    """Return the md5 of each file under `folder`, by its path in it; `cache` as in `folder_digest`."""
    cached = _read_cache(cache)
    entries: dict[str, list] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
        relative = path.relative_to(folder).as_posix()
        old = cached.get(relative)
        entries[relative] = old if old is not None and old[:3] == stamp else [*stamp, _md5(path)]
    if cache is not None and entries != cached:
        _write_cache(cache, entries)
    return {relative: entry[3] for relative, entry in entries.items()}


@lru_cache
def code_digest() -> str:
    """Return a hash of the code that makes silos, since other code may make other bytes of the same params."""
    package = Path(__file__).parents[1]
    sources = {path.relative_to(package).as_posix(): _md5(path) for path in sorted(package.rglob("*.py"))}
    return listing_digest(sources)


def listing_digest(hashes: Mapping[str, str]) -> str:
    """Return DVC's hash of a folder whose files have these md5s."""
    listing = [{"md5": md5, "relpath": relative} for relative, md5 in sorted(hashes.items())]
    return hashlib.md5(json.dumps(listing).encode(), usedforsecurity=False).hexdigest() + ".dir"


def file_digest(path: str) -> str:
    """Return a file's md5, cached in this process by size, times and inode, so that it is cheap at every opening.

    Raises:
        OSError: If the file cannot be read.
    """
    stamp = file_stamp(path)
    entry = _file_digests.get(path)
    if entry is None or entry[0] != stamp:
        if len(_file_digests) >= _MAX_CACHED:
            _file_digests.clear()  # a dropped hash only costs time
        entry = _file_digests[path] = (stamp, _md5(Path(path)))
    return entry[1]


_MAX_CACHED = 100_000  # files that a process caches
# stamp and md5 of the files that this process opened, by path
_file_digests: dict[str, tuple[tuple[int, int, int, int], str]] = {}


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _read_cache(cache: Path | None) -> dict[str, list]:
    try:
        content = json.loads(cache.read_bytes()) if cache is not None else {}
    except (OSError, ValueError):
        return {}  # the cache only saves time
    if not isinstance(content, dict):
        return {}
    return {path: entry for path, entry in content.items() if isinstance(entry, list) and len(entry) == 4}


def _write_cache(cache: Path, entries: dict[str, list]) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(entries))
    temporary.replace(cache)
