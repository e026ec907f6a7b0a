"""What is written down of a run."""

from itertools import count
from types import SimpleNamespace

import pytest

from flows.experiment.records import seconds_of
from flows.method import find


@pytest.mark.parametrize("name", ["fedavg", "fedsgd", "fediir"])
def test_seconds_inside_any_step_of_clients_are_theirs_and_the_rest_is_orchestration(
    name, make_problem, play, monkeypatch
):
    """By a clock that goes forward by a second whenever it is read, a step takes one."""
    clock = map(float, count())
    monkeypatch.setattr("tasks.running.step.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    played = play(find(name)(), make_problem({"a": 12, "b": 12}), [1, 2])
    steps = {"fedavg": 1, "fedsgd": 1, "fediir": 2}[name]
    seconds = seconds_of([{"seconds": {"round": 9.0, **round.tally.seconds}} for round in played.rounds])
    assert seconds == {"per_round": 9.0, "clients": 2.0 * steps, "orchestration": 18.0 - 2.0 * steps}
