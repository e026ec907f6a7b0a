"""What makes a function a step: a Prefect task that is retried, keeps no result and is not cached.

Steps are pure, so running one twice gives the same message; a user's mistake is not retried.
"""

from collections.abc import Callable
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE

from silos.errors import UserError


def step(function: Callable) -> Task:
    """The function as a Prefect task of the same name."""
    return task(
        retries=2,
        retry_delay_seconds=0.5,
        retry_condition_fn=_worth_a_retry,
        cache_policy=NO_CACHE,
        persist_result=False,
    )(function)


def _worth_a_retry(task: Any, run: Any, state: Any) -> bool:
    error = state.data if isinstance(state.data, BaseException) else state.result(raise_on_failure=False)
    return not isinstance(error, UserError | ValueError | TypeError)
