"""Run independent trials in several processes of this machine at once.

A run computes on one thread, so that its bits do not depend on the number of cores. Trials of a comparison or a race
share the cores instead. Each result has the same bits as in one process, and is in the same folder on disk. Only the
order in which trials end differs, and how many trials fit into limited time. If this process dies, its trial processes
end at once; if one of them dies, another one continues its run.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from operator import length_hint
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import cloudpickle
import psutil
from prefect.context import serialize_context
from prefect.settings import PREFECT_API_URL

from flows.core.console import progress
from flows.core.console.process_control import Stopped, interruption, raise_if_interrupted
from flows.project.project import Project
from flows.training.run_records.run_folder import run_name
from flows.training.training_setup import device_of
from silos.errors import UserError
from silos.io.memory_and_disk import free_bytes
from tasks.execution import task_runner
from tasks.tracking.result_types.run_result import RunResult

_WORTHWHILE = 30.0  # seconds of work; a trial process takes about five seconds of a core to start
_ROUND = 0.15  # seconds of a round for each process; Prefect's server takes about a third of that for its tasks
_MOST = 8  # processes of `auto`; more would wait for Prefect's server
_MEMORY = 1.5  # a trial process takes up to this many times the memory of this one
_PATIENCE = 60.0  # seconds in which an interrupted process saves its run
_LAST_PATIENCE = 5.0  # seconds in which a process ends whose pipes are closed


class Trial(NamedTuple):
    """A run of a method in an experiment."""

    project: Project
    method: str
    seed: int
    cell: str = ""
    until: int = 0

    @property
    def name(self) -> str:
        """Return the name of its folder, which no other trial of the experiment has."""
        return run_name(self.method, self.seed, self.cell)


Outcome = RunResult | str
"""The result of a run, or the reason why it failed."""

RunTrial = Callable[[Project, str, int, str, str, int], Outcome | None]
"""Maps project, method, seed, experiment, cell and `until` to a result or to the reason of a failure; None after a pause."""


class Finished(NamedTuple):
    """A trial with its result, or the reason why it failed, and the seconds that it took."""

    trial: Trial
    outcome: Outcome | None
    """None if the trial paused."""
    seconds: float

    @property
    def ended(self) -> Outcome:
        """Return the outcome of a trial that does not pause."""
        assert self.outcome is not None, "it was asked to pause"
        return self.outcome


class Setup(NamedTuple):
    """What a trial process needs before its first trial: the params as the command read them, and Prefect's flow run."""

    raw: dict[str, Any]
    root: Path
    overrides: tuple[str, ...]
    derived: bool
    plugins: list[str]  # digests
    experiment: str
    context: bytes  # of Prefect, pickled by cloudpickle


