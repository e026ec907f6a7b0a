"""The metric that params choose: what runs report by it, and that it changes nothing that is trained."""

import math

import numpy as np
import pytest

from flows.project.project import Project
from flows.training.run_records.run_folder import RunFolder
from flows.training.training_setup import training_setup
from models.metrics.client_metrics import CLIENT_METRICS
from silos.errors import UserError
from tasks.evaluate import OUTCOMES

SHORT = "training.rounds=2"
LINES = [
    "data.source={kind: synthetic, task: linear, clusters: 1, clients_per_cluster: 2, rows: 60, features: 2}",
    "data.name=lines",
    "data.scheme=[{kind: column, column: client}]",
    "training.objective={kind: squared_error}",
    "training.optimiser={kind: sgd, learning_rate: 0.05}",
    "model.targets=standardise",
    "plugins=[]",
    "method={}",
]
TIMES = ("seconds", "folder", "mlflow_run_id")
CHOSEN = ("metric", "higher_is_better", "baseline", "notes", "metrics", *TIMES)


def unchosen(result):
    """What does not depend on the metric."""
    return {key: value for key, value in result.items() if key not in CHOSEN}


@pytest.mark.slow
def test_a_chosen_metric_is_reported_in_every_round_and_the_others_of_the_final_model(play_run, folder):
    usual = play_run("fedavg", "threads", 1, SHORT)
    chosen = play_run("fedavg", "threads", 1, SHORT, "evaluation.metric=balanced_accuracy")
    assert (usual["metric"], chosen["metric"]) == ("accuracy", "balanced_accuracy")
    assert unchosen(usual) == unchosen(chosen)
    shared = usual["metrics"].keys() & chosen["metrics"].keys() - {"groups/adjusted_rand"}
    assert {name: usual["metrics"][name] for name in shared} == {name: chosen["metrics"][name] for name in shared}
    for name in ("auc", "macro_f1", "balanced_accuracy", "log_loss", "brier"):
        assert {f"{name}/mean", f"{name}/worst"} <= shared
    assert usual["metrics"]["log_loss/mean"] == pytest.approx(usual["metrics"]["loss/mean"], rel=1e-5)
    records = [RunFolder(folder / result["folder"]).journal.read(1) for result in (usual, chosen)]
    assert not any("balanced" in name or "auc" in name for name in records[0]["metrics"])
    assert {"balanced_accuracy/mean", "validation/balanced_accuracy/mean", "accuracy/mean"} <= set(
        records[1]["metrics"]
    )
    assert not any("auc" in name for name in records[1]["metrics"])
    assert chosen["baseline"]["metrics"]["balanced_accuracy/mean"] <= 0.5
    assert chosen["baseline"]["metrics"]["accuracy/mean"] == usual["baseline"]["metrics"]["accuracy/mean"]


@pytest.mark.slow
def test_the_row_values_that_clients_store_have_the_metric_as_their_mean(play_run, folder):
    settings = [SHORT, "evaluation.metric=macro_f1"]
    result = play_run("fedavg", "threads", 1, *settings)
    store = Project.open(settings, folder, derived=True).store.private(folder / result["folder"])
    hashes = RunFolder(folder / result["folder"]).outcome_hashes()
    usual = RunFolder(folder / play_run("fedavg", "threads", 1, SHORT)["folder"])
    kept = Project.open([SHORT], folder, derived=True).store.private(usual.path)
    for row in result["metrics"]["macro_f1/by_client"]:
        outcomes = store.load(OUTCOMES, hashes, row["client"])
        rows = RunFolder(folder / result["folder"]).journal.read(2)["clients"][row["client"]]["test/rows"]
        assert outcomes["macro_f1"][:rows].mean() == pytest.approx(row["macro_f1"])
        before = kept.load(OUTCOMES, usual.outcome_hashes(), row["client"])
        assert set(before) == {"correct", "predicted"}
        np.testing.assert_array_equal(before["correct"], outcomes["correct"])


@pytest.mark.slow
def test_metrics_of_a_regression_are_in_units_of_y(play_run):
    by_mae = play_run("fedavg", "threads", 1, SHORT, *LINES, "evaluation.metric=mae")
    unscaled = play_run("fedavg", "threads", 1, SHORT, *LINES, "evaluation.metric=r2")
    metrics = by_mae["metrics"]
    assert 0 < metrics["mae/mean"] <= metrics["rmse/pooled"] * (1 + 1e-6)
    assert metrics["mae/worst"] == max(row["mae"] for row in metrics["mae/by_client"])
    assert unscaled["metrics"]["r2/mean"] == pytest.approx(metrics["r2/mean"])
    assert unscaled["metrics"]["mae/mean"] == metrics["mae/mean"]
    assert by_mae["baseline"]["metrics"]["mae/mean"] > 0
    assert unscaled["baseline"]["metrics"]["r2/mean"] <= 1e-9  # a constant is at best the client's own mean


def test_a_metric_that_no_client_can_have_is_refused_before_training(folder):
    y = np.repeat([0, 1], 30)
    np.savez(folder / "apart.npz", x=np.random.default_rng(0).normal(size=(60, 3)), y=y, client=y)
    settings = [
        "data.name=apart",
        "data.source={kind: npz, path: apart.npz}",
        "data.scheme=[{kind: column, column: client}]",
    ]
    with pytest.raises(UserError, match="got auc, expected a metric that some client has, since test rows of every"):
        training_setup(Project.open([*settings, "evaluation.metric=auc"], folder, derived=True), 0)
    training_setup(Project.open([*settings, "evaluation.metric=balanced_accuracy"], folder, derived=True), 0)


@pytest.mark.slow
def test_a_note_counts_the_clients_without_the_metric(play_run):
    few = "data.scheme=[{kind: dirichlet, clients: 6, alpha: 0.03}]"
    result = play_run("local_only", "threads", 1, SHORT, few, "evaluation.metric=auc")
    missing = result["metrics"]["auc/undefined"]
    assert missing == sum(row["auc"] is None for row in result["metrics"]["auc/by_client"]) > 0
    assert math.isfinite(result["metrics"]["auc/mean"])
    (note,) = (note for note in result["notes"] if "had no auc" in note["sentence"])
    assert note["sentence"].startswith(f"{missing} client")


@pytest.mark.slow
def test_probabilities_of_the_baseline_are_the_shares_of_the_classes(play_run):
    result = play_run("fedavg", "threads", 1, SHORT, "evaluation.metric=log_loss")
    baseline = result["baseline"]
    assert (baseline["name"], baseline["kind"]) == ("always the same probabilities", "share of each class")
    assert baseline["metrics"]["log_loss/mean"] == pytest.approx(math.log(10), abs=0.1)  # ten classes of digits
    assert CLIENT_METRICS["log_loss"].score(result["metrics"]) == -result["metrics"]["log_loss/mean"]
