"""Tables of a run and of a comparison, and what a method costs until it reaches a target."""

import csv
import math
import statistics

import pytest

from models.metrics.task_metrics import TASK_METRICS
from tasks.tracking.result_tables import cost_curve, costs_to_target, table_rows, target_of_best, write_client_table

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


ACCURACY = TASK_METRICS["classification"]


def records(values, quantity=ACCURACY, up=100, down=10, seconds=2.0):
    """One record a round; a round without a value was not scored."""
    return [
        {
            "round": number,
            "metrics": {**({} if value is None else {quantity.headline: value}), "bytes/up": up, "bytes/down": down},
            "seconds": {"round": seconds, "local_train": 1.0},
        }
        for number, value in enumerate(values, 1)
    ]


def test_cost_counts_every_round_up_to_the_first_that_reaches_the_target():
    curve = cost_curve([records([0.2, None, 0.5, 0.4, 0.7])], ACCURACY)
    assert curve.rounds == (1, 3, 4, 5)
    assert curve.bytes == (110, 330, 440, 550)
    found = costs_to_target({"fedavg": curve}, 0.5, ACCURACY)["fedavg"]
    assert found == {"target": 0.5, "rounds": 3, "bytes": 330.0, "seconds": 6.0}


def test_seeds_are_averaged_and_a_seed_that_ended_keeps_its_last_score_and_costs_no_more():
    curve = cost_curve([records([0.2, 0.6]), records([0.4, 0.4, 0.8], up=200)], ACCURACY)
    assert curve.rounds == (1, 2, 3)
    assert curve.values == pytest.approx((0.3, 0.5, 0.7))
    assert curve.bytes == (160, 320, (220 + 630) / 2)


def test_a_target_that_is_not_reached_and_a_run_that_diverged_have_no_cost():
    curves = {"fedavg": cost_curve([records([0.2, 0.4])], ACCURACY)}
    curves["pooled"] = cost_curve([records([0.2, 0.9]), records([None, None])], ACCURACY)
    curves["other"] = cost_curve([records([math.nan])], ACCURACY)
    assert (curves["pooled"], curves["other"]) == (None, None)
    nothing = {"target": 0.5, "rounds": None, "bytes": None, "seconds": None}
    assert costs_to_target(curves, 0.5, ACCURACY) == dict.fromkeys(curves, nothing)
    assert cost_curve([], ACCURACY) is None


def test_the_target_is_90_percent_of_the_way_from_the_baseline_to_the_best_whichever_way_is_better():
    def table(quantity, *values):
        return [{quantity.headline: value} for value in values]

    baseline = {"metrics": {ACCURACY.headline: 0.5, RMSE.headline: 10.0}}
    assert target_of_best(table(ACCURACY, 0.7, 0.9, None), baseline, ACCURACY) == pytest.approx(0.86)
    assert target_of_best(table(RMSE, 6.0, 2.0, math.inf), baseline, RMSE) == pytest.approx(2.8)
    assert target_of_best(table(ACCURACY, 0.4, 0.5), baseline, ACCURACY) is None, "no method beats the baseline"
    assert target_of_best(table(ACCURACY, 0.9), None, ACCURACY) is None, "there are no test rows"
    assert target_of_best(table(ACCURACY, None), baseline, ACCURACY) is None


def test_less_is_better_reaches_a_target_from_above():
    curve = cost_curve([records([9.0, 3.0, 2.7, 2.9], RMSE)], RMSE)
    assert costs_to_target({"fedavg": curve}, 2.8, RMSE)["fedavg"]["rounds"] == 3
