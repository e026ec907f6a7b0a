"""What `siloflow evaluate` says of a model: where it comes from, and its scores on the present rows; and what places get."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flows.results.serving import open_model, place_models
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

    def score(project: Any, folder: Path, final: bool = False) -> Any:
        assert final, "all metrics of the task are computed, as at the end of a run"
        return opened, [scores]

    monkeypatch.setattr(open_model, "score_on_present_rows", score)
    found = open_model.evaluate_model(project, "fedavg-seed0")
    assert (found["trained_on"], found["data_version"]) == ("then", silos.version)
    assert found.items() >= {"run": "runs/first/fedavg-seed0", "version": None, **about}.items()
    assert found["metrics"]["accuracy/mean"] == 0.5
    assert [(each["client"], each["role"], each["rows"], each["accuracy"]) for each in found["clients"]] == [
        ("a", "federated", 4, 0.25),
        ("b", "federated", 4, 0.75),
    ]


@pytest.mark.parametrize("is_same", [True, False])
@pytest.mark.parametrize("is_personal", [True, False])
def test_each_place_gets_a_model_of_the_rows_that_it_was_trained_on_and_what_its_own_clients_keep(
    is_same: bool, is_personal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project: Any = SimpleNamespace(
        root=tmp_path,
        silos=SimpleNamespace(version="now", by_place=lambda: {"north": ("a", "b"), "south": ("c",)}),
        data=SimpleNamespace(working=lambda _: nullcontext(), same_rows=lambda *_: is_same),
    )
    trained = SimpleNamespace(clients=("a", "c"), is_personal=is_personal, select=tuple)
    of_run = SimpleNamespace(
        scorer=SimpleNamespace(
            method=SimpleNamespace(model_dump=lambda **_: {"rate": 2}), silos=SimpleNamespace(scaling="scaling")
        ),
        model=trained,
        method="fedavg",
        round=SimpleNamespace(private="private"),
    )
    opened, sent = list[bool](), dict[str, Any]()

    def finish(project: Any, run: str, on_present_data: bool) -> Any:
        opened.append(on_present_data)
        return of_run

    monkeypatch.setattr(place_models, "find_run", lambda *_: SimpleNamespace(path=tmp_path / "runs" / "fedavg-seed0"))
    monkeypatch.setattr(place_models, "check_same_data", lambda *_: {"data_version": "then"})
    monkeypatch.setattr(place_models, "finished_run", finish)
    monkeypatch.setattr(place_models, "send_to_places", lambda _, models: sent.update(models) or "answers")
    found = place_models.send_model(project, "fedavg-seed0")
    assert found == {"run": "runs/fedavg-seed0", "version": None, "places": "answers"}
    assert opened == [not is_same]
    kept = {"north": ("a",), "south": ("c",)} if is_personal else {"north": (), "south": ()}
    assert {place: model.model for place, model in sent.items()} == kept
    assert (sent["north"].method, sent["north"].settings, sent["north"].run) == ("fedavg", '{"rate": 2}', found["run"])
