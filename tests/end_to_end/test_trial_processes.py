"""Runs of a comparison in several processes, as typed: the same bits, whatever dies, and nothing left behind."""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.experiments.comparison.trial_processes import usable_cores

pytestmark = pytest.mark.slow

FOUR_ROUNDS = ("--seeds", "0,1", "--set", "training.rounds=4", "--json")
IN_TWO = ("--set", "runner.parallel_runs=2")


def weights(compared: dict[str, Any]) -> dict[tuple[str, int], str]:
    return {(run["method"], run["seed"]): run["weights_sha256"] for run in compared["runs"]}


def test_two_processes_give_the_bits_of_one_and_prefect_shows_their_runs_in_the_comparison(
    partitioned: Any, finished: Any, tmp_path: Path, assert_quiet: Callable[[str], None]
) -> None:
    folder = partitioned[0].copy(tmp_path / "project")
    answer = folder.type("compare", "fedavg", "local_only", *FOUR_ROUNDS, *IN_TWO, alone=True)
    assert weights(answer.json) == weights(finished.compare.json)
    assert list(weights(answer.json)) == list(weights(finished.compare.json))  # not in the order in which they ended
    assert_quiet(answer.err)
    states = folder.in_prefect("SELECT state_type FROM flow_run WHERE parent_task_run_id IS NOT NULL")
    assert states == [("COMPLETED",)] * 4
    assert not list((folder.path / "runs" / "open").iterdir())
    with closing(sqlite3.connect(folder.path / "runs" / "mlflow.db")) as database:
        parents = database.execute("SELECT value FROM tags WHERE key = 'mlflow.parentRunId'").fetchall()
    assert (len(parents), len(set(parents))) == (4, 1)  # one comparison, though two processes made its first runs


def test_a_tuned_comparison_tries_the_same_settings_in_two_processes(
    partitioned: Any, server: str, tmp_path: Path
) -> None:
    tuning = (
        "compare",
        "fedavg",
        "--seeds",
        "0,1",
        "--set",
        "training.rounds=2",
        "--set",
        "comparison.tune=2",
        "--json",
    )
    one, two = (
        partitioned[0].copy(tmp_path / name, server).type(*tuning, "--set", f"runner.parallel_runs={number}").json
        for name, number in (("one", 1), ("two", 2))
    )
    assert one["tuning"] == two["tuning"]
    assert weights(one) == weights(two)


def test_the_run_of_a_process_that_dies_continues_in_another_one(
    partitioned: Any, finished: Any, server: str, tmp_path: Path
) -> None:
    folder = partitioned[0].copy(tmp_path / "project")
    output = tmp_path / "output.json"
    with output.open("w") as out:
        long = folder.start_waiting(*FOUR_ROUNDS, *IN_TWO, verb="compare", PREFECT_API_URL=server, out=out)
        trial_processes(long.pid)[0].kill()
        folder.go_on()
        _, screen = long.communicate(timeout=600)
    assert long.returncode == 0, screen
    assert "ended unexpectedly; the run continues in another one." in screen
    expected = weights(finished.compare.json)
    found = weights(json.loads(output.read_text()))
    assert [found["waits", seed] for seed in (0, 1)] == [expected["fedavg", seed] for seed in (0, 1)]


DIES = """
import os
import signal

from flows.methods import fedavg
from flows.plugins import register_method


@register_method("dies")
class Dies(fedavg.FedAvg):
    def run_round(self, state, round):
        if round.number == 2 and round.setup.seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run_round(state, round)
"""


def test_a_run_in_which_every_process_dies_ends_the_command_with_a_sentence(
    partitioned: Any, server: str, tmp_path: Path
) -> None:
    folder = partitioned[0].copy(tmp_path / "project", server)
    (folder.path / "dies.py").write_text(DIES)
    parallel = ("--set", "runner.parallel_runs=3", "--set", "plugins=[dies.py]")
    answer = folder.type("compare", "dies", *FOUR_ROUNDS, *parallel, code=2)
    assert "a process that trained dies-seed1 ended unexpectedly; the run continues in another one." in answer.err
    assert (
        "error: dies-seed1: two processes ended while they trained it, most likely because memory ran out."
        in answer.err
    )


def test_processes_end_with_the_command_that_is_interrupted_or_killed(
    partitioned: Any, finished: Any, server: str, living: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    folder = partitioned[0].copy(tmp_path / "project")
    interrupted = folder.start_waiting(*FOUR_ROUNDS, *IN_TWO, verb="compare", PREFECT_API_URL=server)
    os.killpg(interrupted.pid, signal.SIGINT)
    folder.go_on()
    _, screen = interrupted.communicate(timeout=600)
    assert interrupted.returncode == 130
    assert screen.splitlines()[-1].startswith("stopped; all completed work is saved: --resume continues")
    assert_gone(living, folder.path)

    for name in ("waits", "goes-on"):
        (folder.path / name).unlink(missing_ok=True)
    killed = folder.start_waiting(*FOUR_ROUNDS, *IN_TWO, verb="compare", PREFECT_API_URL=server)
    killed.kill()
    killed.communicate(timeout=600)
    assert_gone(living, folder.path)
    folder.go_on()
    arguments = folder.waiting(*FOUR_ROUNDS, *IN_TWO, "--resume", verb="compare")
    found, expected = weights(replace(folder, server=server).type(*arguments).json), weights(finished.compare.json)
    assert [found["waits", seed] for seed in (0, 1)] == [expected["fedavg", seed] for seed in (0, 1)]


def test_a_quota_of_a_container_limits_the_cores(tmp_path: Path) -> None:
    cores, file = usable_cores(tmp_path), tmp_path / "sys/fs/cgroup/cpu.max"
    assert cores >= 1
    file.parent.mkdir(parents=True)
    for content, expected in (("max 100000\n", cores), ("50000 100000\n", 1), (f"{10**9} 1000\n", cores)):
        file.write_text(content)
        assert usable_cores(tmp_path) == expected


def trial_processes(pid: int) -> list[psutil.Process]:
    """The living trial processes of a command, as soon as there are two."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = [p for p in psutil.Process(pid).children() if "trial_worker" in " ".join(p.cmdline())]
        if len(found) == 2:
            return found
        time.sleep(0.05)
    raise AssertionError("no two processes")


def assert_gone(living: Callable[[Path], list[str]], folder: Path) -> None:
    end = time.monotonic() + 60
    while (found := living(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    assert found == []
