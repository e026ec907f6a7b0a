"""A hospital's table from `siloflow init` to the report that is handed on: breast cancer, six silos of unequal size."""

import html
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

pytestmark = pytest.mark.slow

SIZES = {"north": 180, "south": 140, "<b>east</b>": 100, "west": 70, "coast": 50, "hills": 29}
QUICK = ("--set", "training.rounds=3", "--seeds", "0,1")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, databases: Path, server: str, folder_at: Callable[..., Any]) -> Any:
    """The project that `init` makes, partitioned and diagnosed."""
    home = tmp_path_factory.mktemp("hospital")
    data = load_breast_cancer(as_frame=True)
    table = data.frame.rename(columns=lambda name: name.replace(" ", "_")).sample(frac=1, random_state=0)
    table["diagnosis"] = np.where(table.pop("target") == 0, "malignant", "benign")
    table["hospital"] = np.repeat([*SIZES], [*SIZES.values()])
    table.to_csv(home / "visits.csv", index=False)
    wanted = ("--data", "visits.csv", "--label", "diagnosis", "--client", "hospital")
    folder_at(home, server).type("init", "study", *wanted)
    (home / "study" / "runs").mkdir()
    shutil.copy(databases / "mlflow.db", home / "study" / "runs")
    folder = folder_at(home / "study", server)
    folder.type("partition")
    return folder


def test_a_table_of_a_hospital_reaches_a_report_that_names_every_silo(study: Any) -> None:
    diagnosed = study.type("diagnose", "--json").json
    compared = study.type("compare", "local_only", "fedavg", *QUICK, "--json").json
    page = html.unescape((study.path / compared["report"]).read_text(encoding="utf-8"))
    for sentence in (*(pair["sentence"] for pair in compared["paired"]), diagnosed["sentences"][0]):
        assert sentence in page
    for name, rows in SIZES.items():
        (train, test) = re.findall(rf'<th scope="row">{re.escape(name)}</th><td>(\d+)</td><td>(\d+)</td>', page)[0]
        assert 0.4 * rows < int(train) < 0.8 * rows
        assert int(train) + int(test) < rows
    assert "<b>" not in (study.path / compared["report"]).read_text(encoding="utf-8")
    assert compared["data_version"] in page
    assert "siloflow compare local_only fedavg --seeds 0,1 --reference fedavg --set training.rounds=3" in page

    name = compared["experiment"]
    assert study.type("results", name, "--cost", "--json").json["cost"] == compared["cost"]
    assert "No method reached accuracy 2.000 within its rounds." in study.type("results", name, "--target", "2").out


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
