"""Atomic writes of files and folders: a kill at any moment leaves the old content or the new."""

import contextlib
import glob
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def is_there(path: Path) -> bool:
    """Return whether there is such a file; False for names that no file can have."""
    try:
        return path.is_file()
    except OSError:  # the name is too long
        return False


def file_stamp(path: str | Path) -> tuple[int, int, int, int]:
    """Return what changes with a file's content: size, modification time, inode and change time; OSError if there is none.

    The change time cannot be set back; it may change without a write.
    """
    status = os.stat(path)  # noqa: PTH116 - making a Path would cost as much again
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def write_bytes(path: Path, content: bytes, folder_too: bool = True) -> None:
    """Write the content as `writing` does."""
    with writing(path, folder_too) as file:
        file.write(content)


@contextlib.contextmanager
def writing(path: Path, folder_too: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file; on exit fsync it, rename it, and fsync the folder: all or nothing, even after a power cut.

    Without the fsync of the folder, which `sync_folder` can do once for several files, the name may be lost in a power
    cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()  # on a full disk the next attempt needs the space
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    if folder_too:
        sync_folder(path.parent)


def unfinished(folder: Path) -> dict[Path, str]:
    """Return the temporary files of `writing` in this folder, with the names that they were to get.

    Files that another process is still writing look the same; the caller must tell them apart.
    """
    return {path: path.name[1:].rsplit(".", 3)[0] for path in folder.glob(".*.tmp")}


def sync_folder(folder: Path) -> None:
    """Flush the folder to disk, so that the names of its files survive a power cut."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def leftovers(folder: Path) -> tuple[Path, Path]:
    """Return the names, new and old, for replacing a folder, after cleaning up what a killed process left there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    restore_moved(folder.parent)
    home = _staging_folder(folder.parent)
    new, old = (home / f".{folder.parent.name}-{folder.name}.{end}" for end in ("new", "old"))
    for path in (new, old):
        if path.exists():
            shutil.rmtree(path)
    return new, old


def restore_moved(parent: Path) -> None:
    """Move back each folder of `parent` that a killed process moved aside and did not replace."""
    prefix = f".{parent.name}-"
    waiting = _staging_folder(parent).glob(f"{glob.escape(prefix)}*.old") if parent.is_dir() else ()
    for old in waiting:
        folder = parent / old.name.removeprefix(prefix).removesuffix(".old")
        if not folder.exists():
            with contextlib.suppress(FileNotFoundError):  # another process just moved it
                old.rename(folder)


def _staging_folder(parent: Path) -> Path:
    """Return where folders of `parent` wait to be renamed: outside of it, so that the data version stays the same."""
    home = parent.resolve().parent
    same = home.stat().st_dev == parent.stat().st_dev
    return home if same else parent  # data/ may be a mount, which no rename crosses
