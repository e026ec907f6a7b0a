"""What is known of a project's services without starting one: who is up, at which port, and who may be joined."""

import fcntl
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.orchestration.servers import prefect_process, services
from flows.orchestration.servers.prefect_process import ADDRESS, PORT, SERVER_LOCK, Restarts
from flows.orchestration.servers.prefect_server import PrefectServer
from flows.orchestration.servers.services_process import _MARK, KEEPER, STATE, end_runs
from silos.errors import UserError
from silos.io.addresses import listening_socket
from silos.io.locks import hold
from tasks.tracking.json_io import write_json

SHORT, LONG = 5.0, 3600.0


@pytest.mark.parametrize(
    ("lives", "may_start"),
    [
        ([SHORT] * 4, [True] * 3 + [False]),
        ([SHORT] * 3 + [LONG] + [SHORT] * 4, [True] * 7 + [False]),
        ([LONG] * 20, [True] * 20),
        ([SHORT, LONG] * 9, [True] * 18),
    ],
)
def test_a_server_is_given_up_after_four_short_lives_in_a_row_and_never_after_long_ones(lives, may_start):
    restarts = Restarts()
    assert [restarts.may_start(life) for life in lives] == may_start


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Any]:
    """Writes what a living keeper of a folder says of its services: name to pid and start."""
    with hold(tmp_path / KEEPER, str(os.getpid())):

        def write(root: Path = tmp_path, **found: tuple[int, float]) -> dict[str, str]:
            saved = {
                name: {"address": None, "pid": pid, "began": began, "restarts": 2}
                for name, (pid, began) in found.items()
            }
            write_json(tmp_path / STATE, {"root": str(root), "services": saved})
            return {each["service"]: each["state"] for each in services.describe(tmp_path)["services"]}

        yield write


def test_a_process_that_has_the_number_of_a_service_that_ended_is_not_the_service(state):
    own = psutil.Process()
    nobody = 2**22 + 1  # more than Linux gives a process
    found = state(
        prefect=(own.pid, own.create_time()),
        mlflow=(own.pid, own.create_time() - 60),
        worker=(nobody, own.create_time()),
    )
    assert found == {"prefect": "up", "mlflow": "starting", "worker": "starting"}


def test_a_copied_folder_knows_nothing_of_the_services_of_the_first(state, tmp_path):
    own = psutil.Process()
    assert set(state(tmp_path / "first", prefect=(own.pid, own.create_time())).values()) == {"starting"}


def test_services_that_a_killed_keeper_left_are_down_and_the_reason_is_told(tmp_path):
    own = psutil.Process()
    hold(tmp_path / KEEPER, "1").close()
    saved = {"address": "a", "pid": own.pid, "began": own.create_time(), "restarts": 0}
    write_json(tmp_path / STATE, {"root": str(tmp_path), "services": {"prefect": saved}})
    found = services.describe(tmp_path)
    assert (found["up"], found["problem"]) == (False, "the process that keeps the services was killed")
    assert {(each["state"], each["memory"]) for each in found["services"]} == {("down", 0)}


def test_services_that_run_are_not_started_again_and_refuse_other_ports(state, tmp_path):
    state()
    write_json(tmp_path / services._PORTS, {"prefect": 4300, "mlflow": 5300, "page": None})
    for ports in ((None, None), (4300, None), (4300, 5300)):
        assert not services.start(tmp_path, None, None, *ports)
    for ports, told in (
        ((4301, None), "--prefect-port: got 4301, expected 4300"),
        ((None, 5301), "--mlflow-port: got 5301"),
    ):
        with pytest.raises(UserError, match=f"{told}.*Run `siloflow down` first"):
            services.start(tmp_path, None, None, *ports)


def test_services_take_the_ports_that_are_asked_for_and_else_their_last_ones(tmp_path):
    """A port that is taken is named, and says which one was chosen."""
    with listening_socket(0) as taken, listening_socket(0) as other:
        with listening_socket(0) as closed:
            free = closed.getsockname()[1]
        busy, also_busy = taken.getsockname()[1], other.getsockname()[1]
        for last, asked, named in (
            ((busy, free), (None, None), f"--prefect-port: got {busy}, which"),
            ((free, busy), (None, None), f"--mlflow-port: got {busy}, which"),
            ((busy, free), (also_busy, None), f"--prefect-port: got {also_busy}, which"),
            ((free, busy), (None, also_busy), f"--mlflow-port: got {also_busy}, which"),
            ((busy, busy), (None, None), f"--prefect-port: got {busy}, the same as --mlflow-port"),
        ):
            write_json(
                tmp_path / services._PORTS, {**dict(zip(("prefect", "mlflow"), last, strict=True)), "page": None}
            )
            with pytest.raises(UserError, match=named):
                services.start(tmp_path, "sqlite:///mlflow.db", None, *asked)
        with pytest.raises(UserError, match=f"--prefect-port: got {busy}, which"):  # MLflow's is not started
            services.start(tmp_path, None, "http://elsewhere", busy, busy)


