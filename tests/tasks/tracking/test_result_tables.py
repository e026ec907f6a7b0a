"""Tables of a run and of a comparison."""

import csv
import math
import statistics

import pytest

from models.metrics.task_metrics import TASK_METRICS
from tasks.tracking.result_tables import table_rows, write_client_table

RMSE = TASK_METRICS["regression"]


def result(method: str, seed: int, accuracy: float, loss: float | None = 1.0) -> dict:
    metrics = {"accuracy/mean": accuracy, "accuracy/worst": accuracy / 2, "loss/mean": loss, "entropy/mean": 0.5}
    by_client = [{"client": "a", "accuracy": accuracy}, {"client": "b", "accuracy": None}]
    return {
        "method": method,
        "seed": seed,
        "model": "global",
        "metrics": {
            **metrics,
            "accuracy/by_client": by_client,
        },
        "seconds": {"total": 2.0 * seed},
        "bytes": {"up": 10, "down": 20},
    }


def test_a_method_is_one_row_of_means_and_spreads_over_seeds():
    runs = [result("fedavg", 1, 0.5), result("pooled", 1, 0.75), result("fedavg", 2, 0.75)]
    fedavg, pooled = table_rows(runs)
    assert (fedavg["method"], fedavg["seeds"], fedavg["accuracy/mean"]) == ("fedavg", 2, 0.625)
    assert fedavg["accuracy/mean/sd"] == pytest.approx(statistics.stdev([0.5, 0.75]))
    assert (fedavg["seconds"], fedavg["bytes/up"]) == (3.0, 10)
    assert (pooled["seeds"], pooled["accuracy/mean/sd"]) == (1, 0.0)


@pytest.mark.parametrize("loss", [None, math.nan, math.inf])
def test_a_run_that_diverged_does_not_break_the_table(loss):
    """Its loss is null on disk, and no number in memory."""
    (row,) = table_rows([result("fedavg", 1, 0.5, loss), result("fedavg", 2, 0.75, 3.0)])
    assert (row["loss/mean"], row["loss/mean/sd"]) == (3.0, 0.0)
    (row,) = table_rows([result("fedavg", 1, 0.5, loss)])
    assert row["loss/mean"] is None


@pytest.mark.parametrize("diverged", [-math.inf, math.nan, None])  # None as it is read from a file
def test_a_metric_that_is_not_finite_in_one_seed_has_no_mean(diverged):
    runs = [result("fedavg", seed, 0.9) for seed in range(3)]
    for run in runs:
        run["metrics"] |= {"fresh/accuracy/mean": 0.5}
    runs[1]["metrics"] |= {"accuracy/mean": diverged, "fresh/accuracy/mean": diverged}
    (row,) = table_rows(runs)
    assert (row["accuracy/mean"], row["accuracy/mean/sd"], row["seeds"]) == (None, 0.0, 3)
    assert (row["fresh/accuracy/mean"], row["accuracy/worst"]) == (None, 0.45)


def test_the_clients_table_has_a_row_for_each_client_and_round(tmp_path):
    records = [
        {"round": 1, "clients": {"a": {"train_loss": 0.5}, "b": {}}, "dropped": ["b"]},
        {"round": 2, "clients": {"a": {"test/accuracy": None}, "b": {"train_loss": 0.25}}, "dropped": []},
    ]
    with write_client_table(tmp_path / "clients.csv", lambda: records).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(r["round"], r["client"], r["dropped"], r["train_loss"]) for r in rows] == [
        ("1", "a", "0", "0.5"),
        ("1", "b", "1", ""),
        ("2", "a", "0", ""),
        ("2", "b", "0", "0.25"),
    ]


def rmse_result(method: str, value: float) -> dict:
    found = result(method, 1, 0.0)
    names = ("rmse/pooled", "rmse/worst", "rmse/median", "loss/mean")
    by_client = [{"client": "a", "rmse": value}, {"client": "b", "rmse": None}]
    return {**found, "metrics": {**dict.fromkeys(names, value), "rmse/by_client": by_client}}


def test_the_table_of_a_regression_has_rmse_and_no_accuracy():
    (row,) = table_rows([rmse_result("fedavg", 2.0), rmse_result("fedavg", 4.0)], RMSE)
    assert (row["rmse/pooled"], row["rmse/worst"], row["rmse/median"]) == (3.0, 3.0, 3.0)
    assert not [name for name in row if "accuracy" in name or "entropy" in name]
