"""Locks on data/: many readers or one writer; and locks of single processes.

The kernel releases a lock when its process ends, however it ends. A holder's name lies in a file that the holder locks,
so a file that is not locked is a dead process's.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from silos.errors import UserError

Say = Callable[[str], None]

_LOCK = "lock"
_READER, _WRITER = "works", "changes"
_PAUSE = 0.1  # seconds between two tries


@contextmanager
def read_lock(folder: Path, name: str, say: Say) -> Iterator[None]:
    """Keep data/ unchanged meanwhile: a writer is refused. Waits for a current writer, and says so. May be nested.

    `folder` holds the locks, and `name` is shown to other processes.
    """
    with _announced(folder, _READER, name), wait_for_writer(folder, say):
        yield


@contextmanager
def wait_for_writer(folder: Path, say: Say) -> Iterator[None]:
    """Do the same for a moment: a writer waits for its end instead of being refused."""
    with _open(folder) as lock:
        _acquire(lock, fcntl.LOCK_SH, say, lambda: _active_names(folder, _WRITER))
        yield


@contextmanager
def write_lock(folder: Path, name: str, say: Say) -> Iterator[None]:
    """Exclude all others from reading and changing data/.

    Waits for another writer, and says so.

    Raises:
        UserError: If others are reading, with their names.
    """

    def busy() -> list[str]:
        _refuse_if_busy(name, _active_names(folder, _READER))
        return _active_names(folder, _WRITER, own_file)

    with _announced(folder, _WRITER, name) as own_file, _open(folder) as lock:
        _acquire(lock, fcntl.LOCK_EX, say, busy)
        yield


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Allow only one process to work on a run; UserError for the second."""
    path = folder / ".lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("w") as lock:
            if not try_lock(lock.fileno(), fcntl.LOCK_EX):
                raise UserError(
                    f"{folder}: got a second process, expected one at a time. Wait for the other process, or end it."
                )
            if path.is_file() and path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                yield
                return
        # the last holder deleted the folder meanwhile, and this lock with it


def is_held(folder: Path) -> bool:
    """Return whether a process works on a run, under `exclusive_lock`."""
    return is_locked(folder / ".lock")


def workers(folder: Path) -> list[str]:
    """Return the names of all readers and writers of data/; a comparison has its own and its current run's."""
    return [name for role in (_READER, _WRITER) for names in _names_by_process(folder, role).values() for name in names]


def hold(path: Path, content: str = "") -> IO[str]:
    """Create a file that is locked, before other processes can see it, until the returned file is closed.

    Without content, it stores the inode number that `is_copy` reads.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    file = temporary.open("w", encoding="utf-8")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(content or _inode(file))
    file.flush()
    temporary.rename(path)
    return file


def is_locked(path: Path) -> bool:
    """Return whether a process holds the file, as `hold` made it."""
    try:
        with path.open(encoding="utf-8") as file:
            return not try_lock(file.fileno(), fcntl.LOCK_SH)
    except OSError:  # there is no such file
        return False


def is_copy(path: Path) -> bool:
    """Return whether this is a copy of a file that `hold` created, as in a copied folder, never locked by a process."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read() != _inode(file)
    except FileNotFoundError:
        return False


@contextmanager
def in_turn(file: Path) -> Iterator[None]:
    """Allow one process at a time, for short work; others wait without a message. `file` is only the lock."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _acquire(lock: int, kind: int, say: Say, busy: Callable[[], list[str]]) -> None:
    """Wait for the lock."""
    reported = False
    while not try_lock(lock, kind):
        names = busy()
        if names and not reported:
            say(f"waiting for {' and '.join(names)} to end")
            reported = True
        time.sleep(_PAUSE)


def _refuse_if_busy(name: str, workers: list[str]) -> None:
    if workers:
        names = ", ".join(workers[:3]) + (f" and {len(workers) - 3} more" if len(workers) > 3 else "")
        raise UserError(
            f"{name}: got data/ in use by {names}, expected no other user. Wait until that ends, or stop it. "
            "Later --resume continues it, on the data version with which it started."
        )


@contextmanager
def _announced(folder: Path, role: str, name: str) -> Iterator[Path]:
    """Hold a file with the holder's name, locked before other processes can see it, and delete it on exit."""
    path = folder / f"{role}-{os.getpid()}-{secrets.token_hex(4)}"
    with hold(path, name):
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def _active_names(folder: Path, role: str, excluded: Path | None = None) -> list[str]:
    """Return the longest name of each process in this role, without the file `excluded`."""
    return [max(names, key=len) for names in _names_by_process(folder, role, excluded).values()]


def _names_by_process(folder: Path, role: str, excluded: Path | None = None) -> dict[str, list[str]]:
    """Return the names of each process in this role, without the file `excluded`; delete files of dead processes."""
    names: dict[str, list[str]] = {}
    for path in sorted(folder.glob(f"{role}-*")):
        if path == excluded:
            continue
        try:
            with path.open(encoding="utf-8") as file:
                if try_lock(file.fileno(), fcntl.LOCK_SH):
                    path.unlink(missing_ok=True)
                else:
                    names.setdefault(path.name.split("-")[1], []).append(file.read())
        except FileNotFoundError:
            continue  # the process just ended
    return names


@contextmanager
def _open(folder: Path) -> Iterator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as file:
        yield file.fileno()


def _inode(file: IO[str]) -> str:
    """Return the inode number, which a file keeps when it is moved within its file system."""
    return str(os.fstat(file.fileno()).st_ino)


def try_lock(file: int, kind: int) -> bool:
    """Lock the file of a descriptor without waiting; return whether that succeeded."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