def test_ports_that_were_asked_for_are_the_last_ones_at_the_next_start(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(services, "_run_keeper", lambda *started: asked.append(started[-1]))
    with listening_socket(0) as one, listening_socket(0) as other:
        free = [each.getsockname()[1] for each in (one, other)]
    for ports in (free, (None, None)):
        assert services.start(tmp_path, "sqlite:///mlflow.db", None, *ports)
    assert asked == [dict(zip(("prefect", "mlflow"), free, strict=True))] * 2


@pytest.mark.parametrize("page", ["http://elsewhere", None])
def test_a_server_of_mlflows_elsewhere_is_shown_while_the_services_run(page, state, tmp_path):
    write_json(tmp_path / services._PORTS, {"prefect": 4200, "mlflow": 5000, "page": page})
    assert state()["mlflow"] == ("elsewhere" if page else "starting")
    mlflow = services.describe(tmp_path)["services"][1]
    assert mlflow["address"] == page


def test_services_that_do_not_run_are_down_also_if_mlflow_is_elsewhere(tmp_path):
    write_json(tmp_path / services._PORTS, {"prefect": 4200, "mlflow": 5000, "page": "http://elsewhere"})
    found = services.describe(tmp_path)
    assert not found["up"]
    assert {(each["state"], each["address"]) for each in found["services"]} == {("down", None)}


def test_the_memory_of_a_service_is_that_of_all_processes_below_it(state, tmp_path):
    shell = subprocess.Popen(
        ["sh", "-c", "sh -c 'sleep 600 & echo $!; wait' & wait"], stdout=subprocess.PIPE, text=True
    )
    process, at_the_end = psutil.Process(shell.pid), psutil.Process(int(shell.stdout.readline()))
    family = [process, *process.children(), at_the_end]
    until = time.monotonic() + 30
    while at_the_end.name() != "sleep" or any(each.status() != psutil.STATUS_SLEEPING for each in family):
        assert time.monotonic() < until  # before that, a fork that becomes another program has other memory
        time.sleep(0.01)
    try:
        state(worker=(shell.pid, process.create_time()))
        worker = services.describe(tmp_path)["services"][2]
        assert at_the_end.parent() == process.children()[0]
        assert worker["state"] == "up"
        assert worker["memory"] == sum(each.memory_info().rss for each in family)
    finally:
        for each in family:
            each.kill()
        shell.wait()
        shell.stdout.close()


def test_a_schedule_takes_the_port_that_is_asked_for_then_its_last_one_then_the_default(tmp_path):
    with listening_socket(0) as taken:
        busy = taken.getsockname()[1]
        with listening_socket(0) as other:
            free = other.getsockname()[1]
        assert prefect_process.last_port(tmp_path, None) == {"port": PORT}
        prefect_process.save_port(tmp_path, f"http://127.0.0.1:{busy}/api")
        assert prefect_process.last_port(tmp_path, None) == {"port": busy}
        assert prefect_process.last_port(tmp_path, free) == {"port": free, "own": True}
        with pytest.raises(UserError, match=f"--port: got {busy}, which cannot be used"):
            prefect_process.last_port(tmp_path, busy)
    for unreadable in ("", "4200.5", "0", "99999"):
        (tmp_path / ".prefect" / "schedule-port").write_text(unreadable)
        assert prefect_process.last_port(tmp_path, None) == {"port": PORT}


def test_the_runs_of_a_worker_are_ended_except_one_that_is_spared_and_those_of_other_projects(tmp_path):
    places = {"run": tmp_path, "subprocess": tmp_path, "worker": tmp_path, "of another": tmp_path / "other"}
    started = {
        name: subprocess.Popen(["sleep", "600"], env={**os.environ, _MARK: str(root)}) for name, root in places.items()
    }
    try:
        end_runs(tmp_path, spare=started["worker"].pid)
        assert {name for name, process in started.items() if process.poll() is None} == {"worker", "of another"}
        end_runs(tmp_path)
        assert {name for name, process in started.items() if process.poll() is None} == {"of another"}
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def test_the_run_of_a_worker_may_save_its_state_before_it_ends(tmp_path):
    saves = f"trap 'echo saved > {tmp_path / 'state'}; exit' TERM; echo ready; while true; do sleep 0.1; done"
    environment = {**os.environ, _MARK: str(tmp_path)}
    with subprocess.Popen(["sh", "-c", saves], env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "ready\n"
        end_runs(tmp_path)
        run.wait()
    assert (tmp_path / "state").read_text() == "saved\n"


@contextmanager
def healthy(counts: Iterator[int] = iter(())) -> Iterator[str]:
    """A program that answers as Prefect's API does: that it is healthy, and with counts of task runs; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            content = str(next(counts)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as there:
        threading.Thread(target=there.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{there.server_port}/api"
        there.shutdown()


def test_a_server_is_asked_until_it_has_recorded_all_task_runs(tmp_path):
    counts = iter([0, 1, 2, 3, 4])
    with healthy(counts) as url, temporary_settings({PREFECT_API_URL: url}):
        server = object.__new__(PrefectServer)  # without a process of Prefect's
        server._child, server._restarter, server._since = (
            subprocess.Popen(["sleep", "600"]),
            None,
            "2026-01-01T00:00:00Z",
        )
        try:
            server.settle(3, patience=600.0)
        finally:
            server._child.kill()
            server._child.wait()
    assert next(counts) == 4


def test_a_server_is_joined_while_it_lives_and_only_by_the_same_version_of_prefect(tmp_path):
    with healthy() as url, (tmp_path / SERVER_LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = [{"prefect": "0.1"}, {"prefect": f"{version('prefect')}.1"}, {"prefect": None}, {}]
        for other in others:
            (tmp_path / ADDRESS).write_text(json.dumps({"url": url, **other}))
            assert prefect_process.join_server(tmp_path) is None, other
        prefect_process.publish_address(tmp_path, url)
        joined = prefect_process.join_server(tmp_path)
        assert joined is not None
        assert joined.url == url
        assert prefect_process.in_use(tmp_path)
        joined.share.close()
        assert not prefect_process.in_use(tmp_path)
        prefect_process.publish_address(tmp_path, url.removesuffix("/api"))  # another program answers there
        assert prefect_process.join_server(tmp_path) is None
        prefect_process.publish_address(tmp_path, url)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert prefect_process.join_server(tmp_path) is None
        assert not (tmp_path / ADDRESS).exists()
