"""What is sent to a worker with each task."""

import ssl
from concurrent.futures import Future
from typing import Any

import cloudpickle
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.context import hydrated_context, serialize_context
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic_settings import BaseSettings

from tasks.execution.worker_backends import Workers
from tasks.local_train import local_train

API = "http://127.0.0.1:1/api"


class Sending(Workers):
    """Keeps what a runner of Prefect's would send to another process."""

    is_remote = is_pickled = True

    def __init__(self) -> None:
        super().__init__(1, print)
        self.contexts: list[bytes] = []

    def submit(self, task: Any, call: dict[str, Any]) -> Future[list[Any]]:
        """Return the future of an empty result."""
        self.contexts.append(cloudpickle.dumps(serialize_context()))
        ended: Future[list[Any]] = Future()
        ended.set_result([])
        return ended

    def _start(self) -> Any:
        return self


def test_a_worker_has_the_settings_of_the_command_and_reads_none_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sending, made = Sending(), []
    with temporary_settings({PREFECT_API_URL: API}):
        sending.run(local_train, [((None, None, None, None, 0, 1), {})])
    (context,) = map(cloudpickle.loads, sending.contexts)
    read = BaseSettings.__init__
    monkeypatch.setattr(
        BaseSettings,
        "__init__",
        lambda self, *args, **values: (made.append(type(self)), read(self, *args, **values))[1],
    )
    with hydrated_context(context):
        assert PREFECT_API_URL.value() == API
    assert made == []


def test_prefects_clients_share_the_certificates_by_which_they_check_a_server() -> None:
    clients = [SyncPrefectClient("https://127.0.0.1:9/api") for _ in range(2)]
    first, second = (client._client._transport._pool._ssl_context for client in clients)
    assert first is second
    assert (first.verify_mode, first.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert first.cert_store_stats()["x509_ca"] > 100