@dataclass
class _Process:
    """A trial process, and the trial that it runs."""

    child: subprocess.Popen
    connection: Connection
    is_ready: bool = False
    trial: Trial | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it can start a trial now."""
        return self.is_ready and self.trial is None


class TrialProcesses:
    """Runs trials in this process, or in several processes once that saves time. Use it as a context manager.

    Args:
        project: The project that the trials' projects derive from.
        experiment: The folder of the runs in runs/.
        run_trial: Runs a trial in this process, as `flows.run.run_trial`, which the other processes call.
    """

    def __init__(self, project: Project, experiment: str, run_trial: RunTrial) -> None:
        self._project, self.experiment, self._run_trial = project, experiment, run_trial
        self._asked = project.params.runner.parallel_runs
        self._most = process_count(project)
        self._processes: list[_Process] = []
        self._died: set[str] = set()  # the runs in which a process died

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end()
        else:
            stop = interruption(error)
            self._stop(stop.signal if isinstance(stop, Stopped) else signal.SIGINT)

    @property
    def at_once(self) -> int:
        """The number of trials that run at the same time now."""
        return max(1, len(self._processes))

    def start_asked(self, runs: int) -> None:
        """Start as many processes as params.yaml sets, at most one for each run; with `auto` none."""
        if isinstance(self._asked, int):
            self._grow(min(self._most, runs))

    def start_for(self, runs: int, seconds: float, per_round: float) -> None:
        """Start processes, or more of them, if the runs that are left are worth it; they import in the background.

        Args:
            runs: The number of runs that are left.
            seconds: The seconds of each.
            per_round: The seconds of a round. If it is short, Prefect's server is as busy as the run and cannot serve more.
        """
        self._grow(self._count_for(runs, seconds, per_round))

    def _grow(self, count: int) -> None:
        for _ in range(len(self._processes), count if count > 1 else 0):
            self._spawn()

    def seconds_for(self, runs: int, seconds: float, per_round: float) -> float:
        """Return the expected seconds of this number of runs; see `start_for`."""
        return runs * seconds / max(self.at_once, self._count_for(runs, seconds, per_round))

    def _count_for(self, runs: int, seconds: float, per_round: float) -> int:
        """Return how many processes this number of runs is worth; 1 means no further process.

        With `auto`, each takes about as much memory as this process, in which at least one run has ended.
        """
        if isinstance(self._asked, int):
            return max(1, min(self._most, runs))
        if runs * seconds <= _WORTHWHILE:
            return 1
        memory = _MEMORY * psutil.Process().memory_info().rss
        fitting = len(self._processes) + int(free_bytes() / memory)
        return max(1, min(self._most, runs, fitting, int(per_round / _ROUND)))

    def run(self, trials: Iterable[Trial]) -> Iterator[Finished]:
        """Run the trials and yield each when it ends. The next one is read when a process is free for it.

        Raises:
            Exception: What `run_trial` raises; the trials that run meanwhile are stopped with `__exit__`.
        """
        waiting = iter(trials)
        self.start_asked(length_hint(waiting))
        while not self._processes:
            trial = next(waiting, None)
            if trial is None:
                return
            finished = self._run_here(trial)
            yield finished
            self._start_after(finished, length_hint(waiting))
        yield from self._run_there(waiting)

    def _start_after(self, finished: Finished, left: int) -> None:
        if isinstance(finished.outcome, dict):
            self.start_for(left, finished.seconds, finished.outcome["seconds"]["per_round"])

    def _run_here(self, trial: Trial) -> Finished:
        began = time.perf_counter()
        outcome = self._run_trial(trial.project, trial.method, trial.seed, self.experiment, trial.cell, trial.until)
        return Finished(trial, outcome, time.perf_counter() - began)

    def _run_there(self, waiting: Iterator[Trial]) -> Iterator[Finished]:
        """Run trials in the processes; here, if all of these have died."""
        interrupted: list[Trial] = []
        while True:
            is_over = False
            for process in [p for p in self._processes if p.is_idle]:
                trial = interrupted.pop() if interrupted else next(waiting, None)
                if trial is None:
                    is_over = True
                    break
                self._send(process, trial)
            if not self._processes:
                trial = interrupted.pop() if interrupted else next(waiting, None)
                if trial is None:
                    return
                yield self._run_here(trial)
                continue
            if is_over and all(p.trial is None for p in self._processes):
                return
            raise_if_interrupted()
            ready = wait([p.connection for p in self._processes], timeout=1.0)
            for process in [p for p in self._processes if p.connection in ready]:
                try:
                    message = process.connection.recv()
                except (EOFError, OSError):
                    self._drop(process)
                    interrupted += [process.trial] if process.trial is not None else []
                    continue
                finished = self._handle(process, *message)
                if finished is not None:
                    yield finished
                    self._start_after(finished, length_hint(waiting))

    def _send(self, process: _Process, trial: Trial) -> None:
        process.trial = trial
        overrides, derived = trial.project.overrides, trial.project.derived
        with suppress(OSError):  # a dead process is found by the next `wait`
            process.connection.send((overrides, derived, trial.method, trial.seed, trial.cell, trial.until))

    def _handle(self, process: _Process, kind: str, *content: Any) -> Finished | None:
        """Handle a message of a process; return the trial that it ended, if it did; raise the error that it sent."""
        if kind == "progress":
            name, args = content
            getattr(progress.current(), name)(*args)
        elif kind == "ready":
            process.is_ready = True
        elif kind == "error":
            process.trial = None
            raise content[0]
        elif kind == "done":
            trial, process.trial = process.trial, None
            assert trial is not None
            outcome, seconds, tasks = content
            task_runner.count_started(tasks)
            return Finished(trial, outcome, seconds)
        return None

    def _drop(self, process: _Process) -> None:
        """Forget a process that died; the others do its work, and no other one is started for it.

        Raises:
            UserError: If the process is the second one that died of the same run.
        """
        self._processes.remove(process)
        self._most -= 1
        process.connection.close()
        _close_input(process)
        process.child.wait()
        trial = process.trial
        if trial is None:
            progress.current().say_once(
                "a process for further runs ended unexpectedly; the command continues without it."
            )
            return
        run = trial.name
        if run in self._died:
            raise UserError(
                f"{run}: two processes ended while they trained it, most likely because memory ran out. Lower "
                "runner.parallel_runs; --resume continues after the last complete round."
            )
        self._died.add(run)
        others = len(self._processes)
        left = "in another one" if others else "in the command's own"
        progress.current().say_once(f"a process that trained {run} ended unexpectedly; the run continues {left}.")

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        url = PREFECT_API_URL.value()
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "flows.trial_worker", str(theirs.fileno())],
            stdin=subprocess.PIPE,
            stdout=2,
            env={**os.environ, **({"PREFECT_API_URL": url} if url else {})},
            start_new_session=True,  # ctrl-C of a terminal is for this process, which passes it on
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        process = _Process(child, Connection(ours.detach()))
        self._processes.append(process)
        project = self._project
        setup = Setup(
            project.own_file.as_read.raw,
            project.root,
            tuple(project.overrides),
            project.derived,
            [entry.digest for entry in project.params.registered.entries],
            self.experiment,
            cloudpickle.dumps(serialize_context()),
        )
        with suppress(OSError):  # a dead process is found by the next `wait`
            process.connection.send(setup)

    def _end(self) -> None:
        """End the idle processes, after they have delivered what Prefect's server must know."""
        for process in self._processes:
            if not process.is_ready:  # it still imports
                process.child.kill()
            with suppress(OSError):
                process.connection.send(None)
        self._wait_and_close(_PATIENCE)

    def _stop(self, number: int) -> None:
        """Interrupt all runs, wait until they are saved, and end the processes; at a second interrupt end them now."""
        for process in self._processes:
            process.child.send_signal(number if process.is_ready else signal.SIGKILL)
        self._wait_and_close(_PATIENCE)

    def _wait_and_close(self, patience: float) -> None:
        end = time.monotonic() + patience
        try:
            open_ones = list(self._processes)
            while open_ones and time.monotonic() < end:
                ready = wait([process.connection for process in open_ones], timeout=1.0)
                for process in [p for p in open_ones if p.connection in ready]:
                    try:
                        process.connection.recv()  # a full pipe would stop the process
                    except Exception:  # its end, or the rest of a message whose first part was read before an interrupt
                        open_ones.remove(process)
        finally:
            for process in self._processes:
                process.connection.close()
                _close_input(process)
            for process in self._processes:
                try:
                    process.child.wait(_LAST_PATIENCE)
                except subprocess.TimeoutExpired:  # as one that is stopped, or stuck in C code
                    process.child.kill()
                    process.child.wait()
            self._processes = []


def process_count(project: Project) -> int:
    """Return how many trials of the project may run at once: `runner.parallel_runs`, or what cores allow."""
    runner = project.params.runner
    if project.scratch is not None or PREFECT_API_URL.value() is None:
        return 1
    if isinstance(runner.parallel_runs, int):
        return runner.parallel_runs
    if runner.kind == "dask" or device_of(project.params.engine) != "cpu":
        return 1
    return max(1, min(_MOST, usable_cores() // runner.workers))


def usable_cores(root: Path = Path("/")) -> int:
    """Return the cores that this process may use: those of its affinity, less if its container has a quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, math.floor(int(quota) / int(period))))  # "max" without a quota
    return cores


def _close_input(process: _Process) -> None:
    """Close the pipe whose end ends the process."""
    assert process.child.stdin is not None
    with suppress(OSError):
        process.child.stdin.close()
