"""Recognise and explain errors of Prefect's API, and provide the API to commands called from a script or a notebook."""

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty
from urllib.parse import urlsplit

import httpx
from prefect.context import refresh_global_settings_context
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows.servers.prefect_server import PrefectServer, answers, prefect_variables
from silos.io.addresses import LOOPBACK, loopback_direct, mask_passwords
from silos.io.memory_and_disk import full_disk


def is_prefect_failure(error: BaseException | None) -> bool:
    """Return whether Prefect's API caused the error: it did not answer, or answered with an error."""
    while error is not None:
        if isinstance(error, httpx.HTTPError) and _is_api_error(error):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def failure_sentence(error: BaseException) -> str:
    """Explain why Prefect's API failed, and name its database's file system if that is full; without a full stop."""
    url = PREFECT_API_URL.value() or ""
    home = Path(os.environ.get("PREFECT_HOME", ".prefect"))
    full = full_disk(home) if urlsplit(url).hostname in LOOPBACK and home.is_dir() else None
    if full:
        return f"Prefect's server cannot write {home}: {full}"
    code = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
    problem = "does not respond any more" if code is None else f"responds with code {code}"
    return mask_passwords(f"Prefect's API at {url} {problem}. See the log of its server")


def api_answers(patience: float = 5.0) -> bool:
    """Return whether the API that Prefect uses answers now."""
    return answers(PREFECT_API_URL.value() or "", patience)


@contextmanager
def ignore_prefect_failure() -> Iterator[None]:
    """Continue if Prefect's API fails; the code inside only adds to Prefect's page."""
    try:
        yield
    except Exception as error:
        if not is_prefect_failure(error):
            raise


def discard_events() -> None:
    """Drop queued events for Prefect's API, which would delay the end of the process by minutes if the server is gone."""
    for service in (EventsWorker, APILogWorker):
        for instance in [*service._instances.values()]:  # type: ignore[misc]
            with suppress(Empty):
                while True:
                    instance._queue.get_nowait()
                    instance._queue.task_done()


def _is_api_error(error: httpx.HTTPError) -> bool:
    try:
        return str(error.request.url).startswith(PREFECT_API_URL.value() or "\0")
    except RuntimeError:  # the error has no request
        return False


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
