"""Prefect's own API server, embedded: started by the command that needs it, gone with it.

It runs as a child that watches a pipe from its parent and ends when the pipe closes, so that even a kill -9 of the parent
leaves no orphan. Its output goes to a file. A server that the user names (PREFECT_API_URL) is used instead.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from silos.errors import UserError
from tasks.recording.addresses import has_password
from tasks.recording.json_files import plain_path

_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
    # task runs are recorded without it; it would store every event as well, 20 kB a task
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",  # no flow here has a block
    "PREFECT_RUNNER_HEARTBEAT_FREQUENCY": "30",
}

_PAGE = "http://127.0.0.1:4200"  # `siloflow ui`, unless its options say otherwise
_ROOM = 2**19  # bytes; its tables take as much

# The socket was bound by the parent: a port that is only known to be free may be another's by the time Prefect is imported.
# Two that make the tables of one database at the same time would both fail.
_CHILD = """
import asyncio, fcntl, os, socket, sys, threading, traceback
def watch():
    while os.read(0, 4096): pass
    os._exit(0)
threading.Thread(target=watch, daemon=True).start()
from prefect.server.database import provide_database_interface
with open(sys.argv[2], "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        asyncio.run(provide_database_interface().create_db())
    except Exception as error:
        traceback.print_exc()
        sys.exit(str(error).partition("\\n")[0])
import uvicorn
app = "prefect.server.api.server:create_app"
config = uvicorn.Config(app, factory=True, log_level="warning", timeout_keep_alive=10)
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
"""


def quiet_prefect() -> None:
    """Settings that must stand before Prefect is imported: no tracking, no notices, no log on the screen."""
    os.environ.update({k: v for k, v in _SETTINGS.items() if k not in os.environ})


class PrefectServer:
    """A server on a free loopback port, with its database in `.prefect/` of the project."""

    def __init__(self, root: Path, ui: bool = False, port: int | None = None) -> None:
        home = (root / ".prefect").resolve()
        quiet_prefect()
        os.environ.setdefault("PREFECT_HOME", str(home))
        self._child: subprocess.Popen | None = None
        self._since = datetime.now(UTC).isoformat()
        if os.environ.get("PREFECT_API_URL"):
            self.url = os.environ["PREFECT_API_URL"]
            if has_password(self.url):
                raise UserError(
                    "PREFECT_API_URL holds a password; take it out, and set PREFECT_API_AUTH_STRING=user:password."
                )
            return
        self.log = home / "server.log"
        home.mkdir(parents=True, exist_ok=True)
        log = self.log.open("wb")
        listener = _bound(port)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        environment = {
            **os.environ,
            "PREFECT_UI_ENABLED": str(ui).lower(),
            "PREFECT_SERVER_UI_ENABLED": str(ui).lower(),
            "PREFECT_UI_API_URL": self.url,
            "PREFECT_API_DATABASE_MIGRATE_ON_START": "false",  # that is done before
            **_database(Path(os.environ["PREFECT_HOME"])),
        }
        command = [sys.executable, "-c", _CHILD, str(listener.fileno()), str(home / "tables.lock")]
        with log, listener:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                pass_fds=[listener.fileno()],
            )
        os.environ["PREFECT_API_URL"] = self.url
        # what links to Prefect's page lead to: a server without one is gone when somebody follows them
        os.environ.setdefault("PREFECT_UI_URL", self.url.removesuffix("/api") if ui else _PAGE)

    def wait(self, patience: float = 120.0) -> float:
        """Seconds waited until the server answers; UserError with the last line of its log if it does not."""
        start = time.perf_counter()
        while time.perf_counter() - start < patience:
            if self._child is not None and self._child.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=2).close()
                return time.perf_counter() - start
            except (urllib.error.URLError, OSError):
                time.sleep(0.03)
        if self._child is None:
            raise UserError(f"Prefect's API at {self.url} does not answer; start it, or unset PREFECT_API_URL.")
        if shutil.disk_usage(self.log.parent).free < _ROOM:  # then the log ends anywhere
            raise UserError(
                f"Prefect's server in {self.log.parent} does not answer; the disk is full; free some space."
            )
        last = self.log.read_text(errors="replace").strip().rpartition("\n")[2].strip()
        said = f"; the last line of its log is: {last}" if last else ""
        raise UserError(f"Prefect's server in {self.log.parent} does not answer{said}; see {self.log.name} there.")

    def settle(self, tasks: int, patience: float = 15.0) -> None:
        """Waits until the server has written down this many task runs of this process.

        They reach it as events behind the work itself; a server that is stopped at once loses the last ones.
        """
        from prefect.client.orchestration import get_client
        from prefect.events.worker import EventsWorker

        if self._child is None or not tasks:
            return
        EventsWorker.drain_all(timeout=patience)
        ended = {
            "state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}},
            "start_time": {"after_": self._since},
        }
        end = time.monotonic() + patience
        with get_client(sync_client=True) as client:
            while time.monotonic() < end:
                if client.request("POST", "/task_runs/count", json={"task_runs": ended}).json() >= tasks:
                    return
                time.sleep(0.05)

    def stop(self) -> None:
        """Ends the server that was started here; another one is left alone."""
        if self._child is None:
            return
        os.environ.pop("PREFECT_API_URL", None)
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child = None


def _database(home: Path) -> dict[str, str]:
    """Prefect's own setting for its database, where the one that it makes of its folder would name another file."""
    file = home / "prefect.db"
    named = plain_path(file)
    return {} if named == str(file) else {"PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{named}"}


def _bound(port: int | None) -> socket.socket:
    """A socket at this loopback port, or at one that the system chooses."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port or 0))
    return listener
