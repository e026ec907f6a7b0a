"""Start Prefect's API server for a command, and end it with the command.

The server is a child that watches a pipe from its parent and ends when the pipe closes. So even a kill -9 of the parent
leaves no orphan. Its output goes to a file. A server of PREFECT_API_URL, or one that runs in this project already, is
used instead.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO

from flows import SETTINGS, quiet_prefect
from flows.core.console import progress
from flows.orchestration.servers import prefect_process
from flows.orchestration.servers.prefect_process import ADDRESS, PORT, USERS
from silos.errors import UserError
from silos.io.addresses import has_password, health_answers, listening_socket, must_be_reachable
from silos.io.memory_and_disk import full_disk

_OTHER_DATABASE = ("Can't locate revision", "file is not a database", "disk image is malformed")
"""How Alembic and SQLite say that a file is another version's database, or none."""


class PrefectServer:
    """A server on a loopback port, with its database in `.prefect/` of the project.

    Args:
        root: The project's folder.
        ui: Whether it has Prefect's pages; it is then offered to other commands while it runs.
        port: The port that is tried first, before any free one.
        own: Whether no other port and no running server may be used.
    """

    def __init__(self, root: Path, ui: bool = False, port: int | None = None, own: bool = False) -> None:
        self.root, self.home = root, (root / ".prefect").resolve()
        quiet_prefect()
        self._child: subprocess.Popen | None = None
        self._since = datetime.now(UTC).isoformat()
        self._lock: IO[str] | None = None
        self._is_published = False
        self._joined: prefect_process.RunningServer | None = None
        self._restarter: threading.Thread | None = None
        self._child_lock = threading.Lock()
        self.restarts = 0
        if os.environ.get("PREFECT_API_URL"):
            os.environ.setdefault("PREFECT_HOME", str(self.home))
            self.url = os.environ["PREFECT_API_URL"] = os.environ["PREFECT_API_URL"].rstrip("/")
            if has_password(self.url):
                raise UserError(
                    "PREFECT_API_URL: got a password, expected none. Remove it, and set "
                    "PREFECT_API_AUTH_STRING=user:password."
                )
            must_be_reachable(self.url)
            return
        self._joined = None if own else prefect_process.join_server(self.home)
        if self._joined is None:
            self._start(ui, _bind(port, own))
        else:
            self.url = self._joined.url
        # target of links to Prefect's page; a server without pages is gone when a user follows them
        self._page = self.url.removesuffix("/api") if ui or self._joined else f"http://127.0.0.1:{PORT}"
        self.select()

    def select(self) -> None:
        """Make this project's server that of the process, without what the user has set for another one."""
        for name in prefect_variables():
            del os.environ[name]
        os.environ |= {**_own_settings(self.home), "PREFECT_API_URL": self.url, "PREFECT_UI_URL": self._page}

    def _start(self, ui: bool, listener: socket.socket) -> None:
        self.log = self.home / "server.log"
        self.home.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        self._ui, self._listener = ui, listener
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        self._environment = server_environment(self.home, self.url, ui)
        self._spawn()

    def _spawn(self) -> None:
        listener = self._listener
        self._lock = prefect_process.lock_server(self.home) if self._ui else None
        offered = [self.home / name for name in (ADDRESS, USERS)] if self._lock else []
        command = [sys.executable, "-P", "-m", prefect_process.__name__, listener.fileno(), self.home / "tables.lock"]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*map(str, [*command, *offered])],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self.home,  # no prefect.toml, pyproject.toml or .env of the user's is there
                start_new_session=True,
                pass_fds=[listener.fileno(), *([self._lock.fileno()] if self._lock else [])],
            )

    @property
    def pid(self) -> int | None:
        """Return the process of the server, if it was started here."""
        child = self._child
        return None if child is None else child.pid

    def answers(self, patience: float = 0.1) -> bool:
        """Return whether the server answers now, so that nothing waits for its start."""
        return health_answers(self.url, patience)

    def alive(self) -> bool:
        """Return whether a server started here is running or being restarted."""
        if self._restarter is not None:
            return self._restarter.is_alive()
        return self._child is None or self._child.poll() is None

    def _restart(self) -> None:
        """Restart the server if it ends by itself, at its port, where clients wait, and with its database."""
        restarts = prefect_process.Restarts()
        while True:
            child, began = self._child, time.monotonic()
            assert child is not None
            child.wait()
            with self._child_lock:
                if self._child is not child:
                    return  # stopped
                if not restarts.may_start(time.monotonic() - began):
                    break
                self._spawn()
            self.restarts += 1
            progress.say("Prefect's server ended unexpectedly; a new one is started.")
            if not self._wait_for_answer(120.0):
                break
            self._publish()
        self._listener.close()  # otherwise clients would wait forever

    def wait(self, patience: float = 120.0) -> float:
        """Wait until the server answers, and return the seconds; UserError with the last line of its log if it does not."""
        start = time.perf_counter()
        if self._wait_for_answer(patience):
            self._publish()
            if self._child is not None and self._restarter is None:
                self._restarter = threading.Thread(target=self._restart, name="keeper of Prefect's server", daemon=True)
                self._restarter.start()
            return time.perf_counter() - start
        if self._child is None:
            raise UserError(f"Prefect's API at {self.url} does not respond. Start it, or unset PREFECT_API_URL.")
        full = full_disk(self.log.parent)
        if full:  # then the log may be incomplete
            raise UserError(f"Prefect's server in {self.log.parent} does not respond: {full}.")
        last = self.log.read_text(errors="replace").strip().rpartition("\n")[2].strip()
        if any(text in last for text in _OTHER_DATABASE):
            raise UserError(
                f"{self.home / 'prefect.db'}: got a database that Prefect {version('prefect')} cannot read ({last}), "
                "expected its own. Move `prefect.db*` out of that folder. Earlier runs then leave Prefect's page, but stay "
                "in runs/ and in MLflow."
            )
        quoted = f"; the last line of its log is: {last}" if last else ""
        raise UserError(f"Prefect's server in {self.log.parent} does not respond{quoted}. See {self.log.name} there.")

    def _wait_for_answer(self, patience: float) -> bool:
        """Wait until the server answers; return False if it ends by itself, or does not answer for `patience` seconds."""
        end = time.monotonic() + patience
        while time.monotonic() < end and (self._child is None or self._child.poll() is None):
            if self.answers(patience=2):
                return True
            time.sleep(0.03)
        return False

    def _publish(self) -> None:
        """Let other commands use a server that stays; from now on the child holds the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            self._is_published = True
            prefect_process.publish_address(self.home, self.url)

    def settle(self, tasks: int, patience: float = 15.0) -> None:
        """Wait until the server has recorded `tasks` task runs of this process.

        Records arrive as events after the work itself; a server stopped at once would lose the last ones.
        """
        from prefect.client.orchestration import get_client
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        if self._child is None or not self.alive() or not tasks:
            return
        EventsWorker.drain_all(timeout=patience)
        APILogWorker.drain_all(timeout=patience)
        ended = {
            "state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}},
            "start_time": {"after_": self._since},
            "subflow_runs": {"exists_": False},  # the runner does not count the task run of a subflow
        }
        end = time.monotonic() + patience
        with get_client(sync_client=True) as client:
            while time.monotonic() < end:
                if client.request("POST", "/task_runs/count", json={"task_runs": ended}).json() >= tasks:
                    return
                time.sleep(0.05)

    def is_gone(self) -> bool:
        """Return whether the server accepts nothing more from this process: `stop` will end it, or it does not answer."""
        return self._child is not None or not self._wait_for_answer(2.0)

    def stop(self) -> bool:
        """End the server that was started here, unless other commands use it; return whether none of it is left.

        A server that another command started is unchanged.
        """
        if self._joined is not None:
            self._joined.share.close()
        if self._child is None:
            return True
        os.environ.pop("PREFECT_API_URL", None)
        with self._child_lock:
            child, self._child = self._child, None
        self._listener.close()
        assert child.stdin is not None
        used = self._in_use()  # checked before its end, when it checks this itself
        child.stdin.close()
        if used:
            return False
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            if self._in_use():
                return False
            child.kill()
            child.wait()
        return True

    def _in_use(self) -> bool:
        return self._is_published and prefect_process.in_use(self.home)


def prefect_variables() -> dict[str, str]:
    """Return the variables of the environment that Prefect reads, in capitals or not."""
    return {name: value for name, value in os.environ.items() if name.upper().startswith("PREFECT_")}


def _own_settings(home: Path) -> dict[str, str]:
    return {**SETTINGS, "PREFECT_HOME": str(home), "PREFECT_PROFILES_PATH": os.devnull}


def server_environment(home: Path, url: str, ui: bool) -> dict[str, str]:
    """Return the environment of the project's own server: nothing of Prefect's in it comes from the user."""
    of_user = prefect_variables()
    return {
        **{name: value for name, value in os.environ.items() if name not in of_user},
        **_own_settings(home),
        "PREFECT_API_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:///prefect.db",  # in the server's working folder
        "PREFECT_API_DATABASE_MIGRATE_ON_START": "false",  # that is done before
        "PREFECT_SERVER_UI_ENABLED": str(ui).lower(),
        "PREFECT_UI_API_URL": url,
        # only a server that stays has deployments with triggers, and automations
        "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": str(ui).lower(),
    }


def _bind(port: int | None, own: bool) -> socket.socket:
    """Return a socket that listens at this loopback port, or at one that the system chooses; OSError if `own` and taken.

    It listens from here on: two sockets that are only bound may share a port, and clients of one would reach the other.
    """
    try:
        return listening_socket(port or 0)
    except OSError:
        if own:
            raise
        return listening_socket(0)
