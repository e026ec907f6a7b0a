"""Rounds that run in worker processes, as typed: the same bits, a quiet screen, and nothing left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from silos.io.locks import write_lock

pytestmark = pytest.mark.slow

ROUNDS = ("--set", "training.rounds=4", "--json", "--set")
PROCESSES = (*ROUNDS, "runner.kind=processes", "--set", "runner.workers=2")


def test_a_dask_cluster_of_its_own_gives_the_same_bits_and_says_nothing(
    finished: Any, server: str, assert_quiet: Callable[[str], None]
) -> None:
    found = replace(finished.folder, server=server).type("run", "fedavg", *ROUNDS, "runner.kind=dask", alone=True)
    assert found.json["weights_sha256"] == finished.run("fedavg", 0)["weights_sha256"]
    assert_quiet(found.err)
    assert len(found.lines) == 1


def test_worker_processes_end_with_the_command_that_is_interrupted_or_killed(
    partitioned: Any, finished: Any, server: str, living: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    folder = partitioned[0].copy(tmp_path / "project")
    long = folder.start("run", "fedavg", *PROCESSES, "--set", "training.rounds=300", PREFECT_API_URL=server)
    while not list(folder.path.glob("runs/run-*/*/checkpoint.*")):
        assert long.poll() is None, long.communicate()
        time.sleep(0.002)
    interrupted = stopped(long, signal.SIGINT)
    assert interrupted == (
        130,
        "stopped; all completed work is saved: --resume continues after the last complete round.\n",
    )
    assert_gone(living, folder.path)
    killed = stopped(folder.start_waiting(*PROCESSES), signal.SIGKILL)
    assert killed == (-signal.SIGKILL, "")
    assert_gone(living, folder.path)
    folder.go_on()
    resumed = replace(folder, server=server).type(*folder.waiting(*ROUNDS, "runner.workers=1"), "--resume").json
    assert resumed["resumed_from_round"] == 1
    assert resumed["weights_sha256"] == finished.run("fedavg", 0)["weights_sha256"]


@pytest.mark.parametrize("lock", [("locks",), ("locks", "compare")], ids=["data", "comparison"])
def test_one_that_waits_for_data_or_a_comparison_is_told_so_and_of_none_to_resume(
    lock: tuple[str, ...], partitioned: Any, server: str, tmp_path: Path
) -> None:
    folder = partitioned[0].copy(tmp_path / "project")
    with write_lock(folder.path.joinpath("runs", *lock), "another", print):
        process = folder.start("compare", "fedavg", PREFECT_API_URL=server)
        assert process.stderr.readline() == "waiting for another to end\n"
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "stopped; all completed work is saved: run the command again."


def stopped(process: subprocess.Popen, number: signal.Signals) -> tuple[int, str]:
    """Exit code and screen of a command that gets this signal; a ctrl-C goes to all its processes."""
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, screen = process.communicate(timeout=600)
    return process.returncode, screen


def assert_gone(living: Callable[[Path], list[str]], folder: Path) -> None:
    end = time.monotonic() + 60
    while (found := living(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    assert found == []
