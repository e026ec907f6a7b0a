"""Trial processes that do not end by themselves; tests/end_to_end/test_trial_processes.py has what a user sees."""

import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from flows.experiments.comparison import trial_processes
from flows.experiments.comparison.trial_processes import Trial, TrialProcesses
from flows.run import run_trial
from silos.errors import UserError


def test_a_process_that_was_stopped_is_killed_after_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_processes, "_PATIENCE", 0.2)
    monkeypatch.setattr(trial_processes, "_LAST_PATIENCE", 0.2)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    project: Any = SimpleNamespace(params=SimpleNamespace(runner=SimpleNamespace(parallel_runs=2)), scratch=object())
    ours, _theirs = socket.socketpair()
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    child.send_signal(signal.SIGSTOP)
    process = trial_processes._Process(child, Connection(ours.detach()), is_ready=True)
    began = time.monotonic()
    processes = TrialProcesses(project, "any", run_trial)
    processes._processes.append(process)
    interrupt = KeyboardInterrupt()
    processes.__exit__(KeyboardInterrupt, interrupt, None)
    assert child.returncode is not None
    assert time.monotonic() - began < 30


def test_a_run_of_which_two_processes_died_is_not_tried_a_third_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_processes, "process_count", lambda _: 7)
    project: Any = SimpleNamespace(params=SimpleNamespace(runner=SimpleNamespace(parallel_runs=7)))
    processes = TrialProcesses(project, "any", run_trial)

    def died(seed: int | None) -> None:
        ours, _ = socket.socketpair()
        child = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
        trial = None if seed is None else Trial(project, "fedavg", seed)
        processes._processes.append(trial_processes._Process(child, Connection(ours.detach()), True, trial))
        processes._drop(processes._processes[-1])

    for seed in (0, 1, None, None):
        died(seed)
    assert processes._count_for(9, 100.0, 1.0) == 3  # none is started for one that died
    with pytest.raises(UserError, match="fedavg-seed1: two processes ended while they trained it"):
        died(1)


@pytest.mark.parametrize(
    ("asked", "runs", "seconds", "per_round", "count"),
    [
        (3, 9, 1.0, 0.01, 3),
        (3, 2, 100.0, 1.0, 2),
        (3, 0, 100.0, 1.0, 1),
        ("auto", 9, 3.0, 1.0, 1),  # less than half a minute of work
        ("auto", 9, 4.0, 1.0, 4),
        ("auto", 3, 40.0, 1.0, 3),
        ("auto", 9, 40.0, 0.46, 3),  # as many as keep Prefect's server busy
        ("auto", 9, 40.0, 0.1, 1),
    ],
)
def test_as_many_processes_start_as_the_runs_are_worth(asked, runs, seconds, per_round, count, monkeypatch) -> None:
    monkeypatch.setattr(trial_processes, "process_count", lambda _: asked if isinstance(asked, int) else 4)
    monkeypatch.setattr(trial_processes, "free_bytes", lambda: 1 << 50)
    project: Any = SimpleNamespace(params=SimpleNamespace(runner=SimpleNamespace(parallel_runs=asked)))
    processes = TrialProcesses(project, "any", run_trial)
    assert processes._count_for(runs, seconds, per_round) == count
    assert processes.seconds_for(runs, seconds, per_round) == pytest.approx(runs * seconds / count)
    used = psutil.Process().memory_info().rss
    monkeypatch.setattr(trial_processes, "free_bytes", lambda: 4 * used)  # room for two
    assert processes._count_for(runs, seconds, per_round) == (count if isinstance(asked, int) else min(count, 2))
