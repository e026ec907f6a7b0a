"""What a candidate is compared with the champion by."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.registry.register_candidates import challenge, older_sentence
from models.metrics.client_metrics import METRICS_BY_NAME
from tasks.tracking.json_io import write_json


def test_models_that_were_scored_by_another_metric_have_no_interval_and_the_reason_names_both(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "before" / "fedavg-seed0"
    write_json(run / "run.json", {"params": {"data": {"name": "digits"}}, "data_version": "v"})
    write_json(run / "result.json", {"task": "classification", "rounds": 3, "mlflow_run_id": "r"})
    project: Any = SimpleNamespace(
        root=tmp_path,
        params=SimpleNamespace(data=SimpleNamespace(name="digits")),
        manifest=SimpleNamespace(task="classification"),
        quantity=METRICS_BY_NAME["auc"],
    )
    name = "runs/before/fedavg-seed0"
    assert challenge(project, name, name) == {
        "why_not": "fedavg-seed0 was scored by accuracy, and evaluation.metric is auc",
        "may_pass": True,
    }


def test_a_reason_names_a_missing_run_without_the_folder_of_the_project(tmp_path: Path) -> None:
    project: Any = SimpleNamespace(root=tmp_path)
    why = challenge(project, "runs/gone/fedavg-seed0", "runs/champion/fedavg-seed0")["why_not"]
    assert why == "runs/gone/fedavg-seed0 is missing. Restore it from a copy"


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (None, ""),
        ({"older": []}, ""),
        ({"sentence": "of an earlier version"}, ""),
        (
            {"older": ["a"]},
            "a: it was trained on other data, and unless the source marks test rows, perhaps on some of these",
        ),
        ({"older": ["a", "b"]}, "a and b: they were trained on other data, and unless"),
    ],
)
def test_models_that_may_know_present_test_rows_are_named(record: Any, said: str) -> None:
    assert older_sentence(record).startswith(said)
    assert bool(older_sentence(record)) == bool(said)
