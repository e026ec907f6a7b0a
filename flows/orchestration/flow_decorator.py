"""Makes a function of flows/ a Prefect flow that the command, Python or a deployment starts in the same way.

A user's mistake ends the flow in the state Failed with a one-sentence message, and without a traceback in Prefect's
log. In Python the same mistake raises the UserError, without Prefect's frames.

Annotated types describe the parameters to Prefect's forms: what a field takes, and which choices exist. They check
nothing, since parameters also come from elsewhere; the flow itself reports wrong ones. Each type is a single plain type
in a form: with null as a second type, the page shows a switch instead of a field, and a field of one type refuses null.
So a missing parameter is an empty list or an empty text, and None means the same.
"""

import functools
import inspect
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar, get_args, get_origin

from prefect import Flow
from prefect.context import FlowRunContext
from prefect.states import Failed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import WithJsonSchema

from flows.core.config.load_config import params_file_of
from flows.core.config.validation_errors import nearest_hint
from flows.core.console import progress
from flows.core.console.process_control import interruption
from flows.methods.base import method_names as methods
from flows.orchestration.open_project import open_project
from flows.orchestration.servers.ephemeral_api import ephemeral_api
from flows.project.project import Project
from flows.results.registry.promotion_history import emit_queued
from flows.results.run_history.abandoned_runs import OPEN, close_abandoned
from silos import param_limits
from silos.errors import UserError
from silos.io.addresses import mask_passwords
from silos.io.locks import hold
from silos.privacy.owned_source import find_store
from silos.privacy.request_log import recording
from tasks.execution.prefect_failure import (
    discard_events,
    failure_sentence,
    ignore_prefect_failure,
    is_prefect_failure,
)


class IncompleteError(Exception):
    """Raised when a part of a flow failed. The caller gets `result`, and Prefect shows a failed flow run."""

    exit_code = 1

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


Result = TypeVar("Result")


class ProjectFlow(Flow[..., Result]):
    """A flow whose function gets the project where Prefect has `overrides`, the differences from params.yaml as text.

    A call from Python or a deployment's run opens the project with these overrides; a call starts Prefect's API if none
    runs. A command, and a flow that calls another one, passes the project that it has opened to `on`.

    Args:
        function: Its parameter `project` is the one that `from_overrides` marks.
        run_name: The name of its runs on Prefect's page.
    """

    def __init__(self, function: Callable[..., Result], run_name: str) -> None:
        runner: Any = ThreadPoolTaskRunner()  # Prefect's types admit only its base class
        super().__init__(
            _entry(function),
            name=function.__name__,
            description=inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:")[0],  # a form shows the rest
            flow_run_name=run_name,
            task_runner=runner,
            validate_parameters=False,
        )
        self._function = function
        signature = inspect.signature(self.fn)
        self.__signature__ = _Signature([*signature.parameters.values()], return_annotation=signature.return_annotation)

    def __call__(self, *args: Any, **options: Any) -> Result:  # type: ignore[override] # no `return_state`
        """Return the flow's result; raises a TypeError if these are not its parameters."""
        return self.on(None, **self._bind(args, options))

    def on(self, project: Project | None, /, **parameters: Any) -> Result:
        """Run the flow on an open project, and return its result, also if Prefect's API failed meanwhile.

        Args:
            project: The project, whose overrides Prefect's page shows; if None, the flow run opens it.
            parameters: Plain JSON, which Prefect stores.

        Raises:
            UserError: If the function raised it, or if Prefect's API failed before the function ended.
        """
        flow, is_inner, outcome = self, FlowRunContext.get() is not None, list[Any]()
        if project is not None:
            flow = object.__new__(ProjectFlow)  # of this call alone: several may run at once
            vars(flow).update(vars(self), fn=_entry(self._function, project))
            parameters["overrides"] = project.overrides
        if is_inner:
            parameters = _copy(parameters)
        else:
            params_file_of(Path())  # fails before Prefect creates its folder here
        token = _outcome.set(outcome)
        try:
            with nullcontext() if is_inner else ephemeral_api(), _hold_run_file():
                try:
                    return Flow.__call__(flow, **parameters)
                except Exception as error:
                    if not is_prefect_failure(error):
                        raise
                    return self._result_without_prefect(error, outcome)
        except IncompleteError as error:
            return error.result
        except UserError as error:
            if is_inner:
                raise
            mistake = error
        finally:
            _outcome.reset(token)
        raise mistake.with_traceback(None) from None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        """Pickle the flow by its name: a worker process imports it, and a copy with its project stays in this process."""
        return _flow_of, (self._function.__module__, self._function.__name__)

    def _bind(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters by name; raises a TypeError in one sentence, where Prefect's own error lists types."""
        signature = inspect.signature(self.fn)
        for keyword in options:
            if keyword not in signature.parameters:
                hint = nearest_hint(keyword, list(signature.parameters))
                raise TypeError(f"{self.name}: got an unknown keyword {keyword!r}{hint}")
        try:
            return dict(signature.bind(*args, **options).arguments)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}; expected {self.name}({', '.join(signature.parameters)}).") from None

    def _result_without_prefect(self, error: Exception, outcome: list[Any]) -> Any:
        """Return or raise what the function returned or raised, although Prefect's API failed.

        Raises:
            UserError: If it failed before the function ended.
        """
        discard_events()
        ended = outcome[0] if outcome else error
        reason = failure_sentence(error)
        if not isinstance(ended, BaseException):
            progress.current().say_once(
                f"{reason}; the result is complete, but Prefect's page does not show the end of the run."
            )
            return ended
        if not is_prefect_failure(ended):
            raise ended from None
        resumes = "resume" in inspect.signature(self.fn).parameters
        way_out = "--resume continues after the last complete round" if resumes else "run the command again"
        raise UserError(f"{reason}. Then {way_out}.") from error


