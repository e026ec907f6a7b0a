"""Rounds that run in worker processes, as typed: the same bits, a quiet screen, and nothing left behind."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from silos.machine.locks import changing

pytestmark = pytest.mark.slow

TYPED = ("run", "fedavg", "--set", "training.rounds=4", "--json", "--set")
PROCESSES = (*TYPED, "runner.kind=processes", "--set", "runner.workers=2")


def test_a_dask_cluster_of_its_own_gives_the_same_bits_and_says_nothing(
    finished: Any, server: str, assert_quiet: Callable[[str], None]
) -> None:
    found = replace(finished.folder, server=server).type(*TYPED, "runner.kind=dask", alone=True)
    assert found.json["weights_sha256"] == finished.run("fedavg", 0)["weights_sha256"]
    assert_quiet(found.err)
    assert found.err.count("\n") == 1


def test_worker_processes_end_with_the_command_that_is_interrupted_or_killed(
    partitioned: Any, finished: Any, server: str, living: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    folder = partitioned[0].copy(tmp_path / "project")
    folder.take_databases(finished.folder)
    interrupted = stopped_in_training(folder, signal.SIGINT, *PROCESSES, "--set", "training.rounds=300")
    assert interrupted == (130, "stopped; nothing is lost: --resume goes on after the last whole round.\n")
    assert_gone(living, folder.path)
    killed = stopped_in_training(folder, signal.SIGKILL, *PROCESSES)
    assert killed == (-signal.SIGKILL, "")
    assert_gone(living, folder.path)
    resumed = replace(folder, server=server).type(*TYPED, "runner.workers=1", "--resume").json
    assert resumed["resumed_from_round"] >= 1
    assert resumed["weights_sha256"] == finished.run("fedavg", 0)["weights_sha256"]


def test_one_that_is_interrupted_before_a_run_began_is_told_of_none_to_resume(partitioned: Any, tmp_path: Path) -> None:
    folder = partitioned[0].copy(tmp_path / "project")
    with changing(folder.path / "runs" / "locks", "another", print):
        process = folder.start("compare", "fedavg")
        assert process.stderr.readline() == "waiting for another to end\n"
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "stopped; nothing is lost: run it again."


def stopped_in_training(folder: Any, number: signal.Signals, *typed: str) -> tuple[int, str]:
    """Exit code and screen of a command that gets this signal after a round; a ctrl-C goes to all its processes."""
    before = set(folder.path.glob("runs/run-*"))
    process = folder.start(*typed)
    end = time.monotonic() + 180
    while not [f for new in set(folder.path.glob("runs/run-*")) - before for f in new.glob("*/checkpoint.*")]:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, screen = process.communicate(timeout=60)
    return process.returncode, screen


def assert_gone(living: Callable[[Path], list[str]], folder: Path, patience: float = 5.0) -> None:
    end = time.monotonic() + patience
    while (found := living(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    assert found == []
