"""Bytes, seconds and rounds until a target are those of the journal, also where runs end at different rounds."""

import math

import pytest

from models.metrics.task_metrics import TASK_METRICS
from tasks.tracking.cost_to_target import cost_curve, costs_to_target, target_of_best

ACCURACY, RMSE = TASK_METRICS["classification"], TASK_METRICS["regression"]


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


def test_the_curve_begins_where_every_seed_has_a_score():
    curve = cost_curve([records([None, 0.4, 0.6]), records([0.2, None, 0.8])], ACCURACY)
    assert curve.rounds == (2, 3)
    assert curve.values == pytest.approx((0.3, 0.7))
    assert curve.bytes == (220, 330)


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
