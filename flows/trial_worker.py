"""The main program of a process that runs trials; `flows.experiments.comparison.trial_processes` starts it.

It is started as `trial_worker SOCKET`. It receives a `Setup` and then trials, and sends progress and outcomes. The end of
its stdin ends it, as after a kill -9 of its parent.
"""

import logging
import os
import pickle
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from flows import quiet_prefect
from flows.core.console import progress
from flows.core.console.process_control import (
    end_with_parent,
    install_handlers,
    interruption,
    pause_gc,
    raise_if_interrupted,
    resume_gc,
)
from silos.io.addresses import keep_loopback_direct

if TYPE_CHECKING:
    from flows.experiments.comparison.trial_processes import Setup
    from flows.project.project import Project


class _Sender(progress.ProgressSink):
    """Sends messages, among them the progress of runs; several threads may send."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def send(self, *message: Any) -> None:
        with self._lock:
            self._connection.send(message)

    def begin(self, *args: Any) -> None:
        self.send("progress", "begin", args)

    def round(self, *args: Any) -> None:
        self.send("progress", "round", args)

    def end(self, *args: Any) -> None:
        self.send("progress", "end", args)

    def fail(self, *args: Any) -> None:
        self.send("progress", "fail", args)

    def say(self, line: str) -> None:
        self.send("progress", "say", (line,))

    def say_once(self, line: str) -> None:
        self.send("progress", "say_once", (line,))


def main(descriptor: str) -> None:
    """Run trials until there are no more."""
    end_with_parent(lambda: None, code=1)
    install_handlers()
    pause_gc()
    quiet_prefect()
    keep_loopback_direct()
    logging.raiseExceptions = False  # else Prefect's log handler prints a traceback whenever its server is away
    os.set_inheritable(int(descriptor), False)
    connection = Connection(int(descriptor))
    sender = _Sender(connection)
    progress.use(sender)
    try:
        _serve(connection, sender)
    except BaseException as error:
        if interruption(error) is None and not isinstance(error, EOFError | BrokenPipeError | ConnectionResetError):
            with suppress(OSError):
                sender.send("error", _sendable(error))
    with suppress(BaseException):
        _deliver()
    os._exit(0)  # nothing that a thread still does is needed


def _serve(connection: Connection, sender: _Sender) -> None:
    setup: Setup = connection.recv()
    from prefect.context import hydrated_context
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from flows.project.project_workers import project_workers
    from flows.run import run_trial
    from tasks.execution import task_runner

    os.chdir(setup.root)
    project = _open(setup)
    resume_gc()
    with (
        hydrated_context(pickle.loads(setup.context)),
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        project.data.working(setup.experiment),
        project_workers(project),
    ):
        sender.send("ready")
        while True:
            raise_if_interrupted()  # an interrupt that the last run did not see
            request = connection.recv()
            if request is None:
                return
            overrides, derived, method, seed, cell, until = request
            began, before = time.perf_counter(), task_runner.started
            try:
                of_trial = project.derive(overrides, derived)
                outcome = run_trial(of_trial, method, seed, setup.experiment, cell, until)
            except Exception as error:
                if interruption(error) is not None:
                    raise
                sender.send("error", _sendable(error))
                continue
            sender.send("done", outcome, time.perf_counter() - began, task_runner.started - before)


def _open(setup: "Setup") -> "Project":
    """Open the project with the params that the command has read; UserError if a plugin file has changed since."""
    from flows.core.config.load_config import ParamsFile
    from flows.core.plugin_loader import PluginFiles
    from flows.project.project import Project
    from silos.errors import UserError

    file = ParamsFile(setup.raw, setup.root, PluginFiles(setup.root)).with_overrides(setup.overrides)
    project = Project.of(file, setup.root, setup.derived)
    if [entry.digest for entry in project.params.registered.entries] != setup.plugins:
        raise UserError(
            "plugins: got a plugin file that changed after the command had read it, expected the same one, since the runs "
            "of a comparison must be comparable. Restore it and use --resume, or start again."
        )
    return project


def _sendable(error: BaseException) -> BaseException:
    """Return the error with its traceback as a note, or a RuntimeError with its text if it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}\n{error.__notes__[-1]}")
    return error


def _deliver() -> None:
    """Send what is queued for Prefect's server."""
    if "prefect.events.worker" in sys.modules:
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        EventsWorker.drain_all(timeout=15.0)
        APILogWorker.drain_all(timeout=15.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
