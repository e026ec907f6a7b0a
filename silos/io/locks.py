"""Who works on data/ and who changes it: any number that work, or one that changes; and locks that one process has.

The locks are the kernel's and go with their process, however it ends. A holder's name lies in a file that the holder locks:
a name that nobody locks is a dead process's.
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
_WORKS, _CHANGES = "works", "changes"
_PAUSE = 0.1  # seconds between two tries


@contextmanager
def read_lock(folder: Path, name: str, say: Say) -> Iterator[None]:
    """Nobody changes data/ meanwhile; who tries to is refused. Waits, and says so, while somebody does. May be nested.

    `folder` is where the locks lie, and `name` is what others are told.
    """
    with _named(folder, _WORKS, name), wait_for_writer(folder, say):
        yield


@contextmanager
def wait_for_writer(folder: Path, say: Say) -> Iterator[None]:
    """The same for a moment: who would change data/ waits for its end."""
    with _open(folder) as lock:
        _wait(lock, fcntl.LOCK_SH, say, lambda: _living(folder, _CHANGES))
        yield


@contextmanager
def write_lock(folder: Path, name: str, say: Say) -> Iterator[None]:
    """Nobody else works on data/, looks at it or changes it meanwhile.

    Waits, and says so, for another that changes it; UserError, with their names, while somebody works on it.
    """

    def busy() -> list[str]:
        _refuse(name, _living(folder, _WORKS))
        return _living(folder, _CHANGES, own_file)

    with _named(folder, _CHANGES, name) as own_file, _open(folder) as lock:
        _wait(lock, fcntl.LOCK_EX, say, busy)
        yield


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Only one process works on a run; UserError for the second. The lock goes with the process that holds it."""
    path = folder / ".lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("w") as lock:
            if not _take(lock.fileno(), fcntl.LOCK_EX):
                raise UserError(f"another process is working on {folder}; wait for it, or end it.")
            if path.is_file() and path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                yield
                return
        # its last holder has thrown the folder away meanwhile, and this lock with it


def is_held(folder: Path) -> bool:
    """Whether a process works on a run, as `alone` has it."""
    return is_locked(folder / ".lock")


def workers(folder: Path) -> list[str]:
    """All names of those who work on data/ or change it now: a comparison has one of its own, and one of its present run."""
    return [name for role in (_WORKS, _CHANGES) for names in _held(folder, role).values() for name in names]


def hold(path: Path, content: str = "") -> IO[str]:
    """Create a file that is locked, before any other process can see it, until the returned file is closed.

    Without content it holds what `is_copy` reads.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unseen = path.with_name(f".{path.name}-{os.getpid()}")
    file = unseen.open("w", encoding="utf-8")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(content or _number(file))
    file.flush()
    unseen.rename(path)
    return file


def is_locked(path: Path) -> bool:
    """Return whether a process holds the file, as `hold` made it."""
    try:
        with path.open(encoding="utf-8") as file:
            return not _take(file.fileno(), fcntl.LOCK_SH)
    except OSError:  # there is none
        return False


def is_copy(path: Path) -> bool:
    """Return whether this is a copy of a file that `hold` made, as in a copied folder: no process ever locked it."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read() != _number(file)
    except FileNotFoundError:
        return False


@contextmanager
def in_turn(file: Path) -> Iterator[None]:
    """One process at a time; the others wait, and nobody is told: for what takes a moment. `file` is only the lock."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _wait(lock: int, kind: int, say: Say, busy: Callable[[], list[str]]) -> None:
    """Until the lock is ours."""
    said = False
    while not _take(lock, kind):
        names = busy()
        if names and not said:
            say(f"waiting for {' and '.join(names)} to end")
            said = True
        time.sleep(_PAUSE)


def _refuse(name: str, workers: list[str]) -> None:
    if workers:
        some = ", ".join(workers[:3]) + (f" and {len(workers) - 3} more" if len(workers) > 3 else "")
        raise UserError(
            f"{name} would change data/ under {some}, at work on it now; wait for the end, or stop that: --resume goes on "
            "later, on the version of data/ that it began with."
        )


@contextmanager
def _named(folder: Path, role: str, name: str) -> Iterator[Path]:
    """A file with the holder's name, locked before anybody can see it, gone in the end."""
    path = folder / f"{role}-{os.getpid()}-{secrets.token_hex(4)}"
    with hold(path, name):
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def _living(folder: Path, role: str, own_file: Path | None = None) -> list[str]:
    """The names of the processes in this role, each one's longest, but for `own_file`."""
    return [max(names, key=len) for names in _held(folder, role, own_file).values()]


def _held(folder: Path, role: str, own_file: Path | None = None) -> dict[str, list[str]]:
    """Process to its names in this role, but for `own_file`; what dead ones left is cleaned up."""
    names: dict[str, list[str]] = {}
    for path in sorted(folder.glob(f"{role}-*")):
        if path == own_file:
            continue
        try:
            with path.open(encoding="utf-8") as file:
                if _take(file.fileno(), fcntl.LOCK_SH):
                    path.unlink(missing_ok=True)
                else:
                    names.setdefault(path.name.split("-")[1], []).append(file.read())
        except FileNotFoundError:
            continue  # it ended just now
    return names


@contextmanager
def _open(folder: Path) -> Iterator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as file:
        yield file.fileno()


def _number(file: IO[str]) -> str:
    """Return the number of the inode, which a file keeps when it is moved within its file system."""
    return str(os.fstat(file.fileno()).st_ino)


def _take(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
