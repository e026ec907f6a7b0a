"""A run that pauses after a round and goes on later is the run that never paused."""

import json

import pytest

from flows.project.project import Project
from flows.project.run_sets import new_experiment
from flows.training.callbacks.report_run import ResultFile
from tasks.tracking.mlflow_logging.connection import connect, usable_experiment

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints


@pytest.mark.parametrize("more", [(), ("training.optimiser={kind: adam, learning_rate: 0.01, state: kept}",)])
def test_a_paused_run_goes_on_with_the_same_bits(more, play_run, folder):
    whole = play_run("scaffold" if not more else "fedavg", "threads", 1, *more)
    name = f"paused{len(more)}"
    new_experiment(Project.open([], folder), "advise", {}, name)
    options = {"experiment": name, "resume": True}
    for until in (1, 2):
        assert play_run(whole["method"], "threads", 1, *more, **options, until=until) is None
        path = folder / "runs" / name / f"{whole['method']}-seed0"
        assert sorted(file.name for file in (path / "journal").iterdir())[-1].startswith(f"{until:06d}")
        assert not (path / "result.json").exists()
        kept = json.loads((path / "validation.json").read_text())
        assert kept["round"] == until
        assert kept["outcomes"]
        assert kept["metrics"]["validation/accuracy/mean"] > 0
        assert _status(folder, name) == {"KILLED"}
    rest = play_run(whole["method"], "threads", 1, *more, **options, until=3)
    assert rest["weights_sha256"] == whole["weights_sha256"]
    assert rest["resumed_from_round"] == 2
    records = [json.loads(file.read_text()) for file in sorted((path / "journal").iterdir())]
    assert rest["seconds"]["total"] > sum(record["seconds"]["round"] for record in records)  # of all processes
    assert json.loads((path / "validation.json").read_text())["round"] == 3
    assert _status(folder, name) == {"FINISHED"}


@pytest.mark.slow
def test_a_pause_after_the_last_round_is_the_end(play_run):
    ended = play_run("fedavg", "threads", 1, until=3)
    assert ended["rounds"] == 3
    assert ended["ended_by"] == "training.rounds"


@pytest.mark.slow
def test_a_run_that_ends_has_the_outcomes_of_its_last_round(play_run, folder, monkeypatch):
    """A kill between result.json and these outcomes would leave those of the last pause for ever."""

    def interrupt(*_):
        raise KeyboardInterrupt

    new_experiment(Project.open([], folder), "advise", {}, "ending")
    play_run("fedavg", "threads", 1, experiment="ending", resume=True, until=1)
    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "on_end", interrupt)
        with pytest.raises(KeyboardInterrupt):
            play_run("fedavg", "threads", 1, experiment="ending", resume=True, until=3)
    path = folder / "runs" / "ending" / "fedavg-seed0"
    assert json.loads((path / "validation.json").read_text())["round"] == 3
    assert play_run("fedavg", "threads", 1, experiment="ending", resume=True, until=3)["rounds"] == 3


def _status(folder, experiment):
    project = Project.open([], folder)
    client = connect(project.store.tracking)
    _, number = usable_experiment(client, project.store.mlflow_experiment)
    return {run.info.status for run in client.search_runs([number], f"tags.folder LIKE 'runs/{experiment}/%'")}
