"""Services that outlive the terminal: they answer, come back after a kill, and leave nothing when they are ended."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from flows.init_project import create_project
from silos.io.locks import is_locked
from tests.look import Browser, ask, free_ports

pytestmark = pytest.mark.slow

PREFECT = Path(sys.executable).parent / "prefect"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PATIENCE = 120


@pytest.fixture
def folder(partitioned: Any, tmp_path: Path) -> Iterator[Any]:
    """A project whose services end with the test."""
    folder = replace(partitioned[0].copy(tmp_path / "project"), is_forked=True)
    yield folder
    folder.run(["down"])


def up(folder: Any, ports: list[int]) -> dict[str, Any]:
    (folder.path / "prefect.toml").write_text("[worker]\nquery_seconds = 1\n")  # by default 10
    options = ["--prefect-port", str(ports[0]), "--mlflow-port", str(ports[1])]
    return typed(folder, "up", *options, alone=True)


def typed(folder: Any, *arguments: str, alone: bool = False) -> Any:
    code, out, err = folder.run([*arguments, "--json"], alone)
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


def deploy(folder: Any, api: str, environment: dict[str, str]) -> None:
    """Type `prefect deploy --all` in a folder as `siloflow init` makes it."""
    (folder.path / "prefect.yaml").write_text(create_project.deployments_text())
    subprocess.run(["git", "init", "--quiet", folder.path], check=True)
    home = str(folder.path / "elsewhere")
    deployed = subprocess.run(
        [PREFECT, "--no-prompt", "deploy", "--all"],
        cwd=folder.path,
        env={**environment, "PREFECT_API_URL": api, "PREFECT_HOME": home, "DO_NOT_TRACK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr


def assert_nothing_left(folder: Any, ports: list[int], living: Callable[[Path], list[str]]) -> None:
    until(lambda: living(folder.path) == [])
    assert not [path for path in folder.path.rglob("*") if path.is_file() and is_locked(path)]
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_services_answer_on_loopback_serve_commands_run_deployments_and_leave_nothing(
    folder, ports, living, environment
):
    """`down` comes in the middle of a deployment's run, which is to be resumed."""
    params = folder.path / "params.yaml"
    params.write_text(params.read_text().replace("plugins: [] ", "plugins: [waits.py] "))
    folder.write_waits()
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
    runs = ask(f"{api}/flow_runs/filter", {})
    assert [run["state_type"] for run in runs if "fedavg" in run["name"]] == ["COMPLETED"]
    assert ask(f"{found['mlflow']['address']}/api/2.0/mlflow/experiments/search", {"max_results": 9})["experiments"]
    code, out, _ = folder.run(["ui"])
    assert code == 0
    assert f"http://127.0.0.1:{ports[0]}/runs" in out

    assert not typed(folder, "up")["started"]
    code, _, err = folder.run(["up", "--prefect-port", str(ports[1] + 1)])
    assert code == 2
    assert f"--prefect-port: got {ports[1] + 1}, expected {ports[0]}, since the services run there." in err

    deploy(folder, api, environment)
    (deployment,) = [d for d in ask(f"{api}/deployments/filter", {}) if d["name"] == "run"]
    fields = deployment["parameter_openapi_schema"]["properties"]
    parameters = {name: field["default"] for name, field in fields.items() if "default" in field}
    parameters |= {"method": "waits", "overrides": ["training.rounds=3"]}  # all other fields as the page sends them
    body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
    ask(f"{api}/deployments/{deployment['id']}/create_flow_run", body)
    until((folder.path / "waits").exists)

    assert typed(folder, "down") == {"stopped": True, "in_use": False}
    assert_nothing_left(folder, ports, living)
    code, out, _ = folder.run(["down"])
    assert (code, out) == (0, "No services run here.\n")
    assert folder.run(["status"])[:2] == (0, "No services run here. `siloflow up` starts them.\n")
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


@pytest.fixture(scope="module")
def deployed(
    watched: Any, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], living: Any
) -> Iterator[tuple[Any, str, dict[str, Any]]]:
    """A project with a champion, the address of its Prefect server, and its deployments; `down` leaves nothing of it."""
    folder, ports = watched.copy(tmp_path_factory.mktemp("deployed") / "project"), free_ports()
    folder = replace(folder, is_forked=True)
    try:
        up(folder, ports)
        page = f"http://127.0.0.1:{ports[0]}"
        deploy(folder, f"{page}/api", environment)
        yield folder, page, {each["name"]: each for each in ask(f"{page}/api/deployments/filter", {})}
    finally:
        folder.run(["down"])
    assert_nothing_left(folder, ports, living)


