"""Run client steps at the places where the rows lie, as Prefect tasks of the coordinator."""

import functools
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from prefect import Task

from silos.cohort import Cohort
from silos.errors import UserError, some
from tasks.execution.prefect_tasks import OpaqueArgument
from tasks.execution.worker_backends import Call, Returned, Say, Workers
from tasks.remote.answer_steps import pack_call, read_answer

Ask = Callable[[str, bytes], bytes]
"""Sends a place the name of a step and its arguments, and returns the answer."""


class PlaceWorkers(Workers):
    """Sends each cohort's step to its place, a thread a place; retries and task names are Prefect's, as elsewhere."""

    is_remote = True

    def __init__(self, asks: Mapping[str, Ask], say: Say) -> None:
        super().__init__(len(asks), say)
        self._asks = asks

    def run(self, task: Task[..., Returned], calls: Sequence[Call]) -> list[Returned]:
        """Run the task as `Workers.run` does; each call's cohort is of one place."""
        remote = copy(task)

        @functools.wraps(task.fn)
        def send(*args: object, **options: object) -> Any:
            return ask_place(self._asks, task.name, *_unwrapped(args, options))

        remote.fn = send
        return super().run(remote, calls)


def ask_place(asks: Mapping[str, Ask], step: str, args: tuple[object, ...], options: Mapping[str, object]) -> list[object]:
    """Run a step at the place of its cohort, which is its first argument; return its messages."""
    cohort = args[0]
    assert isinstance(cohort, Cohort), "a client step's first argument"
    place = cohort.silos.only_place()
    if place not in asks:
        raise UserError(
            f"place {place!r}: got data of this place, which has not joined, expected one of "
            f"{some([*asks]) or 'no place'}. Let it join, or make the data again with `siloflow partition`."
        )
    return read_answer(step, asks[place](step, pack_call(step, args, options)), place)


def _unwrapped(args: tuple[object, ...], options: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    def content(value: object) -> object:
        return value.content if isinstance(value, OpaqueArgument) else value

    return tuple(map(content, args)), {name: content(value) for name, value in options.items()}
