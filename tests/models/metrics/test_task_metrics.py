"""What a task is judged by: rmse against numpy, and the sign, the target and the text of both."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.metrics.client_metrics import lower_is_better
from models.metrics.task_metrics import TASK_METRICS, format_number
from models.training.objectives import CrossEntropy, Focal, SquaredError

ACCURACY, RMSE = TASK_METRICS["classification"], TASK_METRICS["regression"]
ERRORS = st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=9), min_size=1, max_size=6)


@given(ERRORS)
def test_rmse_is_the_root_of_the_mean_over_clients_of_their_mean_squared_errors(errors):
    squares = [np.mean(np.square(e)) for e in errors]
    values = np.array([RMSE.of_mean(s) for s in squares])
    found = RMSE.summary(values, np.array([len(e) for e in errors]))
    assert found == pytest.approx(
        {
            "rmse/pooled": np.sqrt(np.mean(squares)),
            "rmse/worst": np.sqrt(np.max(squares)),
            "rmse/median": np.median(np.sqrt(squares)),
        }
    )
    assert RMSE.over_clients(values.tolist()) == pytest.approx(found["rmse/pooled"])


def test_every_column_and_headline_is_an_aggregate():
    for quantity in TASK_METRICS.values():
        made = {*quantity.summary(np.ones(3), np.ones(3)), *(f"{name}/mean" for name in quantity.also)}
        assert {quantity.headline, *quantity.columns} <= made


def test_the_objectives_are_of_their_tasks():
    assert [o.task for o in (CrossEntropy(), Focal(), SquaredError())] == ["classification"] * 2 + ["regression"]


def test_more_accuracy_and_less_rmse_score_higher():
    assert ACCURACY.score({"accuracy/mean": 0.9}) > ACCURACY.score({"accuracy/mean": 0.8})
    assert RMSE.score({"rmse/pooled": 0.1}) > RMSE.score({"rmse/pooled": 0.2})
    assert RMSE.score({"validation/rmse/pooled": 0.1}, "validation/") == -0.1


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
@pytest.mark.parametrize("quantity", TASK_METRICS.values())
def test_what_is_missing_or_diverged_scores_least_and_reaches_nothing(quantity, value):
    metrics = {quantity.headline: value}
    assert quantity.score(metrics) == quantity.score({}) == -math.inf
    assert not quantity.reaches(metrics, 1.0)


def test_a_target_is_reached_from_below_by_accuracy_and_from_above_by_rmse():
    for value, reached in ((0.49, False), (0.5, True), (0.51, True)):
        assert ACCURACY.reaches({"accuracy/mean": value}, 0.5) == reached
    for value, reached in ((2.51, False), (2.5, True), (0.0, True)):
        assert RMSE.reaches({"rmse/pooled": value}, 2.5) == reached


@pytest.mark.parametrize(("quantity", "behind"), [(ACCURACY, -1), (RMSE, 1)])
def test_a_target_is_reached_by_what_rounding_leaves_behind_it(quantity, behind):
    for distance, reached in ((1e-12, True), (1e-6, False)):
        assert quantity.reaches({quantity.headline: 0.7 + behind * distance}, 0.7) == reached


def test_which_metrics_are_better_low():
    down = ["rmse/pooled", "fresh/rmse/worst", "loss/mean", "log_loss/mean", "unseen/brier/worst", "mae/mean"]
    assert all(map(lower_is_better, down))
    assert not any(map(lower_is_better, ["accuracy/mean", "unseen/accuracy/worst", "fresh/auc/mean", "r2/worst"]))


def test_a_run_as_text():
    assert ACCURACY.headline_text({"accuracy/mean": 0.5}) == "accuracy 0.500"
    assert RMSE.headline_text({"rmse/pooled": 14.9012}) == "rmse 14.90"
    assert RMSE.headline_text({"rmse/pooled": math.inf}) == "rmse diverged"
    assert RMSE.headline_text({}) is None
    metrics = {"rmse/pooled": 0.10434, "rmse/worst": 45231.4, "rmse/median": 1e-7}
    assert RMSE.as_text(metrics) == "rmse 0.1043 pooled over clients, worst 45231, median 1e-07"
    assert "diverged. Try a lower training.optimiser.learning_rate" in RMSE.as_text({"rmse/pooled": math.nan})


def test_of_equal_scores_the_least_loss_ranks_first_and_one_without_a_loss_last():
    found = [{"accuracy/mean": 0.9, "loss/mean": loss} for loss in (0.3, 0.2, None, math.nan)]
    better, worse = ({"accuracy/mean": score, "loss/mean": loss} for score, loss in ((0.91, 9.0), (0.89, 0.0)))
    ordered = sorted([worse, *found, better], key=ACCURACY.rank, reverse=True)
    assert ordered == [better, found[1], found[0], *found[2:], worse]
    errors = [{"rmse/pooled": 2.0, "loss/mean": loss} for loss in (5.0, 4.0)] + [{"rmse/pooled": 1.0, "loss/mean": 9.0}]
    assert sorted(errors, key=RMSE.rank, reverse=True) == errors[::-1]


def test_accuracy_over_unequal_clients_is_summed_up_by_client_by_row_and_by_the_worst():
    values, rows = np.array([0.9, 0.5, 0.7]), np.array([10, 30, 60])
    found = ACCURACY.summary(values, rows)
    assert found == pytest.approx(
        {
            "accuracy/mean": 0.7,
            "accuracy/sd": 0.2,
            "accuracy/worst": 0.5,
            "accuracy/over_rows": (9 + 15 + 42) / 100,
        }
    )
    assert ACCURACY.summary(values[:1], rows[:1])["accuracy/sd"] == 0.0


@pytest.mark.parametrize(
    ("value", "digits", "sign", "text"),
    [
        (6.0, 3, "", "6"),
        (0.6, 3, "", "0.6"),
        (45231.4, 3, "", "45231"),
        (-99.6, 2, "+", "−100"),
        (14.4, 2, "+", "+14"),
        (0.0, 2, "+", "0"),
        (0.0, 3, "", "0"),
        (0.00094, 1, "", "0.0009"),
        (100.0, 2, "", "100"),
    ],
)
def test_numbers_of_sentences_have_no_powers_of_ten_and_no_idle_zeros(value, digits, sign, text):
    assert format_number(value, digits, sign) == text
