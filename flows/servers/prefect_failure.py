"""Errors of Prefect's API: whether an error is one, and what a person can do about it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty
from urllib.parse import urlsplit

import httpx
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL

from silos.io.proxies import LOOPBACK
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