def ended(page: str, deployment: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the deployment's flow runs if there are some, and all are over."""
    runs = ask(f"{page}/api/flow_runs/filter", {"deployments": {"id": {"any_": [deployment["id"]]}}})
    return runs if all(run["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED") for run in runs) else []


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_form_that_is_filled_in_on_prefects_page_starts_a_comparison(deployed):
    folder, page, deployments = deployed
    with Browser(CHROMIUM) as browser:
        browser.go(f"{page}/deployments/deployment/{deployments['compare']['id']}/run")
        browser.press_down("document.querySelector('.p-select button')")  # opens the first list: methods
        for method in ("fedavg", "local_only"):
            option = f"[...document.querySelectorAll('.p-select-option')].find(o => o.innerText === '{method}')"
            browser.click(option)
            assert browser.sees(f"{option}.classList.contains('p-select-option--selected')")
        browser.write("document.querySelector('textarea')", "from-the-form")
        browser.click("document.querySelector('button[type=submit]')")
        assert browser.sees("location.search.includes('tab=Runs')"), "the page of the deployment follows"
    (run,) = until(lambda: ended(page, deployments["compare"]))
    assert run["state"]["type"] == "COMPLETED", run["state"]
    found = {path.parent.name for path in folder.path.glob("runs/from-the-form/*/result.json")}
    assert found == {"fedavg-seed0", "local_only-seed0"}


def test_a_shift_that_watch_finds_starts_the_deployment_that_a_trigger_names(deployed, write_rows):
    folder, page, deployments = deployed
    before = {run["id"] for run in ended(page, deployments["compare"])}
    (automation,) = ask(f"{page}/api/automations/filter", {})
    ask(f"{page}/api/automations/{automation['id']}", {"enabled": True}, "PATCH")
    loads_automations(page)
    write_rows(folder.path, {"south": 2.0})
    answer = typed(folder, "watch", "--once")
    assert [silo["client"] for silo in answer["shifted"]] == ["south"]
    started = until(lambda: [run for run in ended(page, deployments["compare"]) if run["id"] not in before])
    assert [run["state"]["type"] for run in started] == ["COMPLETED"]
    assert started[0]["created_by"]["type"] == "AUTOMATION"
    assert started[0]["created_by"]["id"] == automation["id"]


def loads_automations(page: str) -> None:
    """Wait until Prefect's triggers follow the automations that were changed before.

    Prefect answers a change before its triggers have read it; they read one change after the other. So when an automation
    that was created last has switched itself off, by an event, the earlier changes have been read.
    """
    trigger = {"type": "event", "expect": ["siloflow.test"], "posture": "Reactive", "threshold": 1, "within": 0}
    action = {"type": "pause-automation", "source": "inferred"}
    last = ask(f"{page}/api/automations/", {"name": "last", "trigger": trigger, "actions": [action]})["id"]
    resource = {"prefect.resource.id": f"prefect.automation.{last}"}

    def is_off() -> bool:
        occurred = datetime.now(UTC).isoformat()
        event = {
            "id": str(uuid4()),
            "event": "siloflow.test",
            "occurred": occurred,
            "resource": resource,
            "payload": {},
        }
        ask(f"{page}/api/events", [event])
        return not ask(f"{page}/api/automations/{last}")["enabled"]

    until(is_off)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except OSError:
        return False
    return True


def test_a_killed_service_is_started_again_and_a_killed_keeper_is_reported(deployed, living):
    folder, page, _ = deployed
    before = services(folder)
    ports = [int(before[name]["address"].rpartition(":")[2]) for name in ("prefect", "mlflow")]
    assert page == before["prefect"]["address"]
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
    until(lambda: ask(f"http://127.0.0.1:{ports[0]}/api/health"))
    until(lambda: _answers(f"http://127.0.0.1:{ports[1]}/health"))

    os.kill(int((folder.path / "runs" / "services" / "keeper").read_text()), signal.SIGKILL)
    assert_nothing_left(folder, ports, living)
    code, out, _ = folder.run(["status"])
    assert code == 0
    assert out.startswith("The services have ended: the process that keeps the services was killed.")
    assert typed(folder, "up", alone=True)["started"]  # at the same ports
    assert services(folder)["prefect"]["address"] == f"http://127.0.0.1:{ports[0]}"
