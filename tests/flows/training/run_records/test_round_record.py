"""What is written down of a run."""

from itertools import count
from types import SimpleNamespace

import pytest

from flows.methods.base import RoundReport, find_method
from flows.training.run_records.round_record import round_record, time_breakdown
from models.metrics.task_metrics import TASK_METRICS


@pytest.mark.parametrize("name", ["fedavg", "fedsgd", "fediir"])
def test_seconds_inside_any_step_of_clients_are_theirs_and_the_rest_is_orchestration(
    name, make_problem, play, monkeypatch
):
    """By a clock that goes forward by a second whenever it is read, a step takes one."""
    clock = map(float, count())
    monkeypatch.setattr("tasks.execution.steps.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    played = play(find_method(name)(), make_problem({"a": 12, "b": 12}), [1, 2])
    steps = {"fedavg": 1, "fedsgd": 1, "fediir": 2}[name]
    seconds = time_breakdown([{"seconds": {"round": 9.0, **round.tally.seconds}} for round in played.rounds])
    assert seconds == {"per_round": 9.0, "clients": 2.0 * steps, "orchestration": 18.0 - 2.0 * steps}


@pytest.mark.parametrize("column", ["group", "cluster"])
@pytest.mark.parametrize(
    ("groups", "index"),  # of the pairs of four clients, by Hubert and Arabie's formula
    [([7, 7, 2, 2], 1.0), ([0, 0, 0, 0], 0.0), ([0, 1, 0, 1], -0.5), ([0, 0, 0, 1], 0.0), ([0, 0, 1, 2], 4 / 7)],
)
def test_groups_are_compared_with_the_laws_of_their_clients(column, groups, index, make_problem, play):
    clients = "abcd"
    laws = dict(zip(clients, ["here", "here", "there", "there"], strict=True))
    setup = make_problem(dict.fromkeys(clients, 3), silos={"domains": laws})
    (round,) = play(find_method("fedavg")(), setup, [1]).rounds
    report = RoundReport({}, {column: dict(zip(clients, map(float, groups), strict=True))})
    metrics = round_record(round, report, [], setup.silos, TASK_METRICS["classification"])["metrics"]
    assert metrics["groups/adjusted_rand"] == pytest.approx(index)
