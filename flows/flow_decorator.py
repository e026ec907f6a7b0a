"""What makes a function of flows/ a verb: a Prefect flow that the command, Python or a deployment starts, all in one way.

A user's mistake ends it in the state Failed whose message is our sentence, without a traceback in Prefect's log; to who
called it in Python it is the UserError, without Prefect's frames.

Types of the verbs' parameters that say to Prefect's forms what a field takes and what there is to choose from.

They check nothing: a form may be filled by other means, and what is wrong is told by the verb, in its own words.

Each is of one plain type in a form. Where null is a second one, the page shows a switch between types and no field; and it
refuses null in a field of one type. What is not given is therefore an empty list or an empty text, and None says the same.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, get_args, get_origin

from prefect import Flow
from prefect.context import FlowRunContext
from prefect.states import Failed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import WithJsonSchema

from flows.config.load_config import params_file_of
from flows.config.validation_errors import nearest_hint
from flows.console import progress
from flows.console.interruption import interruption
from flows.history.abandoned_runs import OPEN, close_abandoned
from flows.methods.base import method_names as methods
from flows.servers.prefect_failure import discard_events, ephemeral_api, failure_sentence, is_prefect_failure
from silos import param_types
from silos.errors import UserError
from silos.io.locks import hold


class IncompleteError(Exception):
    """A verb's answer of which a part failed: to the caller it is the answer, in Prefect a flow run that failed."""

    def __init__(self, message: str, answer: Any) -> None:
        super().__init__(message)
        self.answer = answer


class ProjectFlow(Flow):
    """A flow that brings Prefect's API along where it is called from Python, and none is there."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        full = inspect.signature(self.fn)
        self.__signature__ = _Signature([*full.parameters.values()], return_annotation=full.return_annotation)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """The flow's answer; TypeError if these are not its parameters."""
        self._bind(args, options)
        try:
            if FlowRunContext.get() is not None:
                args, options = tuple(map(_anew, args)), {name: _anew(value) for name, value in options.items()}
                with _holding():
                    return self._call_flow(*args, **options)
            params_file_of(Path())  # before Prefect leaves its folder here
            with ephemeral_api(), _holding():
                return self._call_flow(*args, **options)
        except IncompleteError as error:
            return error.answer
        except UserError as error:
            if FlowRunContext.get() is not None:
                raise
            mistake = error
        raise mistake.with_traceback(None) from None

    def _bind(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Raise a TypeError in a sentence where Prefect's own error lists types."""
        signature = inspect.signature(self.fn)
        for keyword in options:
            if keyword not in signature.parameters:
                hint = nearest_hint(keyword, list(signature.parameters))
                raise TypeError(f"{self.name}: got an unknown keyword {keyword!r}{hint}")
        try:
            signature.bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}; expected {self.name}({', '.join(signature.parameters)}).") from None

    def _call_flow(self, *args: Any, **options: Any) -> Any:
        """Call the flow; if Prefect's API fails, answer with what the function returned or raised.

        Raises:
            UserError: If Prefect's API failed before the function ended.
        """
        outcome: list[Any] = []
        token = _outcome.set(outcome)
        try:
            return super().__call__(*args, **options)
        except Exception as error:
            if not is_prefect_failure(error):
                raise
            discard_events()
            ended = outcome[0] if outcome else error
            reason = failure_sentence(error)
            if isinstance(ended, BaseException):
                if not is_prefect_failure(ended):
                    raise ended from None
                raise UserError(f"{reason}; then --resume goes on after the last whole round.") from error
            progress.current().say_once(f"{reason}; the result is whole, and Prefect's page does not show its end.")
            return ended
        finally:
            _outcome.reset(token)


_outcome: ContextVar[list[Any]] = ContextVar("outcome")
"""What the function of the flow that is running returned or raised: Prefect loses it if its API fails afterwards."""


class _Signature(inspect.Signature):
    """A flow's signature, of which help() shows the types without what a form needs; Prefect reads all of it."""

    def __str__(self) -> str:
        plain = [_plain(one) for one in self.parameters.values()]
        return str(inspect.Signature(plain, return_annotation=self.return_annotation))

    def format(self, **options: Any) -> str:
        """Return the text that pydoc shows from Python 3.13 on."""
        return str(self)


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    annotation = parameter.annotation
    return parameter.replace(annotation=get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation)


