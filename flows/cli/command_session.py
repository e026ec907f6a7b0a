"""Around one command: the embedded server, the screen, what is printed, and how errors end."""

import importlib
import json
import logging
import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.text import Text

from flows.console import gc_tuning, progress
from flows.console.interruption import exit_code, install_handlers, interruption
from flows.console.progress_bar import StartSpinner
from flows.console.safe_text import PlainConsole
from flows.servers.prefect_server import PrefectServer
from flows.servers.prefect_settings import quiet_prefect
from silos.errors import UserError, shown
from silos.io.proxies import keep_loopback_direct
from tasks.tracking.error_messages import masked
from tasks.tracking.json_io import finite, unwritable

if TYPE_CHECKING:
    from flows.console.progress_bar import Terminal

USER_MISTAKE, RUN_FAILED = 2, 1


class Session:
    """Starts the server when params.yaml is read, before anything heavy is imported; ends it whatever happens."""

    def __init__(
        self,
        json: bool,
        timings: bool,
        server: bool = True,
        after: str = "run it again",
        begun: str | None = None,
    ) -> None:
        """`after`: what a person may do who has interrupted the command; `begun`: likewise, where a run has begun in it."""
        self._json, self._timings, self._after, self._begun = json, timings, after, begun
        self._terminal: Terminal | None = None
        self._console, self._errors = PlainConsole(), PlainConsole(stderr=True)
        self._starting = StartSpinner(self._errors)
        self._marks: list[tuple[str, float]] = []
        self._start = self._last = time.perf_counter()
        self._wants_server = server
        self._server: PrefectServer | None = None
        self._locks = ExitStack()

    def __enter__(self) -> Self:
        quiet_prefect()
        keep_loopback_direct()
        logging.raiseExceptions = False  # Prefect's log handler would write on the screen whenever its server is away
        install_handlers()
        progress.use(_Lines(self))
        if self._wants_server and not self._json:
            self._starting.say()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._locks.close()
        self._mark("work")
        self._starting.over()
        if self._server is not None:
            self._settle(error is not None)
            self._mark("task runs written down")
            if "prefect.events.worker" in sys.modules and self._server.is_gone():
                from flows.servers.prefect_failure import discard_events

                discard_events()
            self._server.stop()
        if self._timings:
            self._say_timings()
        self._explain(error)
        stop = interruption(error)
        if isinstance(stop, KeyboardInterrupt):
            begun = self._begun if self._terminal is not None and self._terminal.begun else None
            self._errors.print(f"stopped; nothing is lost: {begun or self._after}.", soft_wrap=True)
            raise SystemExit(exit_code(stop))

    @property
    def root(self) -> Path:
        """The project's folder."""
        return Path().resolve()

    def project(
        self, overrides: list[str] | None, look: Callable[[Any], None] | None = None, works: str | None = None
    ) -> Any:
        """This folder's project, to be opened before Prefect is imported: the server's address is a setting of it.

        Commands look at their input with it before a flow starts: inside one, Prefect would log a traceback. `look` does so
        before even the server is started.

        Args:
            works: The name of the work on data/, which stays as it is from here to the end of the command. So what `look`
                has checked holds in the flow.
        """
        from flows.experiment.project import Project

        project = Project.open(overrides or [])
        self._mark("params")
        if works is not None:
            self._locks.enter_context(project.working(works))
        if look is not None:
            look(project)
            self._mark("input")
        if self._wants_server:
            self.serve()
            if "prefect" in sys.modules:  # a plugin file has imported it, before the server's address was known
                from prefect.context import refresh_global_settings_context

                refresh_global_settings_context()
        return project

    def serve(self, **options: Any) -> None:
        """Starts the server, if none runs; a command that may not need one asks for it when it knows."""
        self._server = PrefectServer(Path(), **options)

    def server_url(self) -> str:
        """Waits for the embedded server."""
        assert self._server is not None
        self._server.wait()
        self._mark("server start (what the imports did not hide)")
        return self._server.url

    def flow(self, module: str, name: str, project: Any, /, **parameters: Any) -> Any:
        """Runs the flow of this name in this module on this project, its progress on stderr.

        Prefect gets the project's overrides, as plain JSON; the flow has the project itself.
        """
        flow = getattr(importlib.import_module(module), name)
        tracking = sys.modules.get("tasks.tracking.mlflow_logging.connection")
        if tracking is not None:  # the server is still starting: later this would take time from training
            tracking.import_mlflow()
        gc_tuning.resume_gc()
        self._mark("imports")
        self.server_url()
        self._starting.over()
        from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

        from flows.console.progress_bar import Terminal

        with (
            project.shared(),
            Terminal(self._errors) as terminal,
            temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        ):
            self._terminal = terminal
            progress.use(terminal)
            return flow(**parameters, overrides=project.overrides)

    def say(self, line: str) -> None:
        """A line of progress on stderr."""
        self._starting.over()
        self._errors.print(line, soft_wrap=True)

    def _settle(self, failed: bool) -> None:
        """The server hears of the last tasks before it is stopped; after a failure nobody waits long."""
        runner = sys.modules.get("tasks.execution.task_runner")
        if self._server is not None and runner is not None:
            self._server.settle(runner.started, 2.0 if failed else 15.0)

    def answer(self, content: Any, printer: str | Callable[[Any, Any], None], failed: bool = False) -> None:
        """The result on stdout, as JSON or as this printer shows it: one of PRINTERS, or a function of its own.

        A failed run sets the exit code.
        """
        if self._json:
            sys.stdout.write(json.dumps(finite(content)) + "\n")
        else:
            if isinstance(printer, str):
                from flows.cli.renderers.dispatch import PRINTERS

                printer = PRINTERS[printer]
            printer(content, self._console)
        if failed:
            raise SystemExit(RUN_FAILED)

    def _mark(self, name: str) -> None:
        now = time.perf_counter()
        self._marks.append((name, now - self._last))
        self._last = now

    def _say_timings(self) -> None:
        page = sys.modules.get("flows.experiment.prefect_artifacts")
        for name, seconds in self._marks:
            self._errors.print(f"{seconds:7.2f} s  {name}")
            if name == "work" and page is not None and page.so_far.lines:
                logged = page.so_far
                self._errors.print(f"{logged.seconds:7.2f} s  of that for {logged.lines} lines of Prefect's logs")
        self._errors.print(f"{time.perf_counter() - self._start:7.2f} s  in all, after Python's own start")

    def _explain(self, error: BaseException | None) -> None:
        """Ends the command with a sentence if the error is one that a person can mend; others keep their traceback."""
        message = str(error) if isinstance(error, UserError) else unwritable(error)
        if message is None:
            return
        for line in masked(message).split("\n"):
            self._errors.print(Text("error:", "bold red"), _bounded(line), soft_wrap=True)
        raise SystemExit(USER_MISTAKE)


def _bounded(line: str) -> str:
    """The line without the middle of what nobody reads to its end; a path of any file system stays whole."""
    return re.sub(r"\S{1024,}", lambda long: shown(long.group()), line)


class _Lines(progress.ProgressSink):
    """What is said before a flow has its own screen, or without one."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def say(self, line: str) -> None:
        """Something that a person should know."""
        self._session.say(line)
