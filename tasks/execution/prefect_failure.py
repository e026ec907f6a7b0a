"""Recognise and explain errors of Prefect's API."""

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

from silos.io.addresses import LOOPBACK, health_answers, mask_passwords
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
    return health_answers(PREFECT_API_URL.value() or "", patience)


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
