"""What makes a function a step: a Prefect task that is retried, keeps no result and is not cached.

Steps are pure, so running one twice gives the same message; a user's mistake is not retried.
"""

import functools
import multiprocessing
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from prefect import Task, task
from prefect.cache_policies import NO_CACHE

from silos.errors import UserError
from tasks.memory import tidy


def step(function: Callable) -> Task:
    """The function as a Prefect task of the same name."""
    return task(
        retries=2,
        retry_delay_seconds=0.5,
        retry_condition_fn=_worth_a_retry,
        cache_policy=NO_CACHE,
        persist_result=False,
    )(_anywhere(function))


class Sealed:
    """An argument of a step that is nobody's business on its way.

    Prefect would look for futures in it, at 6 µs for every element of a container; Dask would take it apart and hash it.
    """

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __dask_tokenize__(self) -> str:
        return uuid4().hex


def _anywhere(function: Callable) -> Callable:
    """The function, fit to run in any thread of any process."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # bits must not depend on how many threads share a sum
        if multiprocessing.parent_process() is not None:
            tidy()  # a worker process: what its task before this one left
        args, options = tuple(map(_opened, args)), {name: _opened(value) for name, value in options.items()}
        start = time.perf_counter()
        try:
            return _timed(function(*args, **options), start)
        except UserError:
            raise
        except Exception as error:
            error.add_note(_where(function.__name__, args, error))
            raise

    return run


def _timed(answer: Any, start: float) -> Any:
    """A step's messages, the first of which says how long all of them took."""
    if isinstance(answer, list) and answer and hasattr(answer[0], "seconds"):
        answer[0] = replace(answer[0], seconds=time.perf_counter() - start)
    return answer


def _opened(argument: Any) -> Any:
    return argument.content if isinstance(argument, Sealed) else argument


def _where(name: str, args: tuple, error: Exception) -> str:
    """Which step, whose, and the line: a traceback does not travel between processes."""
    clients = getattr(args[0], "clients", ()) if args else ()
    some = ", ".join(clients[:3]) + (f" and {len(clients) - 3} more" if len(clients) > 3 else "")
    of = f" of {'client' if len(clients) == 1 else 'clients'} {some}" if clients else ""
    line = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {name}{of} ({Path(line.filename).name}, line {line.lineno})"


def _worth_a_retry(task: Any, run: Any, state: Any) -> bool:
    error = state.data if isinstance(state.data, BaseException) else state.result(raise_on_failure=False)
    return not isinstance(error, UserError | ValueError | TypeError)
