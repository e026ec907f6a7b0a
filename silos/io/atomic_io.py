"""Writing a file, or a folder, so that a kill at any moment leaves the old or the new; and whether one is there at all."""

import contextlib
import glob
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def is_there(path: Path) -> bool:
    """Whether there is such a file; there is none of a name that no file can have."""
    try:
        return path.is_file()
    except OSError:  # too long
        return False


def write_bytes(path: Path, content: bytes, folder_too: bool = True) -> None:
    """The content, as `writing` has it."""
    with writing(path, folder_too) as file:
        file.write(content)


@contextlib.contextmanager
def writing(path: Path, folder_too: bool = True) -> Iterator[BinaryIO]:
    """Temporary file, fsync, rename, fsync of the folder: whole or not at all, also after a power cut.

    Without the last, which `sync_folder` may do for several files, it is there only for as long as there is power.
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
            temporary.unlink()  # on a full disk it would hold the space that the next try needs
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    if folder_too:
        sync_folder(path.parent)


def unfinished(folder: Path) -> dict[Path, str]:
    """What a killed process had begun to write in this folder, and the name that it was to have.

    What is being written there now looks the same: the caller knows whose it may be.
    """
    return {path: path.name[1:].rsplit(".", 3)[0] for path in folder.glob(".*.tmp")}


def sync_folder(folder: Path) -> None:
    """Returns once a power cut leaves the names of the folder's files as they are."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def leftovers(folder: Path) -> tuple[Path, Path]:
    """The two names used while a folder is written, after undoing what a killed process left under them: new, old."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    restore_moved(folder.parent)
    home = _outside(folder.parent)
    new, old = (home / f".{folder.parent.name}-{folder.name}.{end}" for end in ("new", "old"))
    for leftover in (new, old):
        if leftover.exists():
            shutil.rmtree(leftover)
    return new, old


def restore_moved(parent: Path) -> None:
    """Moves each folder of `parent` back that a process moved aside and was killed before the new one was in its place."""
    prefix = f".{parent.name}-"
    waiting = _outside(parent).glob(f"{glob.escape(prefix)}*.old") if parent.is_dir() else ()
    for old in waiting:
        folder = parent / old.name.removeprefix(prefix).removesuffix(".old")
        if not folder.exists():
            with contextlib.suppress(FileNotFoundError):  # another process has just moved it
                old.rename(folder)


def _outside(parent: Path) -> Path:
    """Return where folders of `parent` wait to be moved there: outside, so that the data's version stays the same."""
    home = parent.resolve().parent
    same = home.stat().st_dev == parent.stat().st_dev
    return home if same else parent  # data/ may be a mount of its own, which no rename leaves
