"""What MLflow and DVC are told of a comparison as a whole."""

import json
import math
from types import SimpleNamespace

import pytest

from flows.experiments.comparison import log_comparison
from flows.experiments.comparison.log_comparison import metrics_of, write_summary
from flows.experiments.comparison.run_trials import Plan
from flows.project.project import Project
from flows.project.run_sets import new_experiment
from models.metrics.task_metrics import TASK_METRICS
from silos.io.atomic_io import write_bytes
from tasks.tracking.checkpoint import Journal

ACCURACY, RMSE = TASK_METRICS["classification"], TASK_METRICS["regression"]


def compared(quantity, values):
    """A comparison of methods with these means over seeds; each differs from the first by what the table says."""
    name = quantity.headline
    table = [{"method": method, name: value, f"{name}/sd": 0.1} for method, value in values.items()]
    reference = next(iter(values.values()))
    paired = [
        {
            "method": method,
            "difference": value - reference,
            "low": -1.0,
            "high": 1.0,
            "corrected": {"low": -2.0, "high": 2.0},
        }
        for method, value in list(values.items())[1:]
        if value is not None
    ]
    return {"table": table, "paired": paired}


@pytest.mark.parametrize(("quantity", "best"), [(ACCURACY, 0.9), (RMSE, 0.7)])
def test_mlflow_has_the_best_mean_each_method_and_each_difference_with_its_corrected_interval(quantity, best):
    found = metrics_of(quantity, compared(quantity, {"fedavg": 0.8, "a method": 0.9, "worse": 0.7, "gone": None}))
    name = quantity.headline
    assert found[f"best/{name}"] == best
    assert {key: found[key] for key in (f"{name}/fedavg", f"{name}/sd/worse")} == {
        f"{name}/fedavg": 0.8,
        f"{name}/sd/worse": 0.1,
    }
    assert f"{name}/gone" not in found
    assert found["difference/worse"] == pytest.approx(-0.1)
    assert (found["difference/worse/low"], found["difference/worse/high"]) == (-2.0, 2.0)
    diverged = {"table": [{"method": "fedavg", name: math.inf}], "paired": []}
    assert metrics_of(quantity, diverged) == metrics_of(quantity, {"table": [], "paired": []}) == {}


def test_dvc_has_the_table_the_corrected_intervals_and_the_mean_curve_of_each_method(tmp_path):
    runs = []
    for method, seed, values in (("fedavg", 0, (0.2, None, 0.6)), ("fedavg", 1, (0.4, None)), ("ditto", 0, (0.5,))):
        folder = tmp_path / "runs" / f"{method}{seed}"
        for number, value in enumerate(values, 1):
            metrics = {} if value is None else {ACCURACY.headline: value}
            write_bytes(*Journal(folder / "journal").file({"round": number, "metrics": metrics}))
        runs.append({"method": method, "folder": f"runs/{method}{seed}", "rounds": len(values)})
    comparison = {**compared(ACCURACY, {"fedavg": 0.5, "ditto": 0.6}), "runs": runs}
    write_summary(SimpleNamespace(quantity=ACCURACY, root=tmp_path), comparison, tmp_path / "summary")
    assert (tmp_path / "summary" / "curves.csv").read_text() == "round,fedavg,ditto\n1,0.3,0.5\n3,0.6,\n"
    found = json.loads((tmp_path / "summary" / "metrics.json").read_text())
    assert found["methods"]["ditto"] == {"accuracy/mean": 0.6, "accuracy/worst": None, "entropy/mean": None}
    assert found["paired"] == {"ditto": {"difference": pytest.approx(0.1), "low": -2.0, "high": 2.0}}


@pytest.mark.parametrize(
    ("failed", "status"), [([], "FINISHED"), ([{"method": "ditto", "seed": 0, "error": "diverged"}], "FAILED")]
)
def test_a_comparison_with_a_failed_run_has_failed_in_mlflow_too_and_one_that_mlflow_lacks_is_named(
    failed, status, folder, monkeypatch
):
    logged, lines = [], []

    class Logger:
        notice, problem = None, "MLflow does not respond"

        def __init__(self, *_):
            pass

        def finish(self, artifacts):
            logged.append(artifacts)
            return None if failed else "run"

    monkeypatch.setattr(log_comparison.progress, "say", lines.append)
    monkeypatch.setattr(log_comparison, "MLflowLogger", Logger)
    project = Project.open([], folder, derived=True)
    name = new_experiment(project, "compare", {"methods": ["fedavg", "ditto"]})
    comparison = compared(ACCURACY, {"fedavg": 0.5, "ditto": 0.6}) | {
        **{"runs": [], "failed": failed, "tuning": [], "ensembles": [], "data_version": "v", "gains": {}},
        "paired": [],
    }
    for row in comparison["table"]:
        row |= {"model": "shared", "seeds": 1, "seconds": 1.0}
    log_comparison.log_comparison(project, name, Plan(["fedavg", "ditto"], [0], "fedavg", 0, "v"), comparison, "")
    (artifacts,) = logged
    assert (artifacts.status, artifacts.tags) == (status, {"best method": "ditto"})
    assert artifacts.note.startswith("Not complete") == bool(failed)
    lacks = f"MLflow does not respond; MLflow lacks the comparison itself, which runs/{name} has in full."
    assert lines == [lacks] * bool(failed)  # a run that MLflow has needs no word
