"""What `siloflow evaluate` says of a model: where it comes from, and its scores on the present rows."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flows.results.serving import open_model
from models.metrics.task_metrics import TASK_METRICS
from tasks.messages.score_messages import Scores
from tasks.tracking.json_io import write_json


def test_a_model_is_scored_on_the_present_version_and_was_trained_on_that_of_its_run(
    write_silos: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silos, run = write_silos({"a": 5, "b": 5}, test=4), tmp_path / "runs" / "first" / "fedavg-seed0"
    write_json(run / "run.json", {"params": {"data": {"name": "digits"}}, "data_version": "then"})
    project: Any = SimpleNamespace(
        root=tmp_path,
        store=SimpleNamespace(runs=run.parents[1]),
        params=SimpleNamespace(data=SimpleNamespace(name="digits")),
        silos=silos,
        data=SimpleNamespace(working=lambda _: nullcontext()),
        ledgers=SimpleNamespace(folder=str(tmp_path / "private" / "digits")),
    )
    quantity = TASK_METRICS["classification"]
    about = {"method": "fedavg", "seed": 0, "round": 3}
    round = SimpleNamespace(number=3, setup=SimpleNamespace(seed=0))
    opened = SimpleNamespace(method="fedavg", scorer=SimpleNamespace(quantity=quantity, scored=silos), round=round)
    sums = {name: torch.tensor([1.0, 3.0], dtype=torch.float64) for name in ("correct", "loss", "entropy")}
    scores = Scores(("a", "b"), "test", torch.tensor([4, 4]), sums)
    monkeypatch.setattr(open_model, "score_on_present_rows", lambda *_, **__: (opened, [scores]))
    found = open_model.evaluate_model(project, "fedavg-seed0")
    assert (found["trained_on"], found["data_version"]) == ("then", silos.version)
    assert found.items() >= {"run": "runs/first/fedavg-seed0", "version": None, **about}.items()
    assert found["metrics"]["accuracy/mean"] == 0.5
    assert [(each["client"], each["role"], each["rows"], each["accuracy"]) for each in found["clients"]] == [
        ("a", "federated", 4, 0.25),
        ("b", "federated", 4, 0.75),
    ]
