"""The count of runs on the screen."""

import io
from dataclasses import asdict, replace

import pytest

from flows.compare import check_resume, compare, make_plan
from flows.core.console import progress
from flows.core.console.progress_bar import Terminal
from flows.core.console.safe_text import PlainConsole
from flows.experiments.comparison.run_trials import Plan, _seconds_of_run, planned_runs, say_plan, unfinished
from flows.project.project import Project
from flows.project.run_sets import new_experiment
from silos.errors import UserError
from tasks.tracking.json_io import read_json, write_json

RUNS = ["fedavg-seed0", "fedavg-seed1", "local_only-seed0", "local_only-seed1"]
RESULTS = {"fedavg-seed0": "8c1d", "fedavg-seed1": None, "local_only-seed0": "77fe"}  # Run ID in MLflow, if it has all


@pytest.fixture
def resumed(project):
    for run, number in RESULTS.items():
        write_json(project / "runs" / "autumn" / run / "result.json", {"rounds": 5, "mlflow_run_id": number})
    return Project.open(root=project)


def test_a_finished_run_that_mlflow_does_not_have_is_counted_when_it_is_delivered_and_not_before(resumed):
    assert unfinished(resumed, "autumn", RUNS) == ["fedavg-seed1", "local_only-seed1"]
    out, before = io.StringIO(), progress.current()
    bar = Terminal(PlainConsole(file=out, width=80))
    progress.use(bar)
    say_plan(resumed, "autumn", RUNS)
    rounds = resumed.params.training.rounds
    bar.begin("fedavg-seed1", rounds, rounds)
    bar.end("fedavg-seed1", "accuracy 0.9", 1.0)
    bar.begin("local_only-seed1", 0, rounds)
    bar.end("local_only-seed1", "accuracy 0.9", 1.0)
    progress.use(before)
    counts = [line.strip().split("  ")[0] for line in out.getvalue().splitlines() if " of 4 " in line]
    assert counts == ["3 of 4", "4 of 4"]
    assert bar.done == 4 * rounds


PLAN = Plan(["fedavg", "ditto"], [3, 5], "fedavg", 0, "v1")


def test_the_first_seed_of_data_is_run_first_then_the_other_seeds_then_all_seeds_of_further_partitions():
    assert planned_runs(PLAN) == ["fedavg-seed3", "fedavg-seed5", "ditto-seed3", "ditto-seed5"]
    drawn = [run for run in planned_runs(replace(PLAN, partitions=3)) if "fedavg" in run]
    assert drawn == ["fedavg-seed3", "fedavg-seed5"] + [
        f"partition{index}-fedavg-seed{seed}" for index in (1, 2) for seed in (3, 5)
    ]
    tuned = planned_runs(replace(PLAN, tune=4, partitions=2), {"fedavg": 3, "ditto": 1})
    assert tuned == [
        *(f"setting{index}-fedavg-seed3" for index in range(3)),
        *("fedavg-seed5", "partition1-fedavg-seed3", "partition1-fedavg-seed5"),
        *("setting0-ditto-seed3", "ditto-seed5", "partition1-ditto-seed3", "partition1-ditto-seed5"),
    ]


def test_a_further_run_takes_the_mean_of_all_rounds_and_the_least_time_around_them():
    """The first run warms up; a run that failed has no times."""
    first, second = (
        {"seconds": {"per_round": each, "total": total}, "rounds": 10} for each, total in ((2, 35), (4, 43))
    )
    assert _seconds_of_run([first, second, "ditto: out of memory"]) == 30 + 3
    assert _seconds_of_run(["ditto: out of memory"]) == _seconds_of_run([]) == 0


@pytest.mark.parametrize(
    ("key", "value"), [("methods", ["fedavg"]), ("seeds", [7]), ("tune", 8), ("data_version", "0" * 32)]
)
def test_a_comparison_is_continued_only_with_its_own_plan(key, value, project):
    opened = Project.open([], project, derived=True)
    plan = make_plan(opened, None, None, None)
    name = new_experiment(opened, "compare", asdict(plan), "mine")
    check_resume(opened, plan, name)
    file = opened.store.runs / name / "experiment.json"
    write_json(file, read_json(file) | {key: value})
    with pytest.raises(UserError, match=f"--resume: got {key} .* as in the comparison mine"):
        check_resume(opened, plan, name)


def test_plans_of_other_methods_seeds_or_references_are_other_plans(project):
    opened = Project.open([], project, derived=True)
    plan = make_plan(opened, ("fedavg", "ditto"), (0,), "fedavg")
    assert make_plan(opened, ("fedavg", "ditto"), (0,), "fedavg") is plan
    assert make_plan(opened, ("fedavg", "ditto"), (3, 5), "fedavg").seeds == [3, 5]
    assert make_plan(opened, ("fedavg", "fedbn"), (0,), "fedavg").methods == ["fedavg", "fedbn"]
    assert make_plan(opened, ("fedavg", "ditto"), (0,), "ditto").reference == "ditto"


def test_a_retry_by_prefect_goes_on_with_the_comparison_that_it_began(project, monkeypatch):
    opened = Project.open([], project, derived=True)
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", "a flow run")
    plan = make_plan(opened, None, None, None)
    new_experiment(opened, "compare", asdict(replace(plan, tune=8)), "mine")
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", "2")
    with pytest.raises(UserError, match="got tune 0, expected 8 as in the comparison mine"):
        compare._function(project=opened, name="registry")  # no other comparison may be called so
