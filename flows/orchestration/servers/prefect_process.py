"""Run the process of an embedded Prefect server, find the server that runs in a project, and choose its port.

The process is started as `prefect_process SOCKET LOCK [ADDRESS USERS]`: a descriptor, then files. The parent binds the
socket, because a port that is only free may be taken before Prefect is imported. Tables are created under LOCK, because
two processes that create them at the same time both fail. LOCK holds what is known of them: Prefect's version and the
last migration that this version has applied.

`siloflow ui` and `siloflow schedule` keep a server that other commands use. Its address is in `.prefect/server.json`,
and valid while the server holds `server.lock`, which the kernel releases however the server ends. Each user of the
server holds a share of `users.lock`, so the server outlives its starter and stays until the last user ends.

The port of Prefect's page is the requested one, the schedule's last one, or 4200.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import sqlite3
import sys
import time
import traceback
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from flows.core.console.process_control import end_with_parent, pause_gc, resume_gc
from silos.io.addresses import is_port, listen
from silos.io.atomic_io import write_bytes
from silos.io.locks import try_lock

_RECORDS = 1.5  # seconds in which the last task runs of a user are recorded: the recorder's interval and half of it


def wait_for_users(offered: list[str]) -> None:
    """Wait until the last process ends that uses this server, if it was offered to others."""
    if offered:
        address, users = offered
        with contextlib.suppress(OSError):  # the folder may have been deleted
            Path(address).unlink()
            fcntl.flock(os.open(users, os.O_RDONLY), fcntl.LOCK_EX)
        time.sleep(_RECORDS)


def make_tables(lock: str) -> None:
    """Create or migrate the database's tables, unless LOCK says that they are current; an error is the log's last line."""
    from prefect.server.database import provide_database_interface

    interface = provide_database_interface()
    dialect, _, file = str(interface.database_config.connection_url).partition(":///")
    sqlite = file if dialect.startswith("sqlite") and "?" not in file and ":memory:" not in file else None
    with Path(lock).open("a+") as known:
        fcntl.flock(known, fcntl.LOCK_EX)
        known.seek(0)
        if sqlite is not None and known.read() == _applied(sqlite):
            return
        try:
            asyncio.run(interface.create_db())
        except Exception as error:
            traceback.print_exc()
            sys.exit(str(error).partition("\n")[0])
        known.truncate(0)
        if sqlite is not None:
            known.write(_applied(sqlite))


def _applied(database: str) -> str:
    """Return Prefect's version and the database's last migration; without the latter if it has no tables."""
    revisions: list[tuple[str]] = []
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(database)) as connection:
        revisions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    return " ".join([version("prefect"), *(revision for (revision,) in revisions)])


def main(descriptor: str, lock: str, *offered: str) -> None:
    """Serve until the parent is gone."""
    end_with_parent(lambda: wait_for_users([*offered]))
    pause_gc()
    make_tables(lock)
    import uvicorn

    app = "prefect.server.api.server:create_app"
    resume_gc()
    config = uvicorn.Config(app, factory=True, log_level="warning", timeout_keep_alive=10)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main(*sys.argv[1:])


class Restarts:
    """Decides whether a server that ended by itself is started again: at most three times in a row after a short life."""

    STABLE, MOST = 60.0, 3  # seconds of a life that is not short, and restarts

    def __init__(self) -> None:
        self._short = 0  # lives in a row

    def may_start(self, life: float) -> bool:
        """Return whether to start it again after it has run for this number of seconds."""
        self._short = 0 if life > self.STABLE else self._short + 1
        return self._short <= self.MOST


ADDRESS, SERVER_LOCK, USERS = "server.json", "server.lock", "users.lock"
_PATIENCE = 2.0  # seconds to wait for a response over loopback


@dataclass(frozen=True)
class RunningServer:
    """A server that another process keeps, used until `share` is closed or this process ends."""

    url: str
    share: IO[str]


def join_server(home: Path) -> RunningServer | None:
    """Return the server that runs here, if it answers and has this version of Prefect; remove the address of a dead one."""
    if not (home / ADDRESS).is_file():
        return None
    share = (home / USERS).open("a")
    url = _address(home) if try_lock(share.fileno(), fcntl.LOCK_SH) else None  # otherwise it is about to end
    if url is None:
        share.close()
        return None
    return RunningServer(url, share)


def lock_server(home: Path) -> IO[str] | None:
    """Return the lock that the server to be started holds while it lives; None if another server holds it."""
    lock = (home / SERVER_LOCK).open("a")
    if try_lock(lock.fileno(), fcntl.LOCK_EX):
        return lock
    lock.close()
    return None


def publish_address(home: Path, url: str) -> None:
    """Write the server's address for other commands."""
    write_bytes(home / ADDRESS, json.dumps({"url": url, "prefect": version("prefect")}).encode())


def in_use(home: Path) -> bool:
    """Return whether another command uses the offered server."""
    with (home / USERS).open("a") as users:
        return not try_lock(users.fileno(), fcntl.LOCK_EX)


def _address(home: Path) -> str | None:
    with (home / SERVER_LOCK).open("a") as lock:
        if try_lock(lock.fileno(), fcntl.LOCK_SH):
            (home / ADDRESS).unlink(missing_ok=True)
            return None
    try:
        saved = json.loads((home / ADDRESS).read_bytes())
        url = str(saved["url"])
        if saved["prefect"] != version("prefect"):
            return None
        urllib.request.urlopen(f"{url}/health", timeout=_PATIENCE).close()
    except (OSError, urllib.error.URLError, ValueError, KeyError, TypeError):
        return None
    return url


PORT = 4200


def ui_address(port: int | None, option: str) -> dict[str, Any]:
    """Return PrefectServer's options for the requested port, or for the default; UserError if the port is taken."""
    if port is None:
        return {"port": PORT}
    must_be_free(port, option)
    return {"port": port, "own": True}


def last_port(root: Path, port: int | None) -> dict[str, Any]:
    """Return the options for a schedule, whose page keeps its last port."""
    with contextlib.suppress(OSError, ValueError):
        last = int(_port_file(root).read_text())
        if port is None and is_port(last):
            return {"port": last}
    return ui_address(port, "--port")


def save_port(root: Path, url: str) -> None:
    """Save the port for the next schedule's page."""
    write_bytes(_port_file(root), f"{urlsplit(url).port}\n".encode())


def must_be_free(port: int, option: str) -> None:
    """Raise UserError if the port is invalid or taken, because another program's page would look like this one."""
    listen(port, option).close()


def _port_file(root: Path) -> Path:
    return root / ".prefect" / "schedule-port"
