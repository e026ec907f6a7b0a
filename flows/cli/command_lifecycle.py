"""Start and stop what surrounds a command: signal handlers, Prefect's server, locks, the screen, and how errors end it."""

import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import quiet_prefect
from flows.core.console import progress
from flows.core.console.process_control import exit_code, install_handlers, interruption, resume_gc
from flows.orchestration.servers.prefect_server import PrefectServer
from silos.errors import UserError, shown
from silos.io.addresses import keep_loopback_direct, mask_passwords
from tasks.tracking.json_io import unwritable

if TYPE_CHECKING:  # a command that prints JSON imports no rich
    from flows.core.console.progress_bar import Terminal
    from flows.core.console.safe_text import PlainConsole

USER_MISTAKE = 2  # the exit code
_NOTICE = "starting ..."
# the extra `coordinator`, which a place does without
_OF_COORDINATOR = ("dvc", "fastapi", "jinja2", "matplotlib", "mlflow", "prefect", "sqlalchemy", "uvicorn")
_PATIENCE = 10.0  # seconds that a busy server gets to answer


class CommandLifecycle(progress.ProgressSink):
    """Serves one `flows.cli.command_session.Session`. Until a flow starts, it is the progress sink, which prints lines.

    Args:
        timings: Print how long each step took when the command stops.
        show_start: Show a notice while the command starts.
    """

    def __init__(self, timings: bool, show_start: bool) -> None:
        self.locks = ExitStack()  # held until the command ends
        self._timings, self._show_start = timings, show_start
        self._shows_notice = False
        self._terminal: Terminal | None = None
        self._steps: list[tuple[str, float]] = []  # name and seconds
        self._start = self._last = time.perf_counter()
        self._server: PrefectServer | None = None

    @cached_property
    def output(self) -> "PlainConsole":
        """The console of stdout."""
        from flows.core.console.safe_text import PlainConsole

        return PlainConsole()

    @cached_property
    def _errors(self) -> "PlainConsole":
        from flows.core.console.safe_text import PlainConsole

        return PlainConsole(file=sys.stderr)  # of now: progress is shown while DVC's own output is suppressed

    def start(self) -> None:
        """Prepare the process. Nothing heavy is imported, so that the server starts while the command imports its flow."""
        quiet_prefect()
        keep_loopback_direct()
        logging.raiseExceptions = False  # else Prefect's log handler prints a traceback whenever its server is away
        install_handlers()
        progress.use(self)
        if self._show_start:
            self._show_notice()

    def stop(self, error: BaseException | None, retry_hint: str, resume_hint: str | None) -> None:
        """Release and stop everything, then end the process if the command failed with an error that the user can mend.

        Raises:
            SystemExit: For a UserError, for a file that cannot be written, and for an interrupt.
        """
        self.locks.close()
        self.record_time("work")
        self._clear_notice()
        if self._server is not None:
            self._deliver_task_runs(failed=error is not None)
            self.record_time("delivery of task runs")
            if "prefect.events.worker" in sys.modules and self._server.is_gone():
                from tasks.execution.prefect_failure import discard_events

                discard_events()
            self._server.stop()
        if self._timings:
            self._print_timings()
        self._exit_with_sentence(error)
        signal = interruption(error)
        if isinstance(signal, KeyboardInterrupt):
            run_started = self._terminal is not None and self._terminal.has_started_run
            hint = resume_hint if run_started and resume_hint else retry_hint
            self._errors.print(f"stopped; all completed work is saved: {hint}.", soft_wrap=True)
            raise SystemExit(exit_code(signal))

    def start_server(self, **options: Any) -> None:
        """Start Prefect's server, or use the one that runs in this project."""
        if not has_prefect():
            raise ModuleNotFoundError(name="prefect")
        self._server = PrefectServer(Path(), **options)
        if "prefect" in sys.modules:  # a plugin file has imported it, before the server's address was known
            from prefect.context import refresh_global_settings_context

            refresh_global_settings_context()

    def has_lost_server(self) -> bool:
        """Return whether a server of Prefect was started or joined, and has ended or does not answer for long."""
        return self._server is not None and not (self._server.alive() and self._server.answers(_PATIENCE))

    def wait_for_server(self) -> str:
        """Return the server's address once it answers."""
        assert self._server is not None
        self._server.wait()
        self.record_time("server start (beyond the imports)")
        return self._server.url

    @contextmanager
    def showing_progress(self) -> Iterator[None]:
        """Wait for the server, and show the progress of the flow that runs inside."""
        tracking = sys.modules.get("tasks.tracking.mlflow_logging.connection")
        # a server that is still starting leaves time for this; otherwise the delivery's thread imports it while rounds run
        if tracking is not None and self._server is not None and not self._server.answers():
            tracking.import_mlflow()
        resume_gc()
        self.record_time("imports")
        self.wait_for_server()
        self._clear_notice()
        from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

        from flows.core.console.progress_bar import Terminal

        without_heartbeat = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
        with Terminal(self._errors) as self._terminal, without_heartbeat:
            progress.use(self._terminal)
            yield

    def print_progress(self, line: str) -> None:
        """Print a line on stderr, instead of the start notice."""
        self._clear_notice()
        self._errors.print(line, soft_wrap=True)

    def say(self, line: str) -> None:
        """See ProgressSink."""
        self.print_progress(line)

    def record_time(self, step: str) -> None:
        """Record the time since the last step under this name."""
        now = time.perf_counter()
        self._steps.append((step, now - self._last))
        self._last = now

    def _show_notice(self) -> None:
        """Write a notice on a terminal, without an end of line. rich's Status would draw from a thread during imports."""
        if self._errors.is_terminal:
            self._errors.file.write(_NOTICE)
            self._errors.file.flush()
            self._shows_notice = True

    def _clear_notice(self) -> None:
        if self._shows_notice:
            self._errors.file.write(f"\r{' ' * len(_NOTICE)}\r")
            self._errors.file.flush()
            self._shows_notice = False

    def _deliver_task_runs(self, failed: bool) -> None:
        """Wait until the server has the last task runs, since it is about to stop; after a failure not for long."""
        runner = sys.modules.get("tasks.execution.task_runner")
        if self._server is not None and runner is not None:
            self._server.settle(runner.started, 2.0 if failed else 15.0)

    def _print_timings(self) -> None:
        artifacts = sys.modules.get("tasks.tracking.prefect_artifacts")
        for step, seconds in self._steps:
            self._errors.print(f"{seconds:7.2f} s  {step}")
            if step == "work" and artifacts is not None and artifacts.log_stats.lines:
                logged = artifacts.log_stats
                self._errors.print(f"{logged.seconds:7.2f} s  of that for {logged.lines} lines of Prefect's logs")
        self._errors.print(f"{time.perf_counter() - self._start:7.2f} s  in total, after Python's own start")

    def _exit_with_sentence(self, error: BaseException | None) -> None:
        """Print the error's sentence and exit if the user can mend the error; do nothing for others."""
        message = str(error) if isinstance(error, UserError) else unwritable(error) or _not_installed(error)
        if message is None:
            return
        from rich.text import Text

        for line in mask_passwords(message).split("\n"):
            self._errors.print(Text("error:", "bold red"), _without_middle(line), soft_wrap=True)
        raise SystemExit(USER_MISTAKE)


def has_prefect() -> bool:
    """Return whether Prefect is installed, which a place does without."""
    return find_spec("prefect") is not None


def _not_installed(error: BaseException | None) -> str | None:
    """Return a sentence on a package that only places do without; None for another error."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package not in _OF_COORDINATOR:
        return None
    return (
        f"{package} is not installed, which this command needs: the installation of a place has `init`, `partition`, "
        "`place`, `data ledger` and `show` only. Run `pip install -c constraints.txt '.[coordinator]'` in the checkout of "
        "siloflow."
    )


def _without_middle(line: str) -> str:
    """Shorten words of more than 1,023 characters, which are longer than any useful value; most paths stay whole."""
    return re.sub(r"\S{1024,}", lambda word: shown(word.group()), line)
