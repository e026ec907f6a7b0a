"""Services that outlive the terminal: they answer, come back after a kill, and leave nothing when they are ended."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.scaffold import create_project
from silos.io.locks import is_locked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PREFECT = Path(sys.executable).parent / "prefect"
PATIENCE = 120


@pytest.fixture
def ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    found = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return found


@pytest.fixture
def folder(partitioned: Any, tmp_path: Path) -> Iterator[Any]:
    """A project whose services end with the test."""
    folder = partitioned[0].copy(tmp_path / "project")
    yield folder
    folder.run(["down"])


def up(folder: Any, ports: list[int]) -> dict[str, Any]:
    options = ["--prefect-port", str(ports[0]), "--mlflow-port", str(ports[1])]
    return typed(folder, "up", *options)


def typed(folder: Any, *arguments: str) -> Any:
    code, out, err = folder.run([*arguments, "--json"])
    assert code == 0, err
    return json.loads(out)


def services(folder: Any) -> dict[str, dict[str, Any]]:
    return {record["service"]: record for record in typed(folder, "status")["services"]}


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError("it does not come about")


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as answer:
        return json.load(answer)


def assert_nothing_left(folder: Any, ports: list[int], living: Callable[[Path], list[str]]) -> None:
    until(lambda: living(folder.path) == [])
    assert not [path for path in folder.path.rglob("*") if path.is_file() and is_locked(path)]
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_services_answer_on_loopback_serve_commands_and_leave_nothing(folder, ports, living):
    started = up(folder, ports)
    assert started["started"]
    found = {record["service"]: record for record in started["services"]}
    assert [found[name]["state"] for name in ("prefect", "mlflow", "worker")] == ["up"] * 3
    assert [found[name]["address"] for name in ("prefect", "mlflow")] == [f"http://127.0.0.1:{p}" for p in ports]
    assert min(record["memory"] for record in started["services"]) > 10**7
    keeper = psutil.Process(int((folder.path / "runs" / "services" / "keeper").read_text()))
    listening = {
        connection.laddr
        for process in keeper.children(recursive=True)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert set(ports) <= {address.port for address in listening}

    assert typed(folder, "run", "fedavg", "--set", "training.rounds=1")["rounds"] == 1
    api = f"http://127.0.0.1:{ports[0]}/api"
    runs = call(f"{api}/flow_runs/filter", {})
    assert [run["state_type"] for run in runs if "fedavg" in run["name"]] == ["COMPLETED"]
    assert call(f"{found['mlflow']['address']}/api/2.0/mlflow/experiments/search", {"max_results": 9})["experiments"]
    code, out, _ = folder.run(["ui"])
    assert code == 0
    assert f"http://127.0.0.1:{ports[0]}/runs" in out

    assert not typed(folder, "up")["started"]
    code, _, err = folder.run(["up", "--prefect-port", str(ports[1] + 1)])
    assert code == 2
    assert f"--prefect-port: got {ports[1] + 1}, expected {ports[0]}, since the services run there." in err

    assert typed(folder, "down") == {"stopped": True, "in_use": False}
    assert_nothing_left(folder, ports, living)
    code, out, _ = folder.run(["down"])
    assert (code, out) == (0, "No services run here.\n")
    assert folder.run(["status"])[:2] == (0, "No services run here. `siloflow up` starts them.\n")


def test_a_killed_service_is_started_again_and_a_killed_keeper_is_reported(folder, ports, living):
    up(folder, ports)
    before = services(folder)
    for record in before.values():
        for process in reversed([psutil.Process(record["pid"]), *psutil.Process(record["pid"]).children()]):
            process.kill()

    def restarted() -> bool:
        now = services(folder)
        return all(record["restarts"] == 1 and record["state"] == "up" for record in now.values())

    until(restarted)
    assert {name: record["pid"] for name, record in services(folder).items()} != {
        name: record["pid"] for name, record in before.items()
    }
    until(lambda: call(f"http://127.0.0.1:{ports[0]}/api/health"))
    until(lambda: _answers(f"http://127.0.0.1:{ports[1]}/health"))

    os.kill(int((folder.path / "runs" / "services" / "keeper").read_text()), signal.SIGKILL)
    assert_nothing_left(folder, ports, living)
    code, out, _ = folder.run(["status"])
    assert code == 0
    assert out.startswith("The services have ended: the process that keeps the services was killed.")
    assert typed(folder, "up")["started"]  # at the same ports
    assert services(folder)["prefect"]["address"] == f"http://127.0.0.1:{ports[0]}"


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except OSError:
        return False
    return True


def test_the_worker_runs_a_deployment_and_down_in_the_middle_leaves_a_run_to_resume(folder, ports, living, environment):
    (folder.path / "prefect.yaml").write_text(create_project.deployments_text())
    params = folder.path / "params.yaml"
    params.write_text(params.read_text().replace("plugins: [] ", "plugins: [waits.py] "))
    folder.write_waits()
    up(folder, ports)
    api = f"http://127.0.0.1:{ports[0]}/api"
    subprocess.run(["git", "init", "--quiet", folder.path], check=True)
    deployed = subprocess.run(
        [PREFECT, "--no-prompt", "deploy", "--all"],
        cwd=folder.path,
        env={
            **environment,
            "PREFECT_API_URL": api,
            "PREFECT_HOME": str(folder.path / "elsewhere"),
            "DO_NOT_TRACK": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    (deployment,) = [d for d in call(f"{api}/deployments/filter", {}) if d["name"] == "run"]
    parameters = {"method": "waits", "overrides": ["training.rounds=3"]}
    body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
    call(f"{api}/deployments/{deployment['id']}/create_flow_run", body)
    until((folder.path / "waits").exists)

    assert typed(folder, "down")["stopped"]
    assert_nothing_left(folder, ports, living)
    folder.go_on()
    resumed = typed(folder, "run", "waits", "--set", "training.rounds=3", "--resume")
    assert (resumed["rounds"], resumed["resumed_from_round"]) == (3, 1)
    assert folder.not_over() == []


def test_a_port_in_use_is_refused_and_nothing_is_started(folder, ports, living):
    for name, port in zip(("prefect", "mlflow"), ports, strict=True):
        with socket.create_server(("127.0.0.1", port)):
            code, _, err = folder.run(["up", "--prefect-port", str(ports[0]), "--mlflow-port", str(ports[1])])
        assert code == 2
        assert f"--{name}-port: got {port}, which cannot be used" in err
        assert living(folder.path) == []
    code, _, err = folder.run(["up", "--prefect-port", str(ports[0]), "--mlflow-port", str(ports[0])])
    assert code == 2
    assert f"--prefect-port: got {ports[0]}, the same as --mlflow-port, expected another." in err
    assert folder.run(["status"])[1] == "No services run here. `siloflow up` starts them.\n"
