"""Provides Prefect's API to flows that a script or a notebook calls."""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect.context import refresh_global_settings_context
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows.orchestration.servers.prefect_server import PrefectServer, prefect_variables
from silos.io.addresses import loopback_direct


@contextmanager
def ephemeral_api() -> Iterator[None]:
    """Use the server of PREFECT_API_URL, or else this folder's server, which the first call starts.

    The started server stays for later calls and ends with the process. Prefect's settings are restored afterwards.
    Calls of several threads run one after another.
    """
    with _one_at_a_time:  # settings belong to the process; the lock hides those of another thread's call
        if not os.environ.get("PREFECT_API_URL"):
            with loopback_direct(), _use_own_server():
                yield
            return
    with loopback_direct():
        yield


@contextmanager
def _use_own_server() -> Iterator[None]:
    log = logging.getLogger("prefect")
    level, before = log.level, prefect_variables()
    server = _start_server(Path().resolve())
    try:
        server.select()
        refresh_global_settings_context()  # read by Prefect's own threads
        log.setLevel(logging.CRITICAL)  # Prefect logs to the screen if it was imported earlier
        server.wait()
        with (
            warnings.catch_warnings(),
            temporary_settings({PREFECT_API_URL: server.url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        ):
            warnings.filterwarnings("ignore", "IProgress not found")  # of MLflow's import in a notebook
            yield
    finally:
        _wait_for_records(server)
        log.setLevel(level)
        for name in prefect_variables():
            del os.environ[name]
        os.environ |= before
        refresh_global_settings_context()


_one_at_a_time = threading.RLock()
_server: PrefectServer | None = None
_tasks_before = 0  # task runs that this process had started before the server


def _start_server(root: Path) -> PrefectServer:
    """Return this folder's server, after ending another folder's."""
    global _server, _tasks_before
    if _server is None or _server.root != root or not _server.alive():
        if _server is not None:
            _server.stop()
        _server, _tasks_before = PrefectServer(root), _count_tasks()
    return _server


def _forget() -> None:
    """Leave the server to the parent of a forked process, because its end would wait for a thread that is not here."""
    global _one_at_a_time, _server
    _one_at_a_time, _server = threading.RLock(), None


os.register_at_fork(after_in_child=_forget)


def _wait_for_records(server: PrefectServer) -> None:
    """Wait for the server's records in a separate thread, because Prefect does not wait in a notebook's event loop."""
    waiting = threading.Thread(target=server.settle, args=(_count_tasks() - _tasks_before,))
    waiting.start()
    waiting.join()


def _count_tasks() -> int:
    runner = sys.modules.get("tasks.execution.task_runner")
    return 0 if runner is None else runner.started
