"""Submit tasks and gather their results, assign stacks of clients to workers, select each cohort's arguments, count cost."""

import inspect
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from models.client_model import Model
from models.server_state import ClientStateRefs
from models.training.engine_and_stack_size import even_stack_size
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack, make_stacks
from silos.errors import ClientsAwayError
from tasks.execution.steps import OF_CLIENTS, Call, ClientStep, Returned, ServerStep
from tasks.messages.message_policy import Message, SentMessage, check_few

Value = TypeVar("Value")


@dataclass
class RoundCost:
    """The cost of a round's tasks.

    Attributes:
        seconds: Task name to the seconds inside the task; of cohorts that run at the same time the longest counts.
        bytes_up: From all clients together to the server.
        bytes_down: From the server to all clients together.
        steps: Client to the optimizer steps that its weights made, also where the server made them for the client.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    steps: dict[str, int] = field(default_factory=dict)

    def add_steps(self, client: str, steps: int) -> None:
        """Add optimizer steps of a client's weights."""
        self.steps[client] = self.steps.get(client, 0) + steps

    def count(self, task_name: str, bytes_down: int, messages: Sequence[Message], silos: Silos) -> None:
        """Count the messages of a task.

        Bytes of pooled clients are not counted: their rows are in one place, and no weights travel.

        Args:
            task_name: For the seconds.
            bytes_down: The size of the model that each client received for the task.
            messages: The messages; the first of a cohort has its seconds.
            silos: The clients that the task ran for.
        """
        seconds = max(message.seconds for message in messages)
        self.seconds[task_name] = self.seconds.get(task_name, 0.0) + seconds
        for message in (m for m in messages if m.travels and not silos.pooled):
            self.bytes_up += message.bytes_up
            self.bytes_down += len(message.clients) * bytes_down if message.with_model else 0


class Runner(Protocol):
    """Runs a client's step on cohorts in parallel, or a server's step once; TypeError for a step of the other type."""

    @property
    def workers(self) -> int:
        """Return how many cohorts run in parallel."""

    def map_cohorts(self, task: ClientStep[SentMessage], calls: Sequence[Call]) -> list[list[SentMessage]]:
        """Run the task on each cohort, which is the first argument of a call; return the results in order."""

    def run_on_server(self, task: ServerStep[Returned], *args: object) -> Returned:
        """Run the task once, on the server."""


WAIT_PAUSE = 1.0
"""Seconds until a place that does not answer is queried again, while a step or a round waits for it."""

started = 0
"""The number of task runs that this process has started; Prefect's server must record all before it is stopped."""


def check_type(task: object, kind: type) -> None:
    """Raise a TypeError for a task of another kind."""
    if not isinstance(task, kind):
        name = getattr(task, "name", None) or getattr(task, "__name__", task)
        way_out = "" if hasattr(task, "fn") else "; decorate it with @step or @server_step of tasks.execution.steps"
        raise TypeError(f"{name}: got another function, expected a {kind.__name__}{way_out}")


def count_started(tasks: int) -> None:
    """Count task runs that this process, or a trial process of it, has started."""
    global started
    started += tasks


@dataclass(frozen=True)
class PlainRunner:
    """Calls tasks as plain functions, one after another and without Prefect: for tests, notebooks and studies."""

    workers: int = 1
    when: str = ""  # as PrefectRunner's; no page shows it
    waits: bool = False  # clients are always here

    def map_cohorts(self, task: ClientStep[SentMessage], calls: Sequence[Call]) -> list[list[SentMessage]]:
        check_type(task, ClientStep)
        for args, _ in calls:
            if isinstance(args[0], Cohort):
                args[0].silos.must_be_here()
        return [task.fn(*args, **options) for args, options in calls]

    def absent(self) -> frozenset[str]:
        """Return no places."""
        return frozenset()

    def keep(self, private: ClientStore, section: str, refs: Collection[str]) -> None:
        """Delete clients' private state of a section but that of these references."""
        private.keep(section, refs)

    def run_on_server(self, task: ServerStep[Returned], *args: object) -> Returned:
        check_type(task, ServerStep)
        return task.fn(*args)


@dataclass(frozen=True)
class Broadcast:
    """An argument of a step that every cohort receives complete: what clients share with other clients."""

    content: object


def assign_stacks(silos: Silos, stacks: Sequence[Stack], workers: int) -> list[Cohort]:
    """Assign complete stacks to at most `workers` cohorts in contiguous runs, none empty.

    The largest run has as few training rows as contiguous runs allow.
    """
    rows = silos.rows("train")
    weights = [sum(rows[name] for name in stack.clients) for stack in stacks]
    low, high = max(weights, default=0), sum(weights)
    while low < high:
        limit = (low + high) // 2
        if len(_runs(weights, limit)) <= workers:
            high = limit
        else:
            low = limit + 1
    return [Cohort(silos, tuple(stacks[first:last])) for first, last in _runs(weights, low)]


