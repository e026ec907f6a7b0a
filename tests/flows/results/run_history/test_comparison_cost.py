"""Which target the costs of a comparison are about, and from which table it follows."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.results.run_history.comparison_cost import cost_of_result, costs_of, table_on_data
from models.metrics.task_metrics import TASK_METRICS
from tasks.tracking.cost_to_target import cost_curve
from tasks.tracking.json_io import write_json

ACCURACY = TASK_METRICS["classification"]


def records(*scores: float) -> list[dict[str, Any]]:
    metrics = [{"accuracy/mean": score, "bytes/up": 5.0, "bytes/down": 5.0} for score in scores]
    return [{"round": at + 1, "metrics": found, "seconds": {"round": 1.0}} for at, found in enumerate(metrics)]


def run(accuracy: float) -> dict[str, Any]:
    metrics = dict.fromkeys(ACCURACY.columns, accuracy)
    return {
        "method": "fedavg",
        "model": "global",
        "seed": 0,
        "metrics": metrics,
        "bytes": {"up": 1, "down": 1},
        "seconds": {"total": 1.0},
    }


def test_of_several_partitions_the_target_follows_from_the_runs_on_data() -> None:
    table: Any = [{"method": "fedavg", **dict.fromkeys(ACCURACY.columns, 0.6)}]  # the mean over partitions
    baseline: Any = {"metrics": {"accuracy/mean": 0.0}}
    curves = {"fedavg": cost_curve([records(0.5, 0.6, 0.8)], ACCURACY)}
    for drawn, target in ((True, 0.72), (False, 0.54)):
        on_data = table_on_data(table, [run(0.8)], drawn, ACCURACY)
        assert costs_of(on_data, baseline, curves, ACCURACY)["fedavg"]["target"] == pytest.approx(target)


def test_a_target_of_the_user_replaces_that_of_the_comparison(tmp_path: Path) -> None:
    journal = tmp_path / "runs" / "first" / "fedavg-seed0" / "journal"
    for record in records(0.5, 0.6, 0.8):
        write_json(journal / f"{record['round']:06d}.json", {**record, "time_ms": 0, "dropped": []})
    finished = {"method": "fedavg", "folder": "runs/first/fedavg-seed0", "rounds": 3}
    recorded = {"fedavg": {"target": 0.54, "of_best": 0.9, "rounds": 2, "bytes": 20.0, "seconds": 2.0}}
    content = {"experiment": "first", "task": "classification", "cost": recorded, "table": [], "runs": [finished]}
    folder = tmp_path / "runs" / "first"
    write_json(folder / "comparison.json", {**content, "paired": [], "tuning": [], "failed": []})
    write_json(folder / "experiment.json", {"kind": "compare", "name": "first", "started": "20260101"})
    project: Any = SimpleNamespace(root=tmp_path, store=SimpleNamespace(runs=tmp_path / "runs"))
    assert cost_of_result(project, "first", None, None)["cost"] == recorded
    found = cost_of_result(project, "first", None, 0.7)["cost"]["fedavg"]
    assert (found["target"], found["of_best"], found["rounds"]) == (0.7, None, 3)
