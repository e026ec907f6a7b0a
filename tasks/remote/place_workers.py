"""Run client steps at the places where the rows lie, as Prefect tasks of the coordinator."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from prefect import Task
from prefect.futures import PrefectFuture

from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.errors import UserError, some
from tasks.execution.steps import Call, ClientStep, OpaqueArgument, Returned
from tasks.execution.task_runner import PlainRunner
from tasks.execution.worker_backends import Say, Workers
from tasks.messages.message_policy import Message, SentMessage
from tasks.places.sessions import PlaceAwayError, PlaceFailedError, PlaceRefusedError
from tasks.remote.answer_checks import check_messages
from tasks.remote.answer_steps import pack_call, read_answer
from tasks.remote.codec import pack
from tasks.remote.enrolment import open_sessions
from tasks.remote.serve_place import KEEP, STATUS
from tasks.remote.step_list import client_steps, returned_by

KEEP_PATIENCE = 60.0
"""Seconds in which a place deletes private state; it does so another time if it is away."""

_NOTICE_AFTER = 60.0  # seconds of a step, after which the user reads what is waited for
_LOOK, _LONGEST_LOOK = (
    0.2,
    5.0,
)  # seconds in which a place that was away answers that it is back; each look takes twice as long

Ask = Callable[[str, bytes], bytes]
"""Sends a place the name of a step and its arguments, and returns the answer."""


class PlaceWorkers(Workers):
    """Sends each cohort's step to its place, a thread a place; retries and task names are Prefect's, as elsewhere.

    Args:
        root: The coordinator's project.
        say: Receives messages for the user.
        patience: Seconds in which a place answers a step. After that it is absent, until it answers `absent`.
    """

    is_remote = True

    def __init__(self, root: Path, say: Say, patience: float) -> None:
        self._context = open_sessions(root)
        self._sessions = self._context.__enter__()
        super().__init__(len(self._sessions), say)
        self._patience = patience
        self._ran, self._away, self._slow = set[str](), dict[str, float](), set[str]()

    def run(self, task: Task[..., Returned], calls: Sequence[Call]) -> list[Returned]:
        """Run the task as `Workers.run` does; each call's cohort is of one place.

        All calls have ended when an error of one is raised: that of a place which is away comes last.

        Raises:
            PlaceAwayError: If a place does not answer in time; without a call if it is known to be absent.
        """
        cohorts = [_unwrapped(args[:1], {})[0][0] for args, _ in calls]
        wanted = {cohort.silos.only_place() for cohort in cohorts if isinstance(cohort, Cohort)}
        if wanted & self._away.keys() and (away := sorted(wanted & self.absent())):
            raise PlaceAwayError(away[0], self._patience)
        _check_own(task)
        remote = copy(task)

        @functools.wraps(task.fn)
        def send(*args: object, **options: object) -> Any:
            args, options = _unwrapped(args, options)
            return ask_place(self._asks, task.name, args, options)

        remote.fn = send
        self._ran |= wanted
        return super().run(remote, calls)

    def absent(self) -> frozenset[str]:
        """Return the places that did not answer in time and still do not; each gets another look, for a moment."""
        for place, look in sorted(self._away.items()):
            self._away[place] = min(2 * look, _LONGEST_LOOK)  # a slow plane needs a longer one
            with contextlib.suppress(PlaceAwayError):
                with contextlib.suppress(PlaceRefusedError, PlaceFailedError):  # the next step says why
                    self._sessions[place].ask(STATUS, b"", look)
                del self._away[place]
                self.say(f"place {place} answers again")
        return frozenset(self._away)

    def keep(self, private: ClientStore, section: str, refs: Collection[str]) -> None:
        """Let each place that ran a step delete its clients' private state of a section but that of these references.

        One that is away deletes it another time.
        """
        patience = min(KEEP_PATIENCE, self._patience)
        for place in sorted(self._ran - self._away.keys()):
            _keep_at(functools.partial(self._ask, place, patience=patience), place, private, section, refs)

    def close(self) -> None:
        """End the sessions, after which a place forgets their last answers."""
        super().close()
        self._context.__exit__(None, None, None)

    def _gather(self, futures: Sequence[PrefectFuture[Returned]]) -> list[Returned]:
        results, errors = list[Returned](), list[Exception]()
        for future in futures:
            try:
                results.append(future.result())
            except Exception as error:
                errors.append(error)
        if errors:
            first = min(errors, key=lambda error: isinstance(error, PlaceAwayError))
            if isinstance(first, PlaceAwayError):
                first.answers = results
            raise first
        return results

    @property
    def _asks(self) -> dict[str, Ask]:
        return {place: functools.partial(self._ask, place) for place in self._sessions}

    def _ask(self, place: str, subject: str, body: bytes, patience: float = 0) -> bytes:
        """Send a request, and note a place that does not answer in time."""
        session, patience = self._sessions[place], patience or self._patience
        notice = patience if place in self._slow else min(patience, _NOTICE_AFTER)
        try:
            try:
                return session.ask(subject, body, notice)
            except PlaceAwayError:
                if notice >= patience:
                    raise
            self._slow.add(place)
            self.say(
                f"place {place}: no answer to {subject} for {notice:.0f} seconds; after {patience:.0f} (runner.patience) it "
                "counts as absent"
            )
            return session.ask(subject, body, patience - notice)
        except PlaceAwayError:
            if place not in self._away:
                self.say(f"place {place} is absent: no answer to {subject} in {patience:g} seconds")
            self._away.setdefault(place, _LOOK)
            raise PlaceAwayError(place, patience) from None


@dataclass(frozen=True)
class PlaceRunner(PlainRunner):
    """Sends each cohort's step to its place as `PlaceWorkers` does, without Prefect, and in a session of its own each time.

    Attributes:
        root: The coordinator's project.
        patience: Seconds in which a place answers; PlaceAwayError after that.
    """

    root: Path = Path()
    patience: float = 600.0

    def map_cohorts(self, task: ClientStep[SentMessage], calls: Sequence[Call]) -> list[list[SentMessage]]:
        _check_own(task)
        with open_sessions(self.root) as sessions, ThreadPoolExecutor(len(sessions)) as threads:
            asks = {place: functools.partial(session.ask, wait=self.patience) for place, session in sessions.items()}
            answers = threads.map(lambda call: ask_place(asks, task.name, *call), calls)
            return cast(list[list[SentMessage]], list(answers))

    def keep(self, private: ClientStore, section: str, refs: Collection[str]) -> None:
        """Let each place delete its clients' private state of a section but that of these references."""
        patience = min(KEEP_PATIENCE, self.patience)
        with open_sessions(self.root) as sessions:
            for place, session in sessions.items():
                _keep_at(functools.partial(session.ask, wait=patience), place, private, section, refs)