def map_clients(
    runner: Runner,
    step: ClientStep[SentMessage],
    silos: Silos,
    *args: object,
    stack: int,
    may_be_silent: bool = False,
    least: int | None = None,
    **options: Any,
) -> list[SentMessage]:
    """Run a step on clients and return its messages in stack order: the only way by which clients are reached.

    Args:
        runner: Where the step runs.
        step: The step.
        silos: The clients.
        args: Arguments of the step after the cohort; each cohort receives its clients' part, see `bind_arguments`.
        stack: The most clients of a stack.
        may_be_silent: Whether clients may have nothing to report.
        least: The fewest clients that have to answer; by default all of them.
        options: Keyword arguments of the step.

    Raises:
        ClientsAwayError: If clients of a place cannot be reached, and more than `least` allows.
        TypeError: If the step returns something other than messages, or messages of other clients.
    """
    try:
        answers = runner.map_cohorts(step, cohort_calls(step, silos, stack, runner.workers, *args, **options))
    except ClientsAwayError as error:  # those that answered do not wait for the others
        answers = error.answers
        if least is None or sum(len(message.clients) for cohort in answers for message in cohort) < least:
            raise
    messages = [message for cohort in answers for message in cohort]
    wrong = [type(message).__name__ for message in messages if not isinstance(message, Message)]
    wrong += ["nothing" for cohort in answers if not cohort and not may_be_silent]
    if wrong:
        raise TypeError(f"{step.name}: got {wrong[0]} from a client step, expected messages")
    check_few(messages)
    strangers = {client for message in messages for client in message.clients} - {*silos.clients}
    if strangers:
        raise TypeError(f"{step.name}: got a message of {min(strangers)!r}, expected one of a sampled client")
    return messages


def cohort_calls(
    step: ClientStep[Any], silos: Silos, stack: int, workers: int, *args: object, **options: object
) -> list[Call]:
    """Make the calls of a step that runs on all clients, one for each cohort; see `bind_arguments`.

    No stack or cohort has clients of two places, wherever the step runs: results depend on who shares a stack.

    Args:
        step: The step; the types of its arguments say what is each client's own.
        silos: The clients.
        stack: The most clients of a stack.
        workers: The most cohorts.
        args: Arguments of the step after the cohort.
        options: Keyword arguments of the step.
    """
    parts = silos.by_place().values()
    return [
        bind_arguments(step, cohort, args, options)
        for part in parts
        for cohort in assign_stacks(
            part, make_stacks(part, even_stack_size(len(part.clients), stack)), max(1, workers // len(parts))
        )
    ]


def bind_arguments(
    step: ClientStep[Any], cohort: Cohort, args: tuple[object, ...], options: Mapping[str, object]
) -> Call:
    """Return the call of a step for a cohort, with the part of each argument that belongs to its clients.

    A Model, ClientStateRefs, silos at places, or an argument of type ByClient is reduced to the cohort's clients, or to the
    members of a pooled client. This includes values inside lists, tuples and mappings.
    """
    kinds, named = _argument_types(step)
    own = {name: _select_clients(value, named.get(name), cohort) for name, value in options.items()}
    pairs = zip(args, [*kinds[1:], *[None] * len(args)], strict=False)  # a step with *args names no type of each
    return (cohort, *(_select_clients(value, kind, cohort) for value, kind in pairs)), own


@lru_cache(maxsize=256)
def _argument_types(step: ClientStep[Any]) -> tuple[list[object], Mapping[str, object]]:
    """Return the types of a step's arguments by position and by name."""
    function = inspect.unwrap(step.fn)
    hints = typing.get_type_hints(function, include_extras=True)
    named = {name: hints.get(name) for name in inspect.signature(function).parameters}
    return [*named.values()], named


def _runs(weights: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Return the bounds (first, last + 1) of the fewest contiguous runs whose weights each add up to at most `limit`."""
    runs: list[tuple[int, int]] = []
    total = 0
    for index, weight in enumerate(weights):
        if runs and total + weight <= limit:
            runs[-1] = (runs[-1][0], index + 1)
            total += weight
        else:
            runs.append((index, index + 1))
            total = weight
    return runs


def _select_clients(value: object, kind: object, cohort: Cohort) -> object:
    """Return the cohort's part of a value; `kind` is the value's type in the step, or None."""
    if isinstance(value, Broadcast):
        return value.content
    if isinstance(value, Model):
        return value.select(cohort.clients)
    if isinstance(value, Silos) and value.manifest.places and not value.pooled:  # a place opens its own clients only
        return value.select([client for client in cohort.clients if client in value])
    if isinstance(value, ClientStateRefs):
        return replace(value, refs=_subset(value.refs, cohort))
    if isinstance(value, Mapping):
        if any(OF_CLIENTS in getattr(each, "__metadata__", ()) for each in _alternatives(kind)):
            return _subset(value, cohort)
        return {key: _select_clients(item, _item_type(kind, 0), cohort) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_select_clients(item, _item_type(kind, i), cohort) for i, item in enumerate(value))
    return value


def _alternatives(kind: object) -> tuple[object, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _item_type(kind: object, index: int) -> object:
    """Return the type of an item of a sequence, or of a mapping's values; None if the type does not say."""
    for each in _alternatives(kind):
        origin, items = typing.get_origin(each), typing.get_args(each)
        if origin is tuple and index < len(items) and Ellipsis not in items:
            return items[index]
        if items and isinstance(origin, type):
            return items[1] if issubclass(origin, Mapping) else items[0]
    return None


def _subset(by_client: Mapping[str, Value], cohort: Cohort) -> dict[str, Value]:
    return {client: by_client[client] for client in (*cohort.clients, *cohort.silos.members) if client in by_client}
