"""From counts to metrics, against numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.metrics.client_metrics import CLIENT_METRICS
from models.metrics.task_metrics import TASK_METRICS
from tasks.messages.score_messages import Scores
from tasks.tracking.result_tables import aggregates, by_client, summary

COUNTS = st.lists(
    st.integers(0, 50).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1, max_size=9
)


def scores(counts: list[tuple[int, int]], split: str = "test", first: int = 0) -> Scores:
    rows, correct = (torch.tensor(c) for c in zip(*counts, strict=True))
    loss = torch.arange(1.0, len(counts) + 1, dtype=torch.float64) * rows
    names = tuple(f"c{first + i}" for i in range(len(counts)))
    return Scores(names, split, rows, {"correct": correct, "loss": loss, "entropy": loss / 4})


@given(COUNTS)
def test_the_summary_is_numpys(counts):
    found = summary(by_client([scores(counts)]), "test")
    kept = [(i, n, right) for i, (n, right) in enumerate(counts) if n]
    if not kept:
        assert found == {}
        return
    accuracy = np.array([right / n for _, n, right in kept])
    rows = np.array([n for _, n, _ in kept])
    loss = np.array([i + 1.0 for i, _, _ in kept])
    expected = {
        "accuracy/mean": np.mean(accuracy),
        "accuracy/sd": np.std(accuracy, ddof=1) if len(kept) > 1 else 0.0,
        "accuracy/worst": np.min(accuracy),
        "accuracy/over_rows": np.average(accuracy, weights=rows),
        "loss/mean": np.mean(loss),
        "entropy/mean": np.mean(loss) / 4,
    }
    assert found == pytest.approx(expected)


@given(COUNTS, st.integers(1, 8))
def test_it_does_not_matter_how_clients_were_stacked(counts, cut):
    cut = min(cut, len(counts))
    parts = [scores(counts[:cut])]
    if counts[cut:]:
        parts.append(scores(counts[cut:], first=cut))
    one = summary(by_client([scores([(n, right) for n, right in counts])]), "test")
    two = summary(by_client(parts), "test")
    for name in ("accuracy/mean", "accuracy/sd", "accuracy/worst", "accuracy/over_rows"):
        assert one.get(name) == two.get(name)


def test_splits_stand_side_by_side():
    table = by_client([scores([(10, 5)]), scores([(4, 4)], "validation")])
    assert table["c0"]["test/accuracy"] == 0.5
    assert table["c0"]["validation/accuracy"] == 1.0


def test_the_worst_client_and_its_rows():
    found = summary(by_client([scores([(100, 90), (1, 0), (0, 0)])]), "test")
    assert found["accuracy/worst"] == 0
    assert found["accuracy/mean"] == 0.45
    assert found["accuracy/over_rows"] == 90 / 101


def test_a_regression_has_rmse_and_no_accuracy_or_entropy():
    rmse = TASK_METRICS["regression"]
    error = torch.tensor([8.0, 0.0, 90.0], dtype=torch.float64)
    sums = {"squared_error": error, "loss": error}
    table = by_client([Scores(("a", "b", "c"), "test", torch.tensor([2, 0, 10]), sums)], rmse)
    assert table["a"] == {"test/rows": 2, "test/rmse": 2.0, "test/loss": 4.0}
    assert table["b"] == {"test/rows": 0, "test/rmse": None, "test/loss": None}
    assert summary(table, "test", rmse) == pytest.approx(
        {"rmse/pooled": 6.5**0.5, "rmse/worst": 3.0, "rmse/median": 2.5, "loss/mean": 6.5}
    )


def test_of_clients_with_rows_those_are_counted_for_which_a_metric_is_undefined():
    auc = CLIENT_METRICS["auc"]
    table = {
        "a": {"test/rows": 4, "test/auc": 0.5},
        "b": {"test/rows": 6, "test/auc": None},
        "c": {"test/rows": 0, "test/auc": None},
        "d": {"test/rows": 9, "test/auc": 0.9},
    }
    found = aggregates(table, "test", auc)
    assert found == pytest.approx({"auc/mean": 0.7, "auc/sd": 0.08**0.5, "auc/worst": 0.5, "auc/undefined": 1})
    assert aggregates({"b": table["b"]}, "test", auc) == {"auc/undefined": 1}
    assert aggregates({"c": table["c"]}, "test", auc) == aggregates(table, "validation", auc) == {}
