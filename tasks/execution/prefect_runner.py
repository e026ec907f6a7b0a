"""Run steps as Prefect tasks: they are tried again unless the mistake is a user's, and nothing of them is cached."""

import time
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache

from prefect import State, Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun

from silos.client_store import ClientStore
from silos.errors import ClientsAwayError, UserError
from tasks.execution import task_runner
from tasks.execution.steps import Call, ClientStep, OpaqueArgument, Returned, ServerStep, Step
from tasks.execution.task_runner import check_type, count_started
from tasks.execution.worker_backends import Workers
from tasks.messages.message_policy import SentMessage


@dataclass(frozen=True)
class PrefectRunner:
    """Runs tasks through Prefect's task runners.

    A single cohort in this process is a direct call, which costs half as much as a submit.
    """

    pool: Workers | None = None  # None: one cohort, in this process
    when: str = ""
    """Prefix of task names on Prefect's page, such as `round 3`, or `fedprox against fedavg`."""
    waits: bool = False
    """Whether steps wait until places answer that stopped answering; otherwise they raise ClientsAwayError."""

    @property
    def workers(self) -> int:
        return self.pool.count if self.pool else 1

    def map_cohorts(self, task: ClientStep[SentMessage], calls: Sequence[Call]) -> list[list[SentMessage]]:
        check_type(task, ClientStep)
        count_started(len(calls))
        opaque: list[Call] = [
            (tuple(map(OpaqueArgument, args)), {n: OpaqueArgument(value) for n, value in options.items()})
            for args, options in calls
        ]
        named = as_task(task, self.when)
        try:
            if self.pool is None or (len(calls) == 1 and not self.pool.is_remote):
                results = [named(*args, **options) for args, options in opaque]
            else:
                results = self._run(self.pool, named, opaque)
        finally:  # Prefect keeps arguments
            for argument in (argument for args, options in opaque for argument in (*args, *options.values())):
                assert isinstance(argument, OpaqueArgument), "all arguments were wrapped"
                argument.content = None
        return [_take_messages(task.name, result) for result in results]

    def absent(self) -> frozenset[str]:
        """Return the places that stopped answering and still do not."""
        return frozenset() if self.pool is None else self.pool.absent()

    def _run(self, pool: Workers, task: Task[..., list[SentMessage]], calls: Sequence[Call]) -> list[list[SentMessage]]:
        """Run the task on each call; with `waits`, run it again when the places that did not answer are back."""
        while True:
            try:
                return pool.run(task, calls)
            except ClientsAwayError as error:
                if not self.waits:
                    raise
                pool.say(f"{task.name} waits for place {error.place}, which does not answer")
            while pool.absent():
                time.sleep(task_runner.WAIT_PAUSE)

    def keep(self, private: ClientStore, section: str, refs: Collection[str]) -> None:
        """Let clients delete their private state of a section but that of these references."""
        if self.pool is None:
            private.keep(section, refs)
        else:
            self.pool.keep(private, section, refs)

    def run_on_server(self, task: ServerStep[Returned], *args: object) -> Returned:
        check_type(task, ServerStep)
        count_started(1)
        return as_task(task, self.when)(*(OpaqueArgument(argument) for argument in args))


def _take_messages(name: str, result: list[SentMessage]) -> list[SentMessage]:
    """Move the messages to a new list, because Prefect keeps its list until its server has recorded the task."""
    if not isinstance(result, list):
        raise TypeError(f"{name}: got a {type(result).__name__}, expected a list of messages from a client step")
    messages = list(result)
    result.clear()
    return messages


def as_task(step: Step[Returned], prefix: str = "") -> Task[..., Returned]:
    """Return the step as a task that Prefect's page names by the prefix and the step."""
    task = _task(step)
    if not prefix:
        return task
    named = copy(task)
    prefix = prefix.replace("{", "{{").replace("}", "}}")  # Prefect formats the name
    named.task_run_name = f"{prefix}: {task.name}"
    return named


@lru_cache(maxsize=256)  # Prefect reads a function's source for a task
def _task(step: Step[Returned]) -> Task[..., Returned]:
    return Task(
        step.fn,
        name=step.name,
        retries=2,
        retry_delay_seconds=0.5,
        retry_condition_fn=_worth_a_retry,
        cache_policy=NO_CACHE,
        persist_result=False,
    )


def _worth_a_retry(task: Task[..., object], run: TaskRun, state: State) -> bool:
    error = state.data if isinstance(state.data, BaseException) else state.result(raise_on_failure=False)
    return not isinstance(error, UserError | ValueError | TypeError)
