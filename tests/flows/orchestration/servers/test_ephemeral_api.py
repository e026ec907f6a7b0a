"""The server of Prefect that verbs called from Python share, in a process that was forked from theirs."""

import os
from typing import Any

import pytest

from flows.orchestration.servers import ephemeral_api


def test_a_forked_process_leaves_the_server_to_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ephemeral_api, "_server", object())
    with ephemeral_api._one_at_a_time:
        child = os.fork()
        if child == 0:
            free: Any = ephemeral_api._one_at_a_time.acquire(blocking=False)
            os._exit(0 if ephemeral_api._server is None and free else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ephemeral_api._server is not None
