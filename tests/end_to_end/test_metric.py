"""A table with a rare class, as typed: `init` chooses AUC, and tuning, the best round and sentences go by it."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.slow

SOURCE = "{kind: table, path: stays.csv, label: died, client: hospital}"
SET = (
    "data.name=stays",
    f"data.source={SOURCE}",
    "data.scheme=[{kind: column, column: client}]",
    "data.split={validation: 0.25, test: 0.35}",
    "model.hidden=[]",
    "model.inputs=standardise",
    "training.rounds=3",
    "training.optimiser={kind: sgd, learning_rate: 0.1}",
    "evaluation.metric=auc",
    "evaluation.report=best",
    "comparison.tune=2",
)
ASKED = tuple(part for each in SET for part in ("--set", each))


@pytest.fixture(scope="module")
def folder(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A project with stays in four hospitals, of which few end in death, and in one none."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("metric") / "project", server)
    rng, rows = np.random.default_rng(0), 800
    stays = pd.DataFrame(
        {
            "hospital": np.repeat(["east", "north", "south", "west"], [300, 250, 150, 100]),
            "age": rng.normal(70, 12, rows).round(),
            "lactate": rng.gamma(2, 1, rows).round(2),
        }
    )
    risk = 0.08 * (stays["age"] - 70) + 0.9 * (stays["lactate"] - 2) - 2.6 + rng.logistic(size=rows)
    stays["died"] = np.where((risk > 0) & (stays["hospital"] != "west"), "yes", "no")
    stays.to_csv(folder.path / "stays.csv", index=False)
    return folder


def test_init_chooses_the_area_where_a_class_is_rare(folder: Any) -> None:
    made = folder.type("init", "study", "--data", "stays.csv", "--label", "died", "--client", "hospital", "--json").json
    assert "methods are compared by auc, since a class is rare" in made["guessed"]
    assert "  metric: auc " in (folder.path / "study" / "params.yaml").read_text()


def test_a_comparison_goes_by_the_area(folder: Any) -> None:
    folder.type("partition", *ASKED)
    found = folder.type("compare", "local_only", "fedavg", "--seeds", "0,1", *ASKED, "--name", "deaths", "--json").json
    assert (found["metric"], found["higher_is_better"], found["failed"]) == ("auc", True, [])
    for row in found["table"]:
        assert 0.5 < row["auc/mean"] <= 1
        assert row["auc/worst"] <= row["auc/mean"]
    assert found["baseline"]["metrics"]["auc/mean"] == pytest.approx(0.5)
    (pair,) = found["paired"]
    of_clients = [
        np.array([[row["auc"] for row in run["metrics"]["auc/by_client"] if row["auc"] is not None]])
        for method in ("local_only", "fedavg")
        for run in found["runs"]
        if run["method"] == method
    ]
    local, shared = np.concatenate(of_clients[:2]), np.concatenate(of_clients[2:])
    assert local.shape == shared.shape == (2, 3)  # west has no deaths
    assert pair["difference"] == pytest.approx((local - shared).mean())
    assert pair["low"] <= pair["difference"] <= pair["high"]
    assert " in auc, " in pair["sentence"]
    for run in found["runs"]:
        assert run["metrics"]["auc/undefined"] == 1
    for chosen in found["tuning"]:
        run = next(run for run in found["runs"] if run["method"] == chosen["method"] and run["seed"] == 0)
        assert run["metrics"]["validation/auc/mean"] == pytest.approx(chosen["score"])
    notes = [note["sentence"] for note in found["notes"]]
    assert "1 client had no auc, since its test rows have one class: means leave it out." in notes
    shown = folder.type("results", "deaths").out
    assert "auc" in shown
    assert "in auc" in shown


def test_by_another_metric_two_comparisons_are_not_compared(folder: Any) -> None:
    usual = [*ASKED, "--set", "comparison.tune=0", "--set", "evaluation.metric=null", "--set", "training.rounds=1"]
    folder.type("compare", "local_only", "fedavg", "--seeds", "0", *usual, "--name", "usual")
    answer = folder.type("results", "deaths", "usual", *ASKED, code=2)
    assert "got deaths, by auc, and usual, by accuracy, expected one metric" in answer.err
