"""Where tasks run: the one place that submits, wraps and gathers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from prefect import Task
from prefect.utilities.annotations import opaque


class Runner(Protocol):
    """Runs a task on cohorts at the same time, or one task on the server."""

    @property
    def workers(self) -> int:
        """How many cohorts at the same time."""

    def each(self, task: Task, calls: Sequence[tuple[Any, ...]], **options: Any) -> list[Any]:
        """The task on each cohort: a call is the cohort and what is its own, options are the same for all; in order."""

    def once(self, task: Task, *args: Any) -> Any:
        """The task once, on the server's side."""


started = 0
"""How many task runs this process has started: what Prefect's server must have heard of before it is stopped."""


@dataclass(frozen=True)
class PrefectRunner:
    """Through the task runner of the surrounding flow; one cohort is a direct call, which costs half of a submit.

    Arguments travel opaque: Prefect would otherwise look for futures in them, at 6 µs for every element of a container.
    """

    workers: int = 1

    def __post_init__(self) -> None:
        # Bits must not depend on how many threads share a sum, and workers must not fight over cores
        torch.set_num_threads(1)

    def each(self, task: Task, calls: Sequence[tuple[Any, ...]], **options: Any) -> list[Any]:
        """See Runner."""
        _count(len(calls))
        wrapped = {name: opaque(value) for name, value in options.items()}
        if len(calls) == 1:
            return [task(*(opaque(a) for a in calls[0]), **wrapped)]
        futures = [task.submit(*(opaque(a) for a in call), **wrapped) for call in calls]
        return [future.result() for future in futures]

    def once(self, task: Task, *args: Any) -> Any:
        """See Runner."""
        _count(1)
        return task(*(opaque(a) for a in args))


def _count(tasks: int) -> None:
    global started
    started += tasks


@dataclass(frozen=True)
class PlainRunner:
    """Tasks as plain functions, one after another, without Prefect: for tests and notebooks."""

    workers: int = 1

    def each(self, task: Task, calls: Sequence[tuple[Any, ...]], **options: Any) -> list[Any]:
        """See Runner."""
        function: Callable = task.fn
        return [function(*call, **options) for call in calls]

    def once(self, task: Task, *args: Any) -> Any:
        """See Runner."""
        return task.fn(*args)
