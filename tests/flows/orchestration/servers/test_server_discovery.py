"""A server that stays is used by whoever comes, and only by them and as long as it lives."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.orchestration.servers import prefect_process
from flows.orchestration.servers.prefect_server import PrefectServer

pytestmark = pytest.mark.slow

KEEP = """
import sys
from pathlib import Path
from flows.orchestration.servers.prefect_server import PrefectServer
server = PrefectServer(Path("."), ui=True)
server.wait()
print(server.url, flush=True)
sys.stdin.read()
print(server.stop(), flush=True)
"""
PATIENCE = 600


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, databases: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """A process that keeps a server as `siloflow ui` does, and its address; ends with its stdin."""
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")})
    (tmp_path / ".prefect").mkdir()
    (tmp_path / ".prefect" / "prefect.db").write_bytes((databases / "prefect.db").read_bytes())
    command, pipe = [sys.executable, "-c", KEEP], subprocess.PIPE
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ}, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.wait()


def test_a_server_that_runs_is_used_and_stays_for_those_who_use_it_when_its_keeper_ends(kept, tmp_path):
    keeper, url = kept
    server = PrefectServer(tmp_path)
    assert server.url == url
    server.wait()
    assert keeper.communicate(timeout=PATIENCE)[0].strip() == "False"
    assert prefect_process.join_server(tmp_path / ".prefect") is None  # nobody new
    server.wait()
    server.stop()
    assert _gone(tmp_path)


def test_a_killed_keeper_leaves_no_server_and_an_address_that_nobody_takes(kept, tmp_path, monkeypatch):
    keeper, url = kept
    home = tmp_path / ".prefect"
    keeper.kill()
    keeper.wait()
    assert _gone(tmp_path)
    (home / prefect_process.ADDRESS).write_text(
        json.dumps({"url": url, "prefect": "3"})
    )  # as a killed server leaves it
    asked: list[object] = []
    monkeypatch.setattr(prefect_process.urllib.request, "urlopen", lambda *one, **_: asked.append(one))
    assert prefect_process.join_server(home) is None
    assert asked == [], "the lock says that the server is gone; no request waits for an answer"
    assert not (home / prefect_process.ADDRESS).exists()


@pytest.mark.parametrize(
    "said", ['{"url": "http://127.0.0.1:9/api"}', "not json", '{"url": "{url}", "prefect": "0.1"}']
)
def test_an_address_that_does_not_answer_or_is_of_another_prefect_is_not_taken(kept, tmp_path, said):
    _, url = kept
    (tmp_path / ".prefect" / prefect_process.ADDRESS).write_text(said.replace("{url}", url))
    assert prefect_process.join_server(tmp_path / ".prefect") is None


def _gone(folder: Path) -> bool:
    """Whether the server has let go of its lock, which it does when it is no more."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        lock = prefect_process.lock_server(folder / ".prefect")
        if lock is not None:
            lock.close()
            return True
        time.sleep(0.05)
    return False
