"""A schedule that ends, in whatever way, leaves no deployment, and nothing that a later one would run."""

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.look import ask

pytestmark = pytest.mark.slow

NEVER_SOON = "0 0 29 2 *"
TYPED = ("schedule", NEVER_SOON, "fedavg", "--set", "training.rounds=5000")


@pytest.fixture
def busy(partitioned: Any, tmp_path: Path, until: Any) -> Any:
    """A schedule of which one comparison trains, and another, asked for on Prefect's page, is late."""
    folder = partitioned[0].copy(tmp_path / "project")
    ignored = signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # a schedule ignores SIGHUP if its parent does, as under nohup
    with (tmp_path / "screen.txt").open("w+") as screen:
        process = folder.start(*TYPED, out=screen)
    signal.signal(signal.SIGHUP, ignored)
    try:
        api = re.search(r"Prefect's page: (\S+)", until(screen.name, "ctrl-C", process))[1] + "/api"
        while not (deployments := ask(f"{api}/deployments/filter", {})):
            time.sleep(0.1)
        for _ in range(2):
            ask(f"{api}/deployments/{deployments[0]['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})
        while not list(folder.path.glob("runs/compare-*/*/checkpoint.safetensors")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        yield folder, process
    finally:
        process.kill()
        process.wait()


def deployments(folder: Any) -> list[Any]:
    return folder.in_prefect("select name, paused from deployment")


def test_a_second_schedule_is_refused_and_signals_while_the_first_ends_leave_one_line_and_no_deployment(
    busy, living
) -> None:
    """A terminal that is closed may send SIGHUP twice, its own and its shell's, and to the command alone."""
    folder, process = busy
    second = folder.start("schedule", NEVER_SOON, "local_only")
    _, error = second.communicate(timeout=600)
    assert second.returncode == 2
    assert error.startswith("error: schedule: got a second schedule in this project, expected one.")
    while process.poll() is None:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.05)
    assert process.returncode == 129
    assert re.fullmatch(r"stopped; all completed work is saved: [^\n]*\n", process.stderr.read())
    assert deployments(folder) == []
    assert folder.not_over() == []
    assert living(folder.path) == []


def test_after_a_kill_the_next_schedule_neither_makes_up_for_runs_nor_knows_old_parameters(
    busy, tmp_path, until
) -> None:
    folder, process = busy
    known = len(folder.flow_runs())
    process.kill()
    process.wait()
    with (tmp_path / "again.txt").open("w+") as screen:
        again = folder.start("schedule", NEVER_SOON, "local_only", out=screen)
        try:
            until(screen.name, "ctrl-C", again)
            while not (found := folder.in_prefect("select parameters from deployment where paused = 0")):
                assert again.poll() is None, again.communicate()
                time.sleep(0.1)
            assert [json.loads(parameters)["methods"] for (parameters,) in found] == [["local_only"]]
            assert folder.in_prefect("select name from flow_run where state_type = 'SCHEDULED'") == []
        finally:
            again.send_signal(signal.SIGTERM)
            _, said = again.communicate(timeout=600)
    assert said.startswith("closed runs that a stopped command had left open: ")
    assert again.returncode == 143
    assert deployments(folder) == []
    assert folder.not_over() == []
    assert "RUNNING" not in folder.mlflow_runs().values()
    ended = folder.flow_runs()[:known]
    assert {state for name, state in ended if name.startswith("compare fedavg on digits")} == {"CRASHED"}
    assert not [name for name, _ in folder.flow_runs() if "local_only on digits" in name]
