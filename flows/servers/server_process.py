"""The process of an embedded Prefect server: prefect_child SOCKET LOCK [ADDRESS USERS], the first a descriptor, then files.

The socket was bound by the parent: a port that is only known to be free may be another's by the time Prefect is imported.
Two that make the tables of one database at the same time would both fail, so that is done under LOCK.

A server of Prefect's that runs in this project already: `siloflow ui` and `siloflow schedule` keep one, others use it.

Its address is in `.prefect/server.json`, and good while the server holds `server.lock`, which the kernel takes from it
however it ends. Whoever uses it holds a share of `users.lock`: a server whose keeper is gone stays until nobody does.

At which loopback port Prefect's page is: the one that is asked for, a schedule's last one, or 4200.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import sys
import threading
import traceback
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from flows.console import gc_tuning
from silos.errors import UserError
from silos.io.atomic_io import write_bytes
from tasks.tracking.error_messages import is_port


def watch(offered: list[str]) -> None:
    """Ends the process when the parent is gone; a server that was offered to others stays for those who use it."""
    while os.read(0, 4096):
        pass
    if offered:
        address, users = offered
        with contextlib.suppress(OSError):  # somebody may have thrown the folder away
            Path(address).unlink()
            fcntl.flock(os.open(users, os.O_RDONLY), fcntl.LOCK_EX)
    os._exit(0)


def make_tables(lock: str) -> None:
    """Makes or migrates them; the last line of the log is what was wrong."""
    from prefect.server.database import provide_database_interface

    with Path(lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            asyncio.run(provide_database_interface().create_db())
        except Exception as error:
            traceback.print_exc()
            sys.exit(str(error).partition("\n")[0])


def main(descriptor: str, lock: str, *offered: str) -> None:
    """Serves until the parent is gone."""
    threading.Thread(target=watch, args=([*offered],), daemon=True).start()
    gc_tuning.pause_gc()
    make_tables(lock)
    import uvicorn

    app = "prefect.server.api.server:create_app"
    gc_tuning.resume_gc()
    config = uvicorn.Config(app, factory=True, log_level="warning", timeout_keep_alive=10)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main(*sys.argv[1:])


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


PORT = 4200


def ui_address(port: int | None, option: str) -> dict[str, Any]:
    """What PrefectServer is told of the port that is asked for, UserError if it is taken; of none, where it tries first."""
    if port is None:
        return {"port": PORT}
    must_be_free(port, option)
    return {"port": port, "own": True}


def last_port(root: Path, port: int | None) -> dict[str, Any]:
    """The same for a schedule, whose page stays where it was."""
    with contextlib.suppress(OSError, ValueError):
        before = int(_file(root).read_text())
        if port is None and is_port(before):
            return {"port": before}
    return ui_address(port, "--port")


def save_port(root: Path, url: str) -> None:
    """The next schedule's page is there, too."""
    write_bytes(_file(root), f"{urlsplit(url).port}\n".encode())


def must_be_free(port: int, option: str) -> None:
    """Else the page of whoever listens there would be taken for ours."""
    if not is_port(port):
        raise UserError(f"{option} is {port}, and ports are numbers from 1 to 65535.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(f"port {port} cannot be used ({error.strerror}); choose another {option}.") from None


def _file(root: Path) -> Path:
    return root / ".prefect" / "schedule-port"