def _check_own(task: ClientStep[SentMessage] | Task[..., Any]) -> None:
    """Raise UserError for a step of a plugin: places know theirs only, and would run another one of the same name."""
    own = client_steps().get(task.name)
    if own is None or inspect.unwrap(own.fn) is not inspect.unwrap(task.fn):
        raise UserError(
            f"step {task.name}: got one of a plugin, expected siloflow's own, because what a plugin defines does not travel "
            "to places. Leave the plugin out, or use another runner.kind."
        )


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
    arguments = inspect.signature(inspect.unwrap(client_steps()[step].fn)).bind(*args, **options).arguments
    check_messages(place, step, cohort.silos.select(cohort.clients), arguments, messages)
    return messages


def _keep_at(ask: Ask, place: str, private: ClientStore, section: str, refs: Collection[str]) -> None:
    """Let a place delete private state; one that is away does so another time."""
    body = pack({"private": private, "section": section, "refs": tuple(sorted(refs))})
    with contextlib.suppress(PlaceAwayError):
        read_answer(ask(KEEP, body), str, place)


def _unwrapped(args: tuple[object, ...], options: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    def content(value: object) -> object:
        return value.content if isinstance(value, OpaqueArgument) else value

    return tuple(map(content, args)), {name: content(value) for name, value in options.items()}
