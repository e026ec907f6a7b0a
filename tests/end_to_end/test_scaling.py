"""Raw columns as typed: what the screen says of them, and a run that is scaled, killed, resumed and served."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

pytestmark = pytest.mark.slow

CLIENTS = ("c0", "c1", "c2")
SETTINGS = {
    "data.name": "wine",
    "data.source": "{kind: npz, path: wine.npz}",
    "data.scheme": "[{kind: column, column: client}]",
    "model.hidden": "[]",
    "training.rounds": 10,
}
SCALED = {"model.inputs": "standardise", "training.optimiser.learning_rate": 0.05}
PREDICT = """
import json, sys
sys.path[:] = [p for p in sys.path if p.rstrip("/") != CHECKOUT]
import mlflow
from safetensors.numpy import load_file
mlflow.set_tracking_uri(STORE)
given = mlflow.pyfunc.load_model(f"runs:/{RUN}/{NAME}").predict(load_file(ROWS)["test_x"])
print(json.dumps(given["label"].tolist()))
"""


def typed(**more: Any) -> list[str]:
    """`--set` for each setting."""
    return [part for key, value in (SETTINGS | more).items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def wine(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with the wines of three clients, in the columns' own units."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("scaling") / "wine", server)
    x, y = load_wine(return_X_y=True)
    np.savez(folder.path / "wine.npz", x=x, y=y, client=np.array(CLIENTS)[np.arange(len(y)) % 3])
    folder.type("partition", *typed())
    return folder


@pytest.fixture(scope="module")
def scaled(wine: Any) -> Any:
    """What a run answers whose inputs are standardised."""
    return wine.type("run", "pooled", "--json", *typed(**SCALED))


def test_a_comparison_says_each_warning_once_and_what_to_set(wine: Any) -> None:
    slow = typed(**{"training.rounds": 3, "training.optimiser.learning_rate": 1e-30})
    found = wine.type("compare", "fedavg", "pooled", "--seeds", "0,1", "--json", *slow)
    assert found.err.count("far from unit scale") == 1
    assert "inputs of 3 of 3 clients are far from unit scale" in found.err
    assert "set model.inputs to standardise" in found.err
    rows, training = found.json["notes"]
    assert [note["methods"] for note in (rows, training)] == [["fedavg", "pooled"]] * 2
    assert (rows["about"], training["about"]) == ("inputs", "training")
    assert rows["sentence"] in found.err
    assert (
        "the training loss did not fall after the first round: lower training.optimiser.learning_rate"
        in (training["sentence"])
    )
    printed = wine.type("compare", "--resume", "fedavg", "pooled", "--seeds", "0,1", *slow).out
    assert printed.count("the training loss did not fall") == 1
    assert "fedavg, pooled: the training loss did not fall" in printed


def test_nothing_is_said_of_the_embedded_default_nor_of_rows_that_are_scaled(finished: Any, scaled: Any) -> None:
    assert finished.compare.json["notes"] == []
    assert scaled.json["notes"] == []
    assert [line for line in scaled.lines if "pooled-seed0 " not in line] == []


def test_raw_columns_are_as_right_as_those_that_another_library_standardises(wine: Any, scaled: Any) -> None:
    parts = [load_file(wine.path / "data" / "wine" / f"{client}.safetensors") for client in CLIENTS]
    x, y = (np.concatenate([part[f"train_{name}"] for part in parts]) for name in "xy")
    scaler = StandardScaler().fit(x.astype(np.float64))
    held = json.loads((wine.path / scaled.json["folder"] / "scaling.json").read_text())["inputs"]
    np.testing.assert_allclose(held["mean"], scaler.mean_, rtol=1e-12)
    np.testing.assert_allclose(held["scale"], scaler.scale_, rtol=1e-12)
    known = LogisticRegression().fit(scaler.transform(x), y)
    right = [known.score(scaler.transform(part["test_x"]), part["test_y"]) for part in parts]
    assert scaled.json["metrics"]["accuracy/mean"] >= np.mean(right) - 0.03


def test_the_logged_model_takes_raw_rows(wine: Any, scaled: Any) -> None:
    rows = wine.path / "data" / "wine" / "c1.safetensors"
    given = {
        "CHECKOUT": str(Path(__file__).parents[2]),
        "STORE": f"sqlite:///{wine.path / 'runs' / 'mlflow.db'}",
        "RUN": scaled.json["mlflow_run_id"],
        "NAME": Path(scaled.json["folder"]).name,
        "ROWS": str(rows),
    }
    head = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    done = subprocess.run(
        [sys.executable, "-I", "-c", head + PREDICT], cwd="/", capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    labels = np.array(json.loads(done.stdout.splitlines()[-1]), int)
    found = scaled.json["metrics"]["accuracy/by_client"]
    (reported,) = [row["accuracy"] for row in found if row["client"] == "c1"]
    assert np.mean(labels == load_file(rows)["test_y"]) == pytest.approx(reported)


def test_a_run_killed_once_clients_have_told_moments_ends_with_the_same_bits_and_bytes(
    wine: Any, scaled: Any, server: str, tmp_path: Path
) -> None:
    folder, at = wine.copy(tmp_path / "killed", server), "scaling.json"
    before = {*folder.path.glob(f"runs/*/*/{at}")}
    first = folder.start("run", "pooled", "--json", *typed(**SCALED), PREFECT_API_URL=server)
    try:
        end = time.monotonic() + 120
        while not {*folder.path.glob(f"runs/*/*/{at}")} - before:
            assert first.poll() is None, first.communicate()
            assert time.monotonic() < end
            time.sleep(0.002)
    finally:
        first.kill()
        first.communicate()
    run = folder.type("run", "pooled", "--json", "--resume", *typed(**SCALED)).json
    assert run["weights_sha256"] == scaled.json["weights_sha256"]
    assert run["bytes"] == scaled.json["bytes"]


def test_a_version_of_a_few_rows_less_is_scaled_as_the_one_before_and_says_so(
    wine: Any, server: str, tmp_path: Path
) -> None:
    folder, ran = wine.copy(tmp_path / "versions", server), []
    asked = typed(**SCALED, **{"data.split.validation": 0, "data.name": "near"})
    shutil.rmtree(folder.path / "private")  # other tests may have reported these rows, in another split
    with np.load(folder.path / "wine.npz") as held:
        arrays = {**held, "split": np.where(np.arange(178) % 4, "train", "test")}
    for rows in (178, 175):  # one training row fewer of two clients
        np.savez(folder.path / "wine.npz", **{name: array[:rows] for name, array in arrays.items()})
        folder.type("partition", *asked)
        ran.append(folder.type("run", "pooled", "--json", *asked))
    before, after = (json.loads((folder.path / run.json["folder"] / "scaling.json").read_text()) for run in ran)
    (note,) = after["notes"]
    assert after == before | {"notes": [note]}
    assert "by fewer than 10 different rows" in note["sentence"]
    assert re.search(r"\(and \d more clients?\)", note["sentence"])
    assert [run.json["notes"] for run in ran] == [[], [note]]
    assert note["sentence"] in ran[1].err
