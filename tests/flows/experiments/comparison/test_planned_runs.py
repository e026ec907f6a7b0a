"""The count of runs on the screen."""

import io

import pytest

from flows.core.console import progress
from flows.core.console.progress_bar import Terminal
from flows.core.console.safe_text import PlainConsole
from flows.experiments.comparison.run_trials import say_plan, unfinished
from flows.training.project import Project
from tasks.tracking.json_io import write_json

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
