"""What makes a function a step."""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import pytest
import torch
from prefect.cache_policies import NO_CACHE
from prefect.states import Failed

import tasks
from flows.methods.round_context import TrainingSetup
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack
from silos.errors import UserError
from tasks.execution.prefect_runner import PrefectRunner, as_task
from tasks.execution.steps import ClientStep, OpaqueArgument, ServerStep, Step, server_step, step
from tasks.execution.task_runner import PlainRunner
from tasks.execution.worker_backends import pickle_modules_by_name
from tasks.messages.round_messages import Update
from tasks.paired_outcomes import Outcomes

ROOM = [m.name for m in pkgutil.walk_packages(tasks.__path__, "tasks.")]
STEPS = {v.name: v for name in ROOM for v in vars(importlib.import_module(name)).values() if isinstance(v, Step)}
STEPS = [STEPS[name] for name in sorted(STEPS)]
COHORT = Cohort(Silos("nowhere", "none", ("a",)), (Stack(("a",), 1),))
DOORS = [COHORT, COHORT.silos, ClientStore("nowhere")]


@step
def of_clients(cohort: Cohort, more: int) -> list[int]:
    return [more + 1]


@server_step
def of_server(told: Sequence[int], more: Mapping[str, object] | None = None) -> int:
    return sum(told)


@step
def names_submodules_of_torch(cohort: Cohort) -> list[str]:
    return [type(module).__name__ for module in (torch.classes, torch.ops)]


def test_a_step_is_still_a_plain_function():
    assert of_clients.fn(COHORT, 2) == [3]
    assert of_server.fn([1, 2]) == 3


def test_every_step_is_a_clients_or_a_servers():
    assert {"local_train", "pair_outcomes", "score_by_class", "aggregate", "common_codes"} < {
        task.name for task in STEPS
    }
    for task in STEPS:
        first = next(iter(inspect.signature(task.fn).parameters.values()))
        assert isinstance(task, ClientStep if first.annotation is Cohort else ServerStep), task.name


@pytest.mark.parametrize("task", [*STEPS, names_submodules_of_torch], ids=lambda task: task.name)
def test_every_step_can_be_sent_to_another_process(task):
    pickle_modules_by_name()
    sent = cloudpickle.loads(cloudpickle.dumps(as_task(task)))
    assert sent.name == task.name
    assert sent.fn.__code__.co_code == task.fn.__code__.co_code


def test_a_sent_step_uses_the_modules_of_the_process_that_receives_it():
    pickle_modules_by_name()
    sent = cloudpickle.loads(cloudpickle.dumps(as_task(names_submodules_of_torch)))
    assert sent.fn(COHORT) == ["_Classes", "_Ops"]


def test_a_clients_step_takes_a_cohort_first():
    def other(silos: Silos, cohort: Cohort) -> list[int]: ...

    with pytest.raises(TypeError, match="other: got no Cohort as the first parameter, expected one in a client"):
        step(other)


@pytest.mark.parametrize(
    "kind",
    [
        Cohort,
        Silos,
        ClientStore,
        TrainingSetup,
        Any,
        Sequence[Outcomes],
        Mapping[str, Silos | None],
        tuple[int, list[Cohort]],
    ],
)
def test_a_servers_step_that_could_be_given_rows_is_refused_when_it_is_made(kind):
    def peek(told: Sequence[Update], other: kind) -> None: ...

    with pytest.raises(TypeError, match="peek: other: got a type that could open clients' rows, expected none in a"):
        server_step(peek)

    def silent(told: Sequence[Update], other) -> None: ...

    with pytest.raises(TypeError, match="silent: other: got no type, expected one in a server step"):
        server_step(silent)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: type(door).__name__)
def test_a_servers_step_refuses_a_way_to_rows_however_deep_it_is_hidden(door):
    for hidden in (door, [1, (door,)], {"more": {"deeper": [door]}}, {1: Update(("a",), torch.ones(1), {}, door)}):
        with pytest.raises(TypeError, match="of_server: got an argument that can open clients' rows, expected none"):
            of_server.fn([1], {"x": hidden})
        with pytest.raises(TypeError, match="of_server: got an argument that can open clients' rows, expected none"):
            of_server.fn(OpaqueArgument([hidden]))


@pytest.mark.parametrize("runner", [PlainRunner(), PrefectRunner()], ids=lambda runner: type(runner).__name__)
def test_a_runner_takes_a_clients_step_on_cohorts_and_a_servers_on_the_server(runner):
    with pytest.raises(TypeError, match="of_server: got another function, expected a ClientStep"):
        runner.map_cohorts(of_server, [(([1],), {})])
    with pytest.raises(TypeError, match="of_clients: got another function, expected a ServerStep"):
        runner.run_on_server(of_clients, COHORT, 1)


@pytest.mark.parametrize("task", STEPS, ids=lambda t: t.name)
def test_a_step_is_retried_and_keeps_nothing(task):
    task = as_task(task)
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
    task = as_task(STEPS[0])
    assert task.retry_condition_fn(task, None, Failed(data=error, message="failed")) is again
