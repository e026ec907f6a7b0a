"""Make steps Prefect tasks: they are tried again unless the mistake is a user's, and nothing of them is cached."""

from copy import copy
from functools import lru_cache

from prefect import State, Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun

from silos.errors import UserError
from tasks.execution.steps import Returned, Step


def as_task(step: Step[Returned], prefix: str = "") -> Task[..., Returned]:
    """Return the step as a task, whose runs on Prefect's page have the prefix before the step's name."""
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
