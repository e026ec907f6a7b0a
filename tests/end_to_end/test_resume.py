"""What was stopped goes on: after a kill, beside another process, and when MLflow was away."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.metrics.client_metrics import CLIENT_METRICS

ROUNDS = 4
MORE = ("--set", f"training.rounds={ROUNDS}", "--json")
TYPED = ("run", "fedavg", *MORE)


@pytest.mark.slow
def test_a_comparison_killed_twice_ends_as_if_nobody_had(finished: Any, partitioned: Any, tmp_path: Path) -> None:
    expected = tmp_path / "expected.json"
    expected.write_text(finished.compare.out)
    script = Path(__file__).with_name("kill_many.py")
    typed = [sys.executable, script, "--kills", "2", "--chain", "2", "--template", partitioned[0].path]
    typed += ["--expected", expected, "--places", "training", "comparison"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(typed, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed in ") == 2, done.stdout


@pytest.fixture(scope="module")
def stopped(
    partitioned: Any,
    server: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """A run that waits after its first round while a second process resumes it; then the first is killed."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("resume") / "project")
    first = folder.start_waiting(*MORE)
    try:
        beside = replace(folder, server=server).run([*folder.waiting(*MORE), "--resume"])
    finally:
        first.kill()
        first.communicate()
    folder.go_on()
    return {"folder": replace(folder, server=server), "beside": beside}


def test_a_second_process_on_the_same_run_is_refused(stopped: dict[str, Any]) -> None:
    code, out, err = stopped["beside"]
    assert (code, out) == (2, "")
    assert ": got a second process, expected one at a time. " in err
    assert err.count("\n") == 1


def test_a_killed_command_leaves_no_server(stopped: dict[str, Any], living: Callable[[Path], list[str]]) -> None:
    end = time.monotonic() + 60
    while (found := living(stopped["folder"].path)) and time.monotonic() < end:
        time.sleep(0.05)
    assert found == []


def test_a_killed_run_goes_on_with_its_own_settings_only(finished: Any, stopped: dict[str, Any]) -> None:
    folder = stopped["folder"]
    waiting = folder.waiting(*MORE)
    other = folder.type(*waiting, "--set", "training.batch=8", "--resume", code=2)
    assert other.out == ""
    assert (
        "waits-seed0: got other settings than at its start (params.training.batch: 16 → 8), expected the same. Restore them"
        in other.err
    )
    resumed = folder.type(*waiting, "--resume")
    run = resumed.json
    assert run["weights_sha256"] == finished.run("fedavg", 0)["weights_sha256"]
    assert run["resumed_from_round"] == 1
    assert "waits-seed0 continues after round 1" in resumed.err
    assert _steps(folder, run["mlflow_run_id"]) == {tuple(range(1, ROUNDS + 1))}


@pytest.mark.slow
def test_a_run_ends_well_without_mlflow_and_delivers_later(finished: Any, server: str) -> None:
    folder = replace(finished.folder, server=server)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and not listening
        away = folder.type(*TYPED, "--set", f"tracking.uri=http://127.0.0.1:{closed.getsockname()[1]}")
    run = away.json
    assert run["mlflow_run_id"] is None
    assert run["weights_sha256"] == finished.run("fedavg", 0)["weights_sha256"]
    assert f"saved in {run['folder']}" in away.err
    assert "--resume delivers them" in away.err
    later = folder.type(*TYPED, "--resume").json
    assert later["folder"] == run["folder"]
    assert later["weights_sha256"] == run["weights_sha256"]
    assert _steps(folder, later["mlflow_run_id"]) == {tuple(range(1, ROUNDS + 1))}
    assert json.loads((folder.path / run["folder"] / "result.json").read_text()) == later


def _steps(folder: Any, run: str) -> set[tuple[int, ...]]:
    """The steps of each metric of an MLflow run, but those of the reported round alone."""
    client = folder.mlflow()
    names = [
        name
        for name in client.get_run(run).data.metrics
        if "uncertainty/" not in name and name.partition("/")[0] not in CLIENT_METRICS
    ]
    assert len(names) > 10
    return {tuple(metric.step for metric in client.get_metric_history(run, name)) for name in names}
