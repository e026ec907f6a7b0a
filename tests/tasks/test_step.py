"""What makes a function a step."""

import pytest
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.states import Failed

from silos.errors import UserError
from tasks import aggregate, client_stats, evaluate, local_train, pair, regroup, split
from tasks.step import step

MODULES = (aggregate, client_stats, evaluate, local_train, pair, regroup, split)
STEPS = [v for m in MODULES for v in vars(m).values() if isinstance(v, Task)]


def test_a_step_is_still_a_plain_function():
    assert step(lambda a, b: a + b).fn(1, 2) == 3


@pytest.mark.parametrize("task", STEPS, ids=lambda t: t.name)
def test_a_step_is_retried_and_keeps_nothing(task):
    assert task.retries == 2
    assert task.persist_result is False
    assert task.cache_policy == NO_CACHE


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (UserError("a mistake"), False),
        (ValueError(), False),
        (TypeError(), False),
        (OSError(), True),
        (RuntimeError(), True),
    ],
)
def test_only_what_may_pass_by_itself_is_tried_again(error, again):
    condition = STEPS[0].retry_condition_fn
    assert condition(STEPS[0], None, Failed(data=error, message="failed")) is again
