"""Metrics of a client's rows: scikit-learn is the oracle, and rows' values give metric and variance."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as oracle

from flows.core.config.load_config import load_params, quantity_of
from flows.init_project import create_project
from flows.plugins import METRICS
from models.metrics.client_metrics import (
    CLIENT_METRICS,
    METRICS_BY_NAME,
    metric_record,
    metrics_of_task,
    recorded_metric,
)
from models.metrics.paired_difference import Stratum, difference
from models.metrics.task_metrics import TASK_METRICS

TOLERANCE = {"rel": 1e-12, "abs": 1e-12}


@st.composite
def classified(draw):
    """Logits with ties, (rows, classes), and labels of some of the classes."""
    classes = draw(st.integers(2, 5))
    rows = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    present = rng.permutation(classes)[: draw(st.integers(1, classes))]
    logits = rng.normal(scale=draw(st.sampled_from([0.1, 1.0, 5.0])), size=(rows, classes))
    if draw(st.booleans()):
        logits = np.round(logits)  # many rows tie
    return logits, rng.choice(present, size=rows)


@st.composite
def regressed(draw):
    rows = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    y = rng.normal(size=rows).round(draw(st.integers(0, 3))) * draw(st.sampled_from([1.0, 1e4]))
    return y + rng.normal(size=rows), y


def probabilities(logits):
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def odds(logits, code):
    """The log odds of a class, by a plain sum over the others."""
    others = [np.sort(np.delete(row, code)) for row in logits]
    return np.array([row[code] - np.logaddexp.reduce(rest) for row, rest in zip(logits, others, strict=True)])


def area(logits, y):
    codes = [1] if logits.shape[1] == 2 else np.unique(y)
    # rounded, so that log odds that are equal but for rounding tie
    return np.mean([oracle.roc_auc_score(y == code, odds(logits, code).round(9)) for code in codes])


def of_classes(function, **options):
    def score(logits, y):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of predicted classes without rows
            return function(y, logits.argmax(1), **options)

    return score


ORACLES = {
    "auc": area,
    "balanced_accuracy": of_classes(oracle.balanced_accuracy_score),
    "macro_f1": of_classes(oracle.f1_score, average="macro", zero_division=0.0),
    "log_loss": lambda z, y: oracle.log_loss(y, probabilities(z), labels=range(z.shape[1])),
    "brier": lambda z, y: oracle.brier_score_loss(y, probabilities(z), labels=range(z.shape[1])),
    "mae": lambda prediction, y: oracle.mean_absolute_error(y, prediction),
    "r2": lambda prediction, y: oracle.r2_score(y, prediction),
}


def test_every_metric_has_an_oracle_and_is_in_the_registry():
    assert set(ORACLES) == set(CLIENT_METRICS)
    assert set(METRICS_BY_NAME) <= set(METRICS.built_in)
    for name, metric in METRICS_BY_NAME.items():
        assert isinstance(metric, METRICS.find(name)), name
    assert metrics_of_task("regression") == ["rmse", "mae", "r2"]


@given(classified())
def test_metrics_of_classes_are_those_of_scikit_learn(rows):
    logits, y = rows
    for name, metric in CLIENT_METRICS.items():
        if metric.task == "classification":
            values = metric.of_client(logits, y)
            if name == "auc" and len(np.unique(y)) < 2:
                assert values is None
                continue
            assert values.shape == y.shape
            assert values.mean() == pytest.approx(ORACLES[name](logits, y), **TOLERANCE), name


@given(regressed())
def test_metrics_of_numbers_are_those_of_scikit_learn(rows):
    prediction, y = rows
    assert CLIENT_METRICS["mae"].of_client(prediction, y).mean() == pytest.approx(
        ORACLES["mae"](prediction, y), **TOLERANCE
    )
    values = CLIENT_METRICS["r2"].of_client(prediction, y)
    if len(np.unique(y)) == 1:
        assert values is None
    else:
        assert values.mean() == pytest.approx(ORACLES["r2"](prediction, y), rel=1e-12, abs=1e-10)


def test_the_area_ranks_rows_whose_probabilities_round_to_one():
    logits = np.array([[0.0, 50.0, 0.0], [0.0, 60.0, 0.0], [0.0, 55.0, 0.0], [9.0, 0.0, 0.0]])
    assert CLIENT_METRICS["auc"].of_client(logits[:, :2], np.array([0, 1, 1, 0])).mean() == 1.0
    assert CLIENT_METRICS["auc"].of_client(logits, np.array([0, 1, 1, 0])).mean() == 1.0


def test_a_constant_answer_has_half_of_the_area_one_class_of_the_recall_and_no_variance_explained():
    y, constant = np.array([0, 1, 2, 2, 0]), np.tile([0.1, 0.2, 0.7], (5, 1))
    assert CLIENT_METRICS["auc"].of_client(constant, y).mean() == 0.5
    assert CLIENT_METRICS["balanced_accuracy"].of_client(constant, y).mean() == pytest.approx(1 / 3)
    assert CLIENT_METRICS["r2"].of_client(np.full(5, y.mean()), y.astype(float)).mean() == pytest.approx(0)


@pytest.mark.parametrize("name", CLIENT_METRICS)
def test_predictions_that_are_not_finite_have_the_worst_value_unless_the_metric_is_undefined(name):
    metric = CLIENT_METRICS[name]
    y = np.array([0, 1, 1])
    prediction = np.array([[0.0, 1.0], [np.nan, 0.0], [1.0, 0.0]])
    constant = np.zeros(3, int)
    if metric.task == "regression":
        y, prediction, constant = y.astype(float), prediction[:, 0], constant.astype(float)
    assert (metric.of_client(prediction, y) == (-math.inf if metric.higher_is_better else math.inf)).all()
    assert metric.is_defined(y, 2 if metric.task == "classification" else 0)
    undefined = name in ("auc", "r2")
    assert (metric.of_client(prediction, constant) is None) == undefined == bool(metric.undefined_if)
    values = np.array([0.5, -math.inf if metric.higher_is_better else math.inf])
    assert metric.headline_text(metric.summary(values, np.ones(2))) == f"{metric.label} diverged"


@pytest.mark.parametrize("name", CLIENT_METRICS)
def test_names_sides_and_aggregates_follow_from_the_name(name):
    metric = CLIENT_METRICS[name]
    found = metric.summary(np.array([0.2, 0.6, 0.4]), np.ones(3))
    worst = 0.2 if metric.higher_is_better else 0.6
    assert found == pytest.approx({f"{name}/mean": 0.4, f"{name}/sd": 0.2, f"{name}/worst": worst})
    assert {metric.headline, *metric.columns} <= set(found)
    assert metric.reaches({metric.headline: 0.4}, 0.4)
    assert metric.reaches({metric.headline: 0.4}, 0.5) != metric.higher_is_better
    assert metric.over_clients([0.2, 0.6, 0.4]) == pytest.approx(0.4)
    assert metric.mean_of(metric.of_mean(0.3)) == 0.3
    assert recorded_metric(metric_record(metric)) is metric
    assert metric.also == TASK_METRICS[metric.task].also


def test_a_record_without_a_metric_has_the_usual_one_and_one_of_a_plugin_is_shown_again():
    assert recorded_metric({"task": "regression"}) is TASK_METRICS["regression"]
    shown = recorded_metric({"task": "regression", "metric": "pinball", "higher_is_better": False})
    assert shown.headline_text({"pinball/mean": 1234.4}) == "pinball 1234"
    assert shown.gain(-1.0) == 1.0
    share = CLIENT_METRICS["auc"].named("share")  # bounded, as one of a plugin
    assert recorded_metric(metric_record(share)).number(0.5) == share.number(0.5) == "0.500"
    assert "bound" not in metric_record(CLIENT_METRICS["auc"])


@pytest.mark.parametrize("name", ["accuracy", "auc"])
def test_a_loss_that_is_no_cross_entropy_is_named_and_has_no_unit(name):
    plain = METRICS_BY_NAME[name]
    metrics = {"loss/mean": 0.3, "entropy/mean": 0.1, "accuracy/mean": 0.9, f"{name}/mean": 0.9}
    assert "loss 0.300 nats, entropy 0.100 nats" in plain.as_text(metrics)
    named = recorded_metric(metric_record(plain.with_loss("focal loss")))
    assert "focal loss 0.300, entropy 0.100 nats" in named.as_text(metrics)
    assert (named.name, plain.loss) == (name, "loss")
    for kind, loss in (("focal", "focal loss"), ("cross_entropy", "loss")):
        params = load_params(create_project.TEMPLATES, [f"training.objective={{kind: {kind}}}"])
        assert quantity_of(params).loss == loss


def test_as_text_and_as_a_sentence():
    auc, loss = CLIENT_METRICS["auc"], CLIENT_METRICS["mae"]
    assert auc.difference(0.0123, -0.001, 0.02) == "+0.012 in auc, −0.001 to +0.020"
    assert loss.difference(-12.34, -20.0, -1.5) == "−12.3 in mae, −20.0 to −1.50"
    metrics = {"auc/mean": 0.8, "auc/sd": 0.05, "auc/worst": 0.7, "accuracy/mean": 0.9, "loss/mean": 0.3}
    assert auc.as_text(metrics | {"entropy/mean": 0.1}) == (
        "auc 0.800 ± 0.050 over clients, worst 0.700\naccuracy 0.900, loss 0.300 nats, entropy 0.100 nats"
    )
    assert "training diverged" in auc.as_text(metrics | {"auc/mean": math.nan})


def test_the_variance_of_the_area_is_that_of_delong():
    rng = np.random.default_rng(3)
    y = (rng.random(60) < 0.2).astype(int)
    score = rng.normal(size=60) + y
    below = (score[y == 0] < score[y == 1][:, None]) + 0.5 * (score[y == 0] == score[y == 1][:, None])
    variance = below.mean(1).var(ddof=1) / (y == 1).sum() + below.mean(0).var(ddof=1) / (y == 0).sum()
    values = CLIENT_METRICS["auc"].of_client(np.stack([np.zeros(60), score], 1), y)
    assert values.var() / 60 == pytest.approx(variance)


def covered(name: str, repeats: int, seed: int) -> float:
    """The share of simulated paired intervals, of 6 clients and 3 seeds, that hold the true difference of two models.

    The true difference is that of the mean over clients; it is estimated on many rows.
    """
    metric, rng, clients, seeds = CLIENT_METRICS[name], np.random.default_rng(seed), 6, 3
    rates = np.linspace(0.15, 0.5, clients)

    def draw(rows, rate):
        """Two models' logits of the same rows, (2, rows, 2), and the labels."""
        y = (rng.random(rows) < rate).astype(int)
        y[:2] = 0, 1
        shared = rng.normal(size=rows)
        scores = [strength * y + 0.8 * shared + 0.6 * rng.normal(size=rows) - 0.5 for strength in (1.5, 1.1)]
        return np.stack([np.stack([-s, s], 1) for s in scores]), y

    def noisy(logits):
        return logits + 0.1 * rng.normal(size=logits.shape)

    many = [draw(200_000, rate) for rate in rates]
    truth = np.mean([np.subtract(*(metric.of_client(noisy(z), y).mean() for z in logits)) for logits, y in many])
    hits = 0
    for _ in range(repeats):
        strata = []
        for rate in rates:
            (first, second), y = draw(int(rng.integers(60, 200)), rate)
            d = [metric.of_client(noisy(first), y) - metric.of_client(noisy(second), y) for _ in range(seeds)]
            strata.append(Stratum.from_differences(np.array(d)))
        found = difference(strata, bound=metric.bound, pooled_variance=metric.alike)
        hits += found.low <= truth <= found.high
    return hits / repeats


@pytest.mark.slow
@pytest.mark.parametrize("name", ["auc", "balanced_accuracy", "macro_f1"])
def test_the_paired_interval_holds_the_true_difference(name):
    share = covered(name, repeats=300, seed=7)
    print(f"{name}: {share:.3f}")
    assert 0.90 <= share <= 0.99
