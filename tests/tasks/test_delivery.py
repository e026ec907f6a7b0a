"""MLflow hears of every round once, whatever its server does meanwhile, and nobody waits for it."""

import os
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks import track
from tasks.checkpoint import Journal
from tasks.files import read_json
from tasks.track import Delivery, Finish, Ticket, connect

AT_ONCE = 1.0  # seconds; ten rounds are handed over in less, also on a busy machine
METRICS = {"accuracy/mean", "loss/train", "memory/resident"}


class Server:
    """A real `mlflow server` on loopback, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Answers when it answers."""
        store = f"sqlite:///{self._folder}/mlflow.db"
        connect(store)
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--workers", "1", "--backend-store-uri", store, "--artifacts-destination", str(self._folder)]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=2).close()
                return
            except OSError:
                assert self._process.poll() is None, (self._folder / "server.log").read_text()
                time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def stop(self) -> None:
        """With its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Not started yet."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def deliver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Delivery]:
    """A delivery from this test's run folder; tests of one run call it again, as `--resume` does."""
    monkeypatch.setattr(track, "RETRY", 0.3)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    def build(uri: str, name: str) -> Delivery:
        ticket = Ticket(
            uri, (tmp_path / "artifacts").as_uri(), name, "fedavg-seed0", name, {"method": "fedavg"}, {"a": 1}
        )
        return Delivery(tmp_path, ticket)

    return build


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Delivery, range], None]:
    """Rounds as the loop plays them: journal, then the delivery is told. It must not wait."""

    def rounds(delivery: Delivery, numbers: range) -> None:
        start = time.monotonic()
        for number in numbers:
            metrics = {"accuracy/mean": number / 100, "loss/train": None if number == 2 else 1 / number}
            record = {
                "round": number,
                "time_ms": 1_000_000 + number,
                "metrics": metrics,
                "memory": {"resident": number},
            }
            Journal(tmp_path / "journal").write(record)
            delivery.round_done(number)
        assert time.monotonic() - start < AT_ONCE

    return rounds


def test_a_server_that_is_away_from_start_to_end_hears_of_every_round_later(server, deliver, play):
    away = deliver(server.url, "away")
    play(away, range(1, 6))
    assert away.finish(Finish(), patience=60) is None
    assert away.problem.startswith(f"MLflow at {server.url}: ")
    server.start()
    resumed = deliver(server.url, "away")
    resumed.round_done(5)
    assert resumed.finish(Finish()) is not None
    assert_whole(server.url, "away", resumed.run_id, 5, without={("loss/train", 2)})


def test_a_server_that_stops_for_ten_rounds_hears_of_them_when_it_is_back(server, deliver, play, tmp_path):
    server.stop()
    server.start()
    delivery = deliver(server.url, "stopped")
    play(delivery, range(1, 6))
    wait_for(lambda: (read_json(tmp_path / "delivered.json") or {}).get("round") == 5)
    server.stop()
    play(delivery, range(6, 16))
    wait_for(lambda: delivery.problem is not None)
    server.start()
    wait_for(lambda: read_json(tmp_path / "delivered.json")["round"] == 15)  # without another round
    play(delivery, range(16, 21))
    assert delivery.finish(Finish()) is not None
    assert_whole(server.url, "stopped", delivery.run_id, 20, without={("loss/train", 2)})


def test_a_store_that_was_made_anew_hears_of_the_rounds_that_the_old_one_knew(deliver, play, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    first = deliver(uri, "anew")
    play(first, range(1, 4))
    assert first.finish(Finish()) is not None
    connect(uri).delete_run(first.run_id)
    second = deliver(uri, "anew")
    second.round_done(3)
    assert second.finish(Finish()) not in (None, first.run_id)
    assert_whole(uri, "anew", second.run_id, 3, without={("loss/train", 2)})


def test_a_locked_database_stops_nobody_and_hears_of_every_round_once(deliver, play, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    connect(uri)
    lock = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    lock.execute("begin exclusive")
    locked = deliver(uri, "locked")
    play(locked, range(1, 11))
    assert locked.finish(Finish(), patience=1) is None
    assert locked.problem == f"MLflow at {uri} did not answer for 1 s"
    lock.execute("rollback")
    lock.close()
    locked._thread.join()  # it still tried; a run's folder has one process at a time, and so one delivery
    (tmp_path / "delivered.json").unlink(missing_ok=True)  # as if it had been killed before it wrote that down
    resumed = deliver(uri, "locked")
    resumed.round_done(10)
    assert resumed.finish(Finish()) is not None
    assert_whole(uri, "locked", resumed.run_id, 10, without={("loss/train", 2)})


def test_a_store_that_never_answers_stops_nobody(deliver, play):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        delivery = deliver(uri, "silent")
        play(delivery, range(1, 11))
        assert delivery.finish(Finish(), patience=1) is None
        assert delivery.problem == f"MLflow at {uri} did not answer for 1 s"
        wait_for(lambda: silent.accept() is not None)  # it was asked


def assert_whole(uri: str, name: str, run_id: Any, rounds: int, without: set[tuple[str, int]]) -> None:
    """One finished run with every step of every metric once, but for those that had no number."""
    client = connect(uri)
    (run,) = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    assert (run.info.run_id, run.info.status, run.data.params) == (run_id, "FINISHED", {"a": "1"})
    assert set(run.data.metrics) == METRICS
    for metric in METRICS:
        found = [m.step for m in client.get_metric_history(run_id, metric)]
        assert found == [n for n in range(1, rounds + 1) if (metric, n) not in without], metric


def wait_for(true: Callable[[], bool], patience: float = 60.0) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
