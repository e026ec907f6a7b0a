"""A command that was stopped is over, in Prefect and in MLflow, after the next command at the latest."""

import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MORE = ("--seeds", "0", "--reference", "waits", "--set", "training.rounds=3")


def test_a_killed_comparison_is_closed_by_the_next_command_and_finished_by_a_resume(
    partitioned: Any, tmp_path: Path
) -> None:
    """After SIGINT or SIGTERM nothing is left to close: see test_workers and test_schedule_ends."""
    folder = partitioned[0].copy(tmp_path / "project")
    known, logged = len(folder.flow_runs()), folder.mlflow_runs()
    process = folder.start_waiting(*MORE, verb="compare")
    try:
        while not list(folder.path.glob("runs/compare-*/*/delivered.json")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    finally:
        _, said = process.communicate(timeout=600)
    assert (process.returncode, said) == (-signal.SIGKILL, "")
    following = folder.type("run", "local_only", "--set", "training.rounds=1")
    assert folder.not_over() == []
    stopped = folder.flow_runs()[known:][:2]
    assert {state for _, state in stopped} == {"CRASHED"}
    assert new_in_mlflow(folder, logged) == {"KILLED": 2, "FINISHED": 1}  # the comparison and its run
    closed = [
        line for line in following.err.splitlines() if line.startswith("closed runs that a stopped command had left ")
    ]
    (line,) = closed
    assert re.search("'run waits-seed0'.*'waits-seed0'.* in MLflow", line)
    assert list((folder.path / "runs" / "open").iterdir()) == []
    folder.go_on()
    folder.type(*folder.waiting(*MORE, verb="compare"), "--resume")
    assert folder.not_over() == []
    assert new_in_mlflow(folder, logged) == {"FINISHED": 3}


def new_in_mlflow(folder: Any, logged: dict[str, str]) -> Counter[str]:
    """Count the runs of each status, without those that were there before."""
    return Counter(status for run, status in folder.mlflow_runs().items() if run not in logged)
