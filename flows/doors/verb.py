"""What makes a function of flows/ a verb: a Prefect flow that the command, Python or a deployment starts, all in one way.

A user's mistake ends it in the state Failed whose message is our sentence, without a traceback in Prefect's log; to who
called it in Python it is the UserError, without Prefect's frames.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from prefect import Flow
from prefect.context import FlowRunContext
from prefect.states import Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.console import screen
from flows.console.prefect_failure import discard_events, failure_sentence, is_prefect_failure
from flows.doors.own_server import prefects_api
from silos.errors import UserError


class Verb(Flow):
    """A flow that brings Prefect's API along where it is called from Python, and none is there."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """The flow's answer."""
        if FlowRunContext.get() is not None:
            args, options = tuple(map(_anew, args)), {name: _anew(value) for name, value in options.items()}
            return self._whatever_prefect_does(*args, **options)
        try:
            with prefects_api():
                return self._whatever_prefect_does(*args, **options)
        except UserError as error:
            mistake = error
        raise mistake.with_traceback(None) from None

    def _whatever_prefect_does(self, *args: Any, **options: Any) -> Any:
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
            screen.current().say_once(f"{reason}; the result is whole, and Prefect's page does not show its end.")
            return ended
        finally:
            _outcome.reset(token)


_outcome: ContextVar[list[Any]] = ContextVar("outcome")
"""What the function of the flow that is running returned or raised: Prefect loses it if its API fails afterwards."""


def verb(run_name: str | Callable[[], str]) -> Callable[[Callable[..., Any]], Verb]:
    """The function as a verb of the same name; its runs are called by `run_name` on Prefect's page."""

    def made(function: Callable[..., Any]) -> Verb:
        return Verb(
            _failing(function),
            name=function.__name__,
            description=inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:")[0],  # a form has the rest
            flow_run_name=run_name,
            task_runner=ThreadPoolTaskRunner(),  # type: ignore[arg-type]
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


def _failing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which inside a flow run ends with a state where the mistake is the user's."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        outcome = _outcome.get([])
        try:
            answer = function(*args, **options)
        except Exception as error:
            outcome[:] = [error]
            if not isinstance(error, UserError) or FlowRunContext.get() is None:
                raise
            return Failed(message=str(error), data=error)
        outcome[:] = [answer]
        return answer

    return run
