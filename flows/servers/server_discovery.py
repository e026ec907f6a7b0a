"""A server of Prefect's that runs in this project already: `siloflow ui` and `siloflow schedule` keep one, others use it.

Its address is in `.prefect/server.json`, and good while the server holds `server.lock`, which the kernel takes from it
however it ends. Whoever uses it holds a share of `users.lock`: a server whose keeper is gone stays until nobody does.
"""

import fcntl
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO

from silos.io.atomic_io import write_bytes

ADDRESS, KEPT, USERS = "server.json", "server.lock", "users.lock"
_PATIENCE = 2.0  # seconds for an answer over loopback


@dataclass(frozen=True)
class Running:
    """A server that somebody else keeps, held until `share` is closed, or the process ends."""

    url: str
    share: IO[str]


def join(home: Path) -> Running | None:
    """The server that runs here, if it answers and is of this Prefect; what a dead one has left is removed."""
    if not (home / ADDRESS).is_file():
        return None
    share = (home / USERS).open("a")
    url = _address(home) if _taken(share, fcntl.LOCK_SH) else None  # else it is about to end
    if url is None:
        share.close()
        return None
    return Running(url, share)


def keep(home: Path) -> IO[str] | None:
    """What the server that is about to start shall hold while it lives; None where another holds it."""
    lock = (home / KEPT).open("a")
    if _taken(lock, fcntl.LOCK_EX):
        return lock
    lock.close()
    return None


def offer(home: Path, url: str) -> None:
    """From now on others use the server at this address."""
    write_bytes(home / ADDRESS, json.dumps({"url": url, "prefect": version("prefect")}).encode())


def in_use(home: Path) -> bool:
    """Whether anybody uses the server that was offered."""
    with (home / USERS).open("a") as users:
        return not _taken(users, fcntl.LOCK_EX)


def _address(home: Path) -> str | None:
    with (home / KEPT).open("a") as lock:
        if _taken(lock, fcntl.LOCK_SH):
            (home / ADDRESS).unlink(missing_ok=True)
            return None
    try:
        said = json.loads((home / ADDRESS).read_bytes())
        url = str(said["url"])
        if said["prefect"] != version("prefect"):
            return None
        urllib.request.urlopen(f"{url}/health", timeout=_PATIENCE).close()
    except (OSError, urllib.error.URLError, ValueError, KeyError, TypeError):
        return None
    return url


def _taken(lock: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
