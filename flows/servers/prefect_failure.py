"""Errors of Prefect's API: whether an error is one, and what a person can do about it.

Prefect's API for verbs that a script or a notebook calls: this project's, as for the command, and as quiet.
"""

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

from flows.servers.prefect_server import PrefectServer
from silos.io.proxies import LOOPBACK, loopback_direct
from tasks.tracking.error_messages import full_disk, masked


def is_prefect_failure(error: BaseException | None) -> bool:
    """Return whether Prefect's API is what failed: it did not answer, or answered with an error."""
    while error is not None:
        if isinstance(error, httpx.HTTPError) and _of_api(error):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def failure_sentence(error: BaseException) -> str:
    """Say why Prefect's API failed, naming the file system of its database if that is full, without a full stop."""
    url = PREFECT_API_URL.value() or ""
    home = Path(os.environ.get("PREFECT_HOME", ".prefect"))
    full = full_disk(home) if urlsplit(url).hostname in LOOPBACK and home.is_dir() else None
    if full:
        return f"Prefect's server cannot write {home}: {full}"
    answer = f"answers with code {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else None
    return masked(f"Prefect's API at {url} {answer or 'does not answer any more'}; look into the log of its server")


@contextmanager
def tolerated() -> Iterator[None]:
    """Go on if Prefect's API fails: what is inside only adds to its page."""
    try:
        yield
    except Exception as error:
        if not is_prefect_failure(error):
            raise


def discard_events() -> None:
    """Drop what is queued for Prefect's API and would hold up the end of the process: minutes for a server that is gone."""
    for service in (EventsWorker, APILogWorker):
        for instance in [*service._instances.values()]:  # type: ignore[misc]
            with suppress(Empty):
                while True:
                    instance._queue.get_nowait()
                    instance._queue.task_done()


def _of_api(error: httpx.HTTPError) -> bool:
    try:
        return str(error.request.url).startswith(PREFECT_API_URL.value() or "\0")
    except RuntimeError:  # it names no request
        return False


@contextmanager
def ephemeral_api() -> Iterator[None]:
    """A server that somebody named (PREFECT_API_URL) is taken; else this folder's, started by the first call in it.

    It stays for the calls to come, and goes with the process. What Prefect is set to meanwhile is as it was afterwards. Of
    several threads each waits for its turn.
    """
    with _one_at_a_time:  # settings are the process's; looked at in here, they are never those of another thread's call
        if not os.environ.get("PREFECT_API_URL"):
            with loopback_direct(), _set_to_own():
                yield
            return
    with loopback_direct():
        yield


@contextmanager
def _set_to_own() -> Iterator[None]:
    log = logging.getLogger("prefect")
    level, home = log.level, os.environ.get("PREFECT_HOME")
    server = _started(Path().resolve())
    try:
        os.environ |= {"PREFECT_API_URL": server.url, "PREFECT_HOME": home or str(server.home)}
        refresh_global_settings_context()  # threads of Prefect's own look there
        log.setLevel(logging.CRITICAL)  # who imported Prefect first has its log on the screen
        server.wait()
        with (
            warnings.catch_warnings(),
            temporary_settings({PREFECT_API_URL: server.url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        ):
            warnings.filterwarnings("ignore", "IProgress not found")  # of MLflow's import in a notebook
            yield
    finally:
        _settle(server)
        log.setLevel(level)
        del os.environ["PREFECT_API_URL"]
        if home is None:
            del os.environ["PREFECT_HOME"]
        refresh_global_settings_context()


_one_at_a_time = threading.RLock()
_server: PrefectServer | None = None
_tasks_before = 0  # task runs that this process had started when the server was


def _started(root: Path) -> PrefectServer:
    """This folder's server; that of another folder is ended."""
    global _server, _tasks_before
    if _server is None or _server.root != root or not _server.alive():
        if _server is not None:
            _server.stop()
        _server, _tasks_before = PrefectServer(root), _tasks()
    return _server


def _forget() -> None:
    """Leave the server to the process that this one was forked from: its end would wait for a thread that is not here."""
    global _one_at_a_time, _server
    _one_at_a_time, _server = threading.RLock(), None


os.register_at_fork(after_in_child=_forget)


def _settle(server: PrefectServer) -> None:
    """In a thread of its own: a notebook's has an event loop, in which Prefect would not wait."""
    waiting = threading.Thread(target=server.settle, args=(_tasks() - _tasks_before,))
    waiting.start()
    waiting.join()


def _tasks() -> int:
    runner = sys.modules.get("tasks.execution.task_runner")
    return 0 if runner is None else runner.started
