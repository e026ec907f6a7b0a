"""A hospital's table from `siloflow init` to the report that is handed on: six silos of unequal size.

One is of breast cancer, and one is made: 4 % of the stays end in death.
"""

import html
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

pytestmark = pytest.mark.slow

SIZES = {"north": 180, "south": 140, "<b>east</b>": 100, "west": 70, "coast": 50, "hills": 29}
STAYS = {"north": 2000, "south": 2000, "city": 700, "west": 400, "coast": 60, "hills": 40}
QUICK = ("--set", "training.rounds=3", "--seeds", "0,1")


Start = Callable[[pd.DataFrame, str], Any]


@pytest.fixture(scope="module")
def start(
    tmp_path_factory: pytest.TempPathFactory, databases: Path, server: str, folder_at: Callable[..., Any]
) -> Start:
    """Makes a project of a table by `init`, and partitions it."""

    def started(table: pd.DataFrame, label: str) -> Any:
        home = tmp_path_factory.mktemp("hospital")
        table.to_csv(home / "visits.csv", index=False)
        folder_at(home, server).type("init", "study", "--data", "visits.csv", "--label", label, "--client", "hospital")
        (home / "study" / "runs").mkdir()
        shutil.copy(databases / "mlflow.db", home / "study" / "runs")
        folder = folder_at(home / "study", server)
        folder.type("partition")
        return folder

    return started


@pytest.fixture(scope="module")
def study(start: Start) -> Any:
    """The project of the breast cancer table."""
    table = load_breast_cancer(as_frame=True).frame.rename(columns=lambda name: name.replace(" ", "_"))
    table = table.sample(frac=1, random_state=0)
    table["diagnosis"] = np.where(table.pop("target") == 0, "malignant", "benign")
    table["hospital"] = np.repeat([*SIZES], [*SIZES.values()])
    return start(table, "diagnosis")


@pytest.fixture(scope="module")
def rare(start: Start) -> Any:
    """The project of 5,200 stays, of which 4 % end in death: in the south those of low risk.

    On the coast and in the hills one does, which is a training row on the coast, and a test row in the hills.
    """
    rng, rows = np.random.default_rng(6), sum(STAYS.values())
    table = pd.DataFrame(
        {
            "hospital": np.repeat([*STAYS], [*STAYS.values()]),
            "age": rng.normal(70, 12, rows).round(),
            "lactate": rng.gamma(2, 1, rows).round(2),
        }
    )
    risk = 0.1 * (table["age"] - 70) + (table["lactate"] - 2)
    risk = np.where(table["hospital"] == "south", -risk, risk) + rng.logistic(size=rows)
    deaths = {name: 1 if name in ("coast", "hills") else round(0.04 * size) for name, size in STAYS.items()}
    rank = pd.Series(risk).groupby(table["hospital"]).rank(ascending=False)
    table["died"] = np.where(rank <= table["hospital"].map(deaths), "yes", "no")
    return start(table, "died")


def test_a_table_of_a_hospital_reaches_a_report_that_names_every_silo(study: Any) -> None:
    diagnosed = study.type("diagnose", "--json").json
    compared = study.type("compare", "local_only", "fedavg", *QUICK, "--json").json
    page = html.unescape((study.path / compared["report"]).read_text(encoding="utf-8"))
    for sentence in (*(pair["sentence"] for pair in compared["paired"]), diagnosed["sentences"][0]):
        assert sentence in page
    for name, rows in SIZES.items():
        cells = rf'<th scope="row">{re.escape(name)}</th><td[^>]*>(\d+)</td><td[^>]*>(\d+)</td>'
        (train, test) = re.findall(cells, page)[0]
        assert 0.4 * rows < int(train) < 0.8 * rows
        assert int(train) + int(test) < rows
    assert "<b>" not in (study.path / compared["report"]).read_text(encoding="utf-8")
    assert compared["data_version"] in page
    assert "siloflow compare local_only fedavg --seeds 0,1 --reference fedavg --set training.rounds=3" in page

    name = compared["experiment"]
    assert study.type("results", name, "--cost", "--json").json["cost"] == compared["cost"]
    assert "No method reached accuracy 2.000 within its rounds." in study.type("results", name, "--target", "2").out


def test_a_table_with_a_rare_class_is_compared_by_the_area_and_names_the_silos_that_lose(rare: Any) -> None:
    assert "  metric: auc " in (rare.path / "params.yaml").read_text(encoding="utf-8")
    compared = rare.type("compare", "local_only", "fedavg", *QUICK[:2], "--seeds", "0", "--json").json
    assert (compared["metric"], compared["failed"]) == ("auc", [])
    gains = compared["gains"]["methods"]["fedavg"]
    assert (gains["compared"], gains["left_out"]) == (4, ["hills"])
    assert "south" in gains["certain_worse"]
    assert gains["clients"]["south"]["difference"] < -0.2
    lost, single = compared["gains"]["sentences"]
    untested = f"({len(gains['untested'])} of 4 have too few test rows to tell)"
    assert lost.endswith(f" of 4 clients lose, {', '.join(gains['certain_worse'])} certainly {untested}.")
    assert single == "hills has no difference, since one class has a single row among its test rows."
    undefined = "1 client had no auc, since its test rows have one class: means leave it out."
    assert undefined in [note["sentence"] for note in compared["notes"]]
    page = html.unescape((rare.path / compared["report"]).read_text(encoding="utf-8"))
    for shown in (lost, single, undefined, *(f'<th scope="row">{name}</th>' for name in STAYS)):
        assert shown in page


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--cost",), "results --cost: got no comparison, expected one."),
        (("a", "b", "--target", "0.9"), "results --cost: got two comparisons, expected one."),
        (("a", "--target", "nan"), "--target: got nan, expected a finite number."),
    ],
)
def test_a_cost_that_cannot_be_computed_is_a_sentence(study: Any, arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in study.type("results", *arguments, code=2).err.replace("\n", " ")
