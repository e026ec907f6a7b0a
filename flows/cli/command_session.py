"""Provide what every command needs: common options, and the session in which it runs.

"Add a command" in docs/how-it-works.md has an example. What the session starts and stops is in command_lifecycle.py.
"""

import json as json_format
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer

from flows.results.registry import JOURNAL
from silos.errors import UserError

if TYPE_CHECKING:  # `siloflow --help` imports neither rich nor pydantic
    from flows.core.console.safe_text import PlainConsole
    from flows.orchestration.flow_decorator import ProjectFlow
    from flows.project.project import Project

Answer = TypeVar("Answer")
"""What a command prints: plain JSON, mostly of a type in `tasks.tracking.result_types`."""

Result = TypeVar("Result")
"""What a flow returns."""

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Change one value of params.yaml for this command; can be repeated."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on stdout.")]
Timings = Annotated[bool, typer.Option("--timings", help="Print how long each step of starting and stopping took.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Continue the newest unfinished run with these arguments after its last complete round."
    ),
]

RUN_FAILED = 1  # the exit code


class Session:
    """Runs one command: prints its result or its error, and stops what it started, however the command ends.

    A UserError ends the command with its sentence and exit code 2; other errors keep their traceback.

    Args:
        json: Print the result as JSON.
        timings: Print how long starting and stopping took.
        server: Start Prefect's server when the project is open. `run_flow` needs one.
        retry_hint: How the user continues after an interrupt.
        resume_hint: The same for an interrupt after a run has started; `retry_hint` if None.
    """

    def __init__(
        self,
        json: bool = False,
        timings: bool = False,
        server: bool = False,
        retry_hint: str = "run the command again",
        resume_hint: str | None = None,
    ) -> None:
        from flows.cli.command_lifecycle import CommandLifecycle

        self._json, self._server, self._hints = json, server, (retry_hint, resume_hint)
        self._lifecycle = CommandLifecycle(timings, show_start=server and not json)
        self._recording = ExitStack()

    def __enter__(self) -> Self:
        self._lifecycle.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure: UserError | OSError | None = None
        try:
            self.end_record(error)
        except (UserError, OSError) as found:  # the log is damaged, or the disk is full
            failure = found
        finally:
            self._lifecycle.stop(error or failure, *self._hints)
        if error is None and failure is not None:
            raise failure

    def end_record(self, error: BaseException | None = None) -> None:
        """Record how the command that opened the project ended; nothing if it is not recorded."""
        self._recording.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    @property
    def root(self) -> Path:
        """The project's folder: the current one."""
        return Path().resolve()

    def open_project(
        self,
        overrides: list[str] | None,
        check: Callable[["Project"], None] | None = None,
        lock_data_for: str | None = None,
        is_recorded: bool = True,
    ) -> "Project":
        """Read params.yaml with these overrides. Call this before Prefect is imported: it then reads the server's address.

        Args:
            overrides: As in `--set`.
            check: Raises UserError if the command cannot work on the project. Within a flow Prefect would log a traceback.
            lock_data_for: The name of the work that needs data/ unchanged until the command ends.
            is_recorded: Whether the command is in the log that the owner of the silos reads.
        """
        from flows.project.project import Project
        from silos.io.addresses import mask_passwords
        from silos.privacy.owned_source import find_store
        from silos.privacy.request_log import recording

        project = Project.open(overrides or [])
        if is_recorded:
            asked = mask_passwords(shlex.join(["siloflow", *sys.argv[1:]]))
            self.end_record()  # of the look before
            self._recording.enter_context(recording(lambda: find_store(project.root, project.params.data), asked))
        self._lifecycle.record_time("params")
        self._complete_decision(project)
        if lock_data_for is not None:
            self._lifecycle.locks.enter_context(project.data.working(lock_data_for))
        if check is not None:
            check(project)
            self._lifecycle.record_time("input")
        if self._server:
            self.start_server()
        return project

    def _complete_decision(self, project: "Project") -> None:
        """Complete a promotion or rollback that was interrupted; other commands only report if that fails."""
        if not (project.root / JOURNAL).is_file():
            return
        from flows.results.registry.promotion import finish

        try:
            finish(project)
        except UserError as error:
            self.print_progress(str(error))

    def start_server(self, **options: Any) -> None:
        """Start Prefect's server unless one runs; for commands that know only later whether they need it."""
        self._lifecycle.start_server(**options)

    def has_lost_server(self) -> bool:
        """Return whether Prefect's server was started or joined, and has ended or does not answer for long."""
        return self._lifecycle.has_lost_server()

    def wait_for_server(self) -> str:
        """Return the address of Prefect's API once it answers."""
        return self._lifecycle.wait_for_server()

    def run_flow(self, flow: "ProjectFlow[Result]", project: "Project", /, **parameters: Any) -> Result:
        """Run the flow on the project with progress on stderr, and return its result.

        Args:
            flow: A flow of flows/. Import it after `open_project`: meanwhile the server starts.
            project: The open project.
            parameters: Plain JSON, which Prefect stores.
        """
        with self._lifecycle.showing_progress():
            return flow.on(project, **parameters)

    def print_progress(self, line: str) -> None:
        """Print a line on stderr."""
        self._lifecycle.print_progress(line)

    def print_result(
        self, result: Answer, render: "Callable[[Answer, PlainConsole], None]", failed: bool = False
    ) -> None:
        """Print the result on stdout: as JSON with --json, else by `render`.

        Args:
            result: Plain JSON.
            render: Prints the result for a reader, on the console that it gets.
            failed: End the command with exit code 1.
        """
        if self._json:
            from tasks.tracking.json_io import replace_nonfinite

            sys.stdout.write(json_format.dumps(replace_nonfinite(result)) + "\n")
            sys.stdout.flush()  # `watch` goes on
        else:
            render(result, self._lifecycle.output)
        if failed:
            raise SystemExit(RUN_FAILED)