def project_flow(run_name: str | Callable[[], str]) -> Callable[[Callable[..., Any]], ProjectFlow]:
    """The function as a verb of the same name; its runs are called by `run_name` on Prefect's page."""

    def made(function: Callable[..., Any]) -> ProjectFlow:
        return ProjectFlow(
            _failing(function),
            name=function.__name__,
            description=inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:")[0],  # a form has the rest
            flow_run_name=run_name,
            task_runner=ThreadPoolTaskRunner(),
            validate_parameters=False,
        )

    return made


def _anew(value: Any) -> Any:
    """An equal value: what is the same object as a part of an earlier run's answer, Prefect takes for that run's output."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
    if isinstance(value, Mapping):
        return {_anew(key): _anew(inner) for key, inner in value.items()}
    return [*map(_anew, value)] if isinstance(value, list) else value


def _in_a_sentence(record: logging.LogRecord) -> bool:
    """Whether to log it: always, of a user's mistake without the traceback."""
    if record.exc_info and isinstance(record.exc_info[1], UserError):
        record.msg, record.args, record.exc_info = str(record.exc_info[1]), (), None
    return True


for _log in ("prefect.flow_runs", "prefect.engine"):  # what ends a deployment's run tells both
    logging.getLogger(_log).addFilter(_in_a_sentence)


_files: ContextVar[dict[Path, IO[str]] | None] = ContextVar("files", default=None)
_of_process: dict[Path, IO[str]] = {}


@contextmanager
def _holding() -> Iterator[None]:
    """Hold the file of the flow run that is called inside: see `flows.history.abandoned_runs`.

    After an error it stays, unlocked: Prefect may not know of the end.
    """
    if _files.get() is not None:  # of a verb that another verb calls
        yield
        return
    files: dict[Path, IO[str]] = {}
    token = _files.set(files)
    try:
        yield
        for path in files:
            path.unlink(missing_ok=True)
    finally:
        _files.reset(token)
        for file in files.values():
            file.close()


def _begin() -> None:
    """Hold the file of this flow run, and close what processes that are gone have left."""
    context, files = FlowRunContext.get(), _files.get()
    if files is None:  # a deployment's run, which has a process of its own
        files = _of_process
    if context is None or context.flow_run is None or files or not Path("params.yaml").is_file():
        return
    root = Path().resolve()
    path = root / OPEN / str(context.flow_run.id)
    files[path] = hold(path)
    close_abandoned(root)


def _failing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function so that a user's mistake ends its flow run with a state.

    Prefect pickles the wrapper by value for worker processes, so it may name no ContextVar.
    """

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        with _End() as end:
            _begin()
            end.answer = function(*args, **options)
        return end.answer

    return run


class _End:
    """The end of a flow: `answer` is what its function returned, or the state that its flow run ends with."""

    answer: Any = None

    def __enter__(self) -> "_End":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Keep the outcome for `ProjectFlow`, and turn an error that is the user's into the state Failed."""
        outcome, in_flow = _outcome.get([]), FlowRunContext.get() is not None
        if error is None:
            outcome[:] = [self.answer]
        elif isinstance(error, IncompleteError):
            outcome[:] = [error.answer]
            self.answer = Failed(message=str(error), data=error) if in_flow else error.answer
            return True
        elif isinstance(error, UserError):
            outcome[:] = [error]
            self.answer = Failed(message=str(error), data=error) if in_flow else None
            return in_flow
        elif isinstance(error, Exception):
            stop = interruption(error)  # Prefect's own error may hide it, and the run would be Failed
            outcome[:] = [stop or error]
            if stop is not None:
                raise stop from None
        return False


_SEED = {"type": "integer", "minimum": 0, "maximum": param_types.SEED}


def one_of(*values: str) -> dict[str, Any]:
    """Return the JSON schema of a text that is one of these values."""
    return {"type": "string", "enum": list(values)}


def _several(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


MethodName = Annotated[str, WithJsonSchema(one_of(*methods()))]
MethodNames = Annotated[Sequence[str] | None, WithJsonSchema(_several(one_of(*methods())))]
MethodOrNone = Annotated[str | None, WithJsonSchema(one_of("", *methods()))]
Seed = Annotated[int, WithJsonSchema(_SEED)]
Seeds = Annotated[Sequence[int] | None, WithJsonSchema(_several(_SEED))]
Overrides = Annotated[Sequence[str] | Mapping[str, Any] | None, WithJsonSchema(_several({"type": "string"}))]
Text = Annotated[str | None, WithJsonSchema({"type": "string"})]