_outcome: ContextVar[list[Any]] = ContextVar("outcome")
"""What the running flow's function returned or raised: Prefect loses it if its API fails afterwards."""


def _current_outcome() -> list[Any]:
    return _outcome.get([])


class _Signature(inspect.Signature):
    """The signature of a flow: help() shows plain types, and Prefect reads the annotations."""

    def __str__(self) -> str:
        types = {name: parameter.annotation for name, parameter in self.parameters.items()}
        plain = {name: get_args(t)[0] if get_origin(t) is Annotated else t for name, t in types.items()}
        parameters = [p.replace(annotation=plain[name]) for name, p in self.parameters.items()]
        return str(inspect.Signature(parameters, return_annotation=self.return_annotation))

    def format(self, **options: Any) -> str:
        """Return the text that pydoc shows from Python 3.13 on."""
        return str(self)


def _flow_of(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def project_flow(run_name: str) -> Callable[[Callable[..., Result]], ProjectFlow[Result]]:
    """Make the function a flow of the same name; see `ProjectFlow`."""
    return lambda function: ProjectFlow(function, run_name)


def from_overrides() -> Any:
    """Mark the parameter `project` of a flow's function: callers from Python pass `overrides` in its place."""
    return None


def _entry(function: Callable[..., Any], project: Project | None = None) -> Callable[..., Any]:
    """Return what Prefect calls for a flow's function; its signature has `overrides` instead of `project`.

    `siloflow schedule` pickles it by value for the process of each run, so it must refer to no ContextVar.
    """
    overrides = inspect.Parameter("overrides", _KIND, default=(), annotation=Overrides)
    declared = inspect.signature(function)
    named = [overrides if name == "project" else each for name, each in declared.parameters.items()]
    signature = declared.replace(parameters=named)

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        """Call the function and record its outcome for `ProjectFlow`; a user's error becomes the state Failed."""
        outcome, in_flow = _current_outcome(), FlowRunContext.get() is not None
        record: AbstractContextManager[None] = nullcontext()
        try:
            _begin_run(project)
            arguments = signature.bind(*args, **options).arguments
            if "project" in declared.parameters:
                overrides = arguments.pop("overrides", ())
                opened = arguments["project"] = project or open_project(overrides, arguments.get("derived", False))
                if project is None:  # else the command that opened it is recorded
                    asked = f"{function.__name__} from Python or a deployment, with {_typed(overrides or [])}"
                    record = recording(lambda: find_store(opened.root, opened.params.data), asked)
            with record:
                result = function(**arguments)
        except IncompleteError as error:
            outcome[:] = [error.result]
            return Failed(message=str(error), data=error) if in_flow else error.result
        except UserError as error:
            outcome[:] = [error]
            if not in_flow:
                raise
            return Failed(message=str(error), data=error)
        except Exception as error:
            stop = interruption(error)  # Prefect's own error may hide it, and the run would be Failed
            outcome[:] = [stop or error]
            if stop is not None:
                raise stop from None
            raise
        outcome[:] = [result]
        return result

    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def _typed(overrides: Sequence[str] | Mapping[str, Any]) -> str:
    """Return overrides as a command has them, without passwords."""
    pairs = [f"{key}={value}" for key, value in overrides.items()] if isinstance(overrides, Mapping) else overrides
    return mask_passwords(shlex.join(pairs)) or "no overrides"


_KIND = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _copy(value: Any) -> Any:
    """Copy a value: Prefect would take an object that is part of an earlier result for that run's output."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
    if isinstance(value, Mapping):
        return {_copy(key): _copy(inner) for key, inner in value.items()}
    return [*map(_copy, value)] if isinstance(value, list) else value


def _without_traceback(record: logging.LogRecord) -> bool:
    """Let a log record pass; drops the traceback of a user's mistake."""
    if record.exc_info and isinstance(record.exc_info[1], UserError):
        record.msg, record.args, record.exc_info = str(record.exc_info[1]), (), None
    return True


for _log in ("prefect.flow_runs", "prefect.engine"):  # the end of a deployment's run is logged by both
    logging.getLogger(_log).addFilter(_without_traceback)


_run_files: ContextVar[dict[Path, IO[str]] | None] = ContextVar("files", default=None)
_process_files: dict[Path, IO[str]] = {}


@contextmanager
def _hold_run_file() -> Iterator[None]:
    """Hold the file of the flow run that is called inside: see `flows.results.run_history.abandoned_runs`.

    After an error the file stays, unlocked: Prefect may not know that the run ended.
    """
    if _run_files.get() is not None:  # a flow that another flow calls
        yield
        return
    files: dict[Path, IO[str]] = {}
    token = _run_files.set(files)
    try:
        yield
        for path in files:
            path.unlink(missing_ok=True)
    finally:
        _run_files.reset(token)
        for file in files.values():
            file.close()


def _begin_run(project: Project | None) -> None:
    """Hold the file of this flow run, close the runs of processes that no longer exist, and emit the events they queued."""
    context, files = FlowRunContext.get(), _run_files.get()
    if files is None:  # a deployment's run has its own process
        files = _process_files
    if context is None or context.flow_run is None or files or not Path("params.yaml").is_file():
        return
    root = Path().resolve()
    path = root / OPEN / str(context.flow_run.id)
    files[path] = hold(path)
    close_abandoned(root, project)
    with ignore_prefect_failure():
        emit_queued(root)


_SEED = {"type": "integer", "minimum": 0, "maximum": param_limits.SEED}


def one_of(*values: str) -> dict[str, Any]:
    """Return the JSON schema of a text that is one of these values."""
    return {"type": "string", "enum": list(values)}


def _array_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


MethodName = Annotated[str, WithJsonSchema(one_of(*methods()))]
MethodNames = Annotated[Sequence[str] | None, WithJsonSchema(_array_of(one_of(*methods())))]
MethodOrNone = Annotated[str | None, WithJsonSchema(one_of("", *methods()))]
Seed = Annotated[int, WithJsonSchema(_SEED)]
Seeds = Annotated[Sequence[int] | None, WithJsonSchema(_array_of(_SEED))]
Overrides = Annotated[Sequence[str] | Mapping[str, Any] | None, WithJsonSchema(_array_of({"type": "string"}))]
Text = Annotated[str | None, WithJsonSchema({"type": "string"})]
Texts = Annotated[Sequence[str] | None, WithJsonSchema(_array_of({"type": "string"}))]
