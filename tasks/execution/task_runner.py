"""Where tasks run: the one place that submits, wraps and gathers.

Which worker handles which stacks of clients, and what it is given of what clients hold.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from models.client_model import Model
from models.server_state import ClientStateRefs
from models.training.execution_plan import even_stack_size
from silos.cohort import Cohort, Silos, Stack, make_stacks
from tasks.execution.task_types import ClientStep, OpaqueArgument, ServerStep
from tasks.execution.worker_backends import Call, Workers

Step = TypeVar("Step", ClientStep, ServerStep)


class Runner(Protocol):
    """Runs a client's step on cohorts at the same time, or a server's once; TypeError for one in the other's place."""

    @property
    def workers(self) -> int:
        """How many cohorts at the same time."""

    def each(self, task: ClientStep, calls: Sequence[Call]) -> list[Any]:
        """The task on each cohort, which is the first argument of a call; answers in order."""

    def once(self, task: ServerStep, *args: Any) -> Any:
        """The task once, on the server's side."""


started = 0
"""How many task runs this process has started: what Prefect's server must have heard of before it is stopped."""


@dataclass(frozen=True)
class PrefectRunner:
    """Through Prefect's task runners; one cohort in this process is a direct call, which costs half of a submit."""

    there: Workers | None = None  # None: one cohort, in this process
    when: str = ""
    """What Prefect's page says before a task's name, such as `round 3`, or `fedprox against fedavg`."""

    @property
    def workers(self) -> int:
        """See Runner."""
        return self.there.count if self.there else 1

    def each(self, task: ClientStep, calls: Sequence[Call]) -> list[Any]:
        """See Runner."""
        _must_be(task, ClientStep)
        _count(len(calls))
        sealed = [
            (tuple(map(OpaqueArgument, args)), {n: OpaqueArgument(value) for n, value in options.items()})
            for args, options in calls
        ]
        named = self._named(task)
        if self.there is None or (len(calls) == 1 and not self.there.far):
            answers: list[Any] = [named(*args, **options) for args, options in sealed]
        else:
            answers = self.there.run(named, sealed)
        for argument in (a for args, options in sealed for a in (*args, *options.values())):
            argument.content = None
        return [_taken(task.name, answer) for answer in answers]

    def once(self, task: ServerStep, *args: Any) -> Any:
        """See Runner."""
        _must_be(task, ServerStep)
        _count(1)
        return self._named(task)(*(OpaqueArgument(a) for a in args))

    def _named(self, task: Step) -> Step:
        """The task, whose runs say when they are."""
        if not self.when:
            return task
        named = copy(task)
        when = self.when.replace("{", "{{").replace("}", "}}")  # Prefect formats the name
        named.task_run_name = f"{when}: {task.name}"
        return named


def _must_be(task: Any, kind: type) -> None:
    if not isinstance(task, kind):
        raise TypeError(f"{getattr(task, 'name', task)} is no {kind.__name__}")


def _taken(name: str, answer: list[Any]) -> list[Any]:
    """The messages, in a list of our own: Prefect holds on to its list until its server has heard of the task."""
    if not isinstance(answer, list):
        raise TypeError(
            f"{name} answers with {type(answer).__name__}, and a step on clients answers with a list of messages"
        )
    messages = list(answer)
    answer.clear()
    return messages


def _count(tasks: int) -> None:
    global started
    started += tasks


@dataclass(frozen=True)
class PlainRunner:
    """Tasks as plain functions, one after another, without Prefect: for tests and notebooks."""

    workers: int = 1

    def each(self, task: ClientStep, calls: Sequence[Call]) -> list[Any]:
        """See Runner."""
        _must_be(task, ClientStep)
        function: Callable = task.fn
        return [function(*args, **options) for args, options in calls]

    def once(self, task: ServerStep, *args: Any) -> Any:
        """See Runner."""
        _must_be(task, ServerStep)
        return task.fn(*args)


@dataclass(frozen=True)
class Broadcast:
    """An argument of a step that every cohort is given whole, whoever's it is: what clients show to others."""

    content: Any


def assign_stacks(silos: Silos, stacks: Sequence[Stack], workers: int) -> list[Cohort]:
    """Whole stacks in contiguous runs, at most `workers` and none empty.

    The largest run has as few training rows as a contiguous dealing can give it.
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


def cohort_calls(silos: Silos, stack: int, workers: int, *args: Any, **options: Any) -> list[Call]:
    """Make the calls of a step that runs on all clients, one for each cohort; see `bind_arguments`.

    Args:
        silos: The clients.
        stack: The most clients of a stack.
        workers: The most cohorts.
        args: Arguments of the step after the cohort.
        options: Keyword arguments of the step.
    """
    cohorts = assign_stacks(silos, make_stacks(silos, even_stack_size(len(silos.clients), stack)), workers)
    return [bind_arguments(cohort, args, options) for cohort in cohorts]


def bind_arguments(cohort: Cohort, args: tuple[Any, ...], options: Mapping[str, Any]) -> Call:
    """A step's call for a cohort: itself, and of each argument what is held by its own clients, or by members of a pooled.

    Held by client are a Model, a Private and a mapping whose keys are all clients of the data; also inside of lists, tuples
    and other mappings.
    """
    own = {name: _own_part(value, cohort) for name, value in options.items()}
    return (cohort, *(_own_part(value, cohort) for value in args)), own


def _runs(weights: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """(first, past the last) of the fewest contiguous runs whose weights add up to `limit` at most."""
    runs: list[tuple[int, int]] = []
    total = 0
    for at, weight in enumerate(weights):
        if runs and total + weight <= limit:
            runs[-1] = (runs[-1][0], at + 1)
            total += weight
        else:
            runs.append((at, at + 1))
            total = weight
    return runs


def _own_part(value: Any, cohort: Cohort) -> Any:
    if isinstance(value, Broadcast):
        return value.content
    if isinstance(value, Model):
        return value.select(cohort.clients)
    if isinstance(value, ClientStateRefs):
        return replace(value, refs=_of_clients(value.refs, cohort))
    if isinstance(value, Mapping):
        own, names = cohort.clients, cohort.silos.manifest.names
        if all(key in names or key in own for key in value):
            return _of_clients(value, cohort)
        return {key: _own_part(inner, cohort) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_own_part(inner, cohort) for inner in value)
    return value


def _of_clients(held: Mapping[str, Any], cohort: Cohort) -> dict[str, Any]:
    return {client: held[client] for client in (*cohort.clients, *cohort.silos.members) if client in held}
