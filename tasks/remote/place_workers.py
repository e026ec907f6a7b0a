"""Run client steps at the places where the rows lie, as Prefect tasks of the coordinator."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from prefect import Task

from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.errors import UserError, shown, some
from tasks.execution.prefect_tasks import ClientStep, OpaqueArgument
from tasks.execution.task_runner import PlainRunner
from tasks.execution.worker_backends import Call, Returned, Say, Workers
from tasks.messages.message_policy import Message, SentMessage
from tasks.places.sessions import CoordinatorSession, PlaceAwayError
from tasks.remote.answer_steps import pack_call, read_answer
from tasks.remote.codec import pack
from tasks.remote.enrolment import open_sessions
from tasks.remote.serve_place import KEEP
from tasks.remote.step_list import returned_by

STEP_PATIENCE, KEEP_PATIENCE = 600.0, 60.0
"""Seconds in which a place answers a step, after which the run ends and `--resume` continues it; and in which it deletes."""

Ask = Callable[[str, bytes], bytes]
"""Sends a place the name of a step and its arguments, and returns the answer."""


class PlaceWorkers(Workers):
    """Sends each cohort's step to its place, a thread a place; retries and task names are Prefect's, as elsewhere.

    Args:
        root: The coordinator's project.
        say: Receives messages for the user.
    """

    is_remote = True

    def __init__(self, root: Path, say: Say) -> None:
        self._context = open_sessions(root)
        self._sessions = self._context.__enter__()
        super().__init__(len(self._sessions), say)
        self._ran: set[str] = set()

    def run(self, task: Task[..., Returned], calls: Sequence[Call]) -> list[Returned]:
        """Run the task as `Workers.run` does; each call's cohort is of one place."""
        remote = copy(task)

        @functools.wraps(task.fn)
        def send(*args: object, **options: object) -> Any:
            args, options = _unwrapped(args, options)
            if isinstance(args[0], Cohort):
                self._ran.add(args[0].silos.only_place())
            return ask_place(self._asks, task.name, args, options)

        remote.fn = send
        return super().run(remote, calls)

    def keep(self, private: ClientStore, section: str, refs: Collection[str]) -> None:
        """Let each place that ran a step delete its clients' private state of a section but that of these references.

        One that is away deletes it another time.
        """
        ran = {place: self._sessions[place] for place in sorted(self._ran)}
        _keep_at(ran, private, section, refs, self._say)

    def close(self) -> None:
        """End the sessions, after which a place forgets their last answers."""
        super().close()
        self._context.__exit__(None, None, None)

    @property
    def _asks(self) -> dict[str, Ask]:
        return _asks_of(self._sessions)


@dataclass(frozen=True)
class PlaceRunner(PlainRunner):
    """Sends each cohort's step to its place as `PlaceWorkers` does, without Prefect, and in a session of its own each time.

    Attributes:
        root: The coordinator's project.
    """

    root: Path = Path()

    def map_cohorts(self, task: ClientStep[SentMessage], calls: Sequence[Call]) -> list[list[SentMessage]]:
        with open_sessions(self.root) as sessions, ThreadPoolExecutor(len(sessions)) as threads:
            asks = _asks_of(sessions)
            answers = threads.map(lambda call: ask_place(asks, task.name, *call), calls)
            return cast(list[list[SentMessage]], list(answers))

    def keep(self, private: ClientStore, section: str, refs: Collection[str]) -> None:
        """Let each place delete its clients' private state of a section but that of these references."""
        with open_sessions(self.root) as sessions:
            _keep_at(sessions, private, section, refs, lambda _: None)


def ask_place(
    asks: Mapping[str, Ask], step: str, args: tuple[object, ...], options: Mapping[str, object]
) -> list[Message]:
    """Run a step at the place of its cohort, which is its first argument; return its messages."""
    cohort = args[0]
    assert isinstance(cohort, Cohort), "a client step's first argument"
    place = cohort.silos.only_place()
    if not place:
        raise UserError(
            "params.yaml: runner.kind: got places, expected threads, processes or dask for data whose rows lie here. Set it "
            "so, or data.source to {kind: places}."
        )
    if place not in asks:
        raise UserError(
            f"place {place!r}: got data of this place, which has not joined, expected one of "
            f"{some([*asks]) or 'no place'}. Let it join, or make the data again with `siloflow partition`."
        )
    messages: list[Message] = read_answer(asks[place](step, pack_call(step, args, options)), returned_by(step), place)
    strangers = {client for message in messages for client in message.clients} - {*cohort.clients}
    if strangers:
        raise UserError(f"place {place}: got an answer for client {shown(min(strangers))}, expected some of its own.")
    return messages


def _asks_of(sessions: Mapping[str, CoordinatorSession]) -> dict[str, Ask]:
    return {place: functools.partial(session.ask, wait=STEP_PATIENCE) for place, session in sessions.items()}


def _keep_at(
    sessions: Mapping[str, CoordinatorSession], private: ClientStore, section: str, refs: Collection[str], say: Say
) -> None:
    body = pack({"private": private, "section": section, "refs": tuple(sorted(refs))})
    for place, session in sessions.items():
        try:
            read_answer(session.ask(KEEP, body, KEEP_PATIENCE), str, place)
        except PlaceAwayError as error:
            say(f"{error} What its clients kept of earlier rounds stays there for now.")


def _unwrapped(args: tuple[object, ...], options: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    def content(value: object) -> object:
        return value.content if isinstance(value, OpaqueArgument) else value

    return tuple(map(content, args)), {name: content(value) for name, value in options.items()}
