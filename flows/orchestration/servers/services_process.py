"""Keep Prefect's server, MLflow's server and a worker running: the process that `siloflow up` starts.

The keeper has a session of its own, so it outlives the terminal. It starts a service again that has ended. If the
keeper itself is killed, each service notices: it watches a pipe from the keeper and ends when the pipe closes.

It is started as `services_process keep PIPE ROOT PREFECT_PORT MLFLOW_PORT`, with the store's address in
MLFLOW_BACKEND_STORE_URI, or without this variable if the store is a server elsewhere. It writes one JSON object to PIPE when
the services answer. The worker is started as `services_process work`.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from flows.core.console import progress
from flows.core.console.process_control import end_with_parent
from flows.orchestration.servers.mlflow_server import MlflowServer
from flows.orchestration.servers.prefect_process import Restarts
from flows.orchestration.servers.prefect_server import PrefectServer
from silos.errors import UserError
from silos.io.addresses import keep_loopback_direct
from silos.io.locks import hold
from tasks.tracking.json_io import write_json

FOLDER = Path("runs") / "services"
KEEPER, STATE, LOG = FOLDER / "keeper", FOLDER / "state.json", FOLDER / "keeper.log"
"""The file that a living keeper holds, what it last wrote about its services, and its output."""
MODULE = "flows.orchestration.servers.services_process"  # this one, which is `__main__` in its own process
POOL = "siloflow"
"""The work pool that prefect.yaml names."""
GRACE = 5.0  # seconds for the runs of a worker to end before they are killed

_MARK = "SILOFLOW_WORKER"  # in the environment of the worker and of every process that it starts: the project's folder
_POLL = 0.5  # seconds


class Worker:
    """A process worker of Prefect for the project's work pool; its runs are processes in sessions of their own."""

    def __init__(self, root: Path, api: str) -> None:
        self.log, self._root = root / FOLDER / "worker.log", root
        # Prefect logs every task at INFO, and a run inherits the level
        environment = {**os.environ, "PREFECT_API_URL": api, "PREFECT_LOGGING_LEVEL": "WARNING", _MARK: str(root)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, "work"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=root,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the worker's process."""
        return self._process.pid

    def alive(self) -> bool:
        """Return whether the worker is running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the runs of a worker that was killed: a new worker does not know them."""
        end_runs(self._root)

    def stop(self) -> None:
        """End the runs, then the worker; a run's completed rounds are on disk."""
        end_runs(self._root, spare=self.pid)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        end_runs(self._root)  # which the worker may have started meanwhile


def end_runs(root: Path, spare: int | None = None) -> None:
    """End the processes of this project's worker, except `spare`: first by a signal that lets a run save its state."""
    marked = [process for process in _marked(root) if process.pid != spare]
    for stop in (psutil.Process.terminate, psutil.Process.kill):
        for process in marked:
            with suppress(psutil.Error):
                stop(process)
        _, marked = psutil.wait_procs(marked, GRACE)


def _marked(root: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it ended, or belongs to another user
            if process.environ().get(_MARK) == str(root) and process.pid != os.getpid():
                yield process


def work() -> None:
    """Run the worker until the keeper is gone."""
    end_with_parent(lambda: end_runs(Path(os.environ[_MARK]), spare=os.getpid()))
    from prefect.workers.process import ProcessWorker

    asyncio.run(ProcessWorker(work_pool_name=POOL, name=POOL).start())


class _Log(progress.ProgressSink):
    """Writes lines with their time to the keeper's log."""

    def say(self, line: str) -> None:
        sys.stderr.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {line}\n")
        sys.stderr.flush()


class _Keeper:
    """Starts the services of one project, watches them, and ends them.

    Args:
        root: The project's folder.
        prefect_port: The port of Prefect's server.
        mlflow_port: The port of MLflow's server.
        store: The database that MLflow serves; None if the store is a server elsewhere.
    """

    def __init__(self, root: Path, prefect_port: int, mlflow_port: int, store: str | None) -> None:
        self._root, self._mlflow_port, self._store = root, mlflow_port, store
        self._restarts = {"prefect": 0, "mlflow": 0, "worker": 0}
        self._judges = {"mlflow": Restarts(), "worker": Restarts()}
        self._began: dict[str, float] = {}
        self._written: Any = None
        self._worker: Worker | None = None
        self._mlflow: MlflowServer | None = None
        self._prefect = PrefectServer(root, ui=True, port=prefect_port, own=True)

    def start(self) -> None:
        """Start everything; UserError if a service does not answer."""
        self._start("mlflow")
        self._prefect.wait()
        self._start("worker")
        if self._mlflow is not None:
            self._mlflow.wait()
        self._wait_for_pool()
        self._write()

    def watch(self, stopped: threading.Event) -> None:
        """Start services again until `stopped`; UserError if one keeps ending."""
        while not stopped.wait(_POLL):
            if not self._prefect.alive():
                raise UserError(f"Prefect's server ended unexpectedly. See {self._prefect.log}.")
            for name, service in (("mlflow", self._mlflow), ("worker", self._worker)):
                if service is not None and not service.alive():
                    service.kill()
                    self._restart(name, service.log)
            self._restarts["prefect"] = self._prefect.restarts
            self._write()

    def stop(self) -> bool:
        """End all services; return whether Prefect's server is gone, too, which commands may still use."""
        if self._worker is not None:
            self._worker.stop()
        if self._mlflow is not None:
            self._mlflow.stop()
        return self._prefect.stop()

    def _start(self, name: str) -> None:
        self._began[name] = time.monotonic()
        if name == "worker":
            self._worker = Worker(self._root, self._prefect.url)
        elif self._store is not None:
            log = self._root / FOLDER / "mlflow.log"
            self._mlflow = MlflowServer(self._root, self._store, self._mlflow_port, log)

    def _restart(self, name: str, log: Path) -> None:
        if not self._judges[name].may_start(time.monotonic() - self._began[name]):
            raise UserError(f"{_TITLES[name]} ended unexpectedly. See {log}.")
        progress.say(f"{_TITLES[name]} ended unexpectedly; a new one is started.")
        self._restarts[name] += 1
        self._start(name)

    def _wait_for_pool(self, patience: float = 120.0) -> None:
        """Wait until the worker has registered its pool, which `prefect deploy` needs."""
        end = time.monotonic() + patience
        while time.monotonic() < end and self._worker is not None and self._worker.alive():
            try:
                urllib.request.urlopen(f"{self._prefect.url}/work_pools/{POOL}", timeout=2).close()
                return
            except OSError:
                time.sleep(0.1)
        raise UserError(f"Prefect's worker does not start. See {self._root / FOLDER / 'worker.log'}.")

    def _write(self) -> None:
        """Write the services' addresses and processes, if they have changed."""
        found: dict[str, tuple[str | None, int | None]] = {
            "prefect": (self._prefect.url.removesuffix("/api"), self._prefect.pid),
            "mlflow": (self._mlflow.page, self._mlflow.pid) if self._mlflow is not None else (None, None),
            "worker": (None, self._worker.pid if self._worker is not None else None),
        }
        state = {
            name: {"address": address, "pid": pid, "began": _start_time(pid), "restarts": self._restarts[name]}
            for name, (address, pid) in found.items()
        }
        if state != self._written:
            write_json(self._root / STATE, {"root": str(self._root), "services": state})
            self._written = state


def _start_time(pid: int | None) -> float | None:
    """Return when the process began, which distinguishes it from a later one with the same number."""
    try:
        return psutil.Process(pid).create_time() if pid else None
    except psutil.Error:
        return None


_TITLES = {"prefect": "Prefect's server", "mlflow": "MLflow's server", "worker": "Prefect's worker"}


def keep(pipe: int, root: Path, prefect_port: int, mlflow_port: int) -> None:
    """Keep the services until SIGTERM; exit code 1 if they end earlier, for a supervisor that starts them again."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # while services start
    progress.use(_Log())
    keep_loopback_direct()
    (root / STATE).unlink(missing_ok=True)
    held = hold(root / KEEPER, str(os.getpid()))
    keeper, is_ready, has_failed = None, False, False
    try:
        keeper = _Keeper(root, prefect_port, mlflow_port, os.environ.pop("MLFLOW_BACKEND_STORE_URI", None))
        keeper.start()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        _report(pipe, {})
        is_ready = True
        keeper.watch(stopped)
        write_json(root / STATE, {"root": str(root), "services": {}})
    except (UserError, OSError) as error:
        has_failed = True
        progress.say(str(error))
        write_json(root / STATE, {"root": str(root), "services": {}, "error": str(error)})
        if not is_ready:
            _report(pipe, {"error": str(error)})
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if keeper is not None and not keeper.stop():
            progress.say("Prefect's server keeps running until the command that uses it has ended.")
        (root / KEEPER).unlink()
        held.close()
    if has_failed:
        sys.exit(1)


def _report(pipe: int, message: Mapping[str, str]) -> None:
    with suppress(OSError), os.fdopen(pipe, "w") as file:  # `up` may have ended
        json.dump(message, file)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work()
    else:
        keep(int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
