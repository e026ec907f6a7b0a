"""The logged model, loaded where siloflow is not."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

CLIENT = "c03"
STRANGER = """
import json, pathlib, sys, tempfile
sys.path[:] = [p for p in sys.path if p.rstrip("/") != CHECKOUT]
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in f"{getattr(f, '__module__', '')}{f}".lower()]
for room in ("models", "flows", "tasks", "silos"):
    try:
        __import__(room)
        raise SystemExit(f"{room} can be seen")
    except ModuleNotFoundError:
        pass
own = pathlib.Path(tempfile.mkdtemp())  # the program has a package of this name itself
(own / "models").mkdir()
(own / "models" / "__init__.py").write_text("MINE = True")
sys.path.insert(0, str(own))
import models
import mlflow
from safetensors.numpy import load_file
mlflow.set_tracking_uri(STORE)
model = mlflow.pyfunc.load_model(f"runs:/{RUN}/{MODEL}")
rows = load_file(ROWS)["test_x"]
answers = {"dtype": str(rows.dtype), "shape": list(rows.shape[1:])}
for name, params in ASKED.items():
    try:
        given = model.predict(rows, params=params)
        answers[name] = given["label"].tolist()
        assert given["probability"].between(0, 1).all() and (given["entropy"] >= 0).all()
        each = given[[f"probability/{digit}" for digit in range(10)]]
        assert (each.sum(axis=1) - 1).abs().max() < 1e-5 and (each.max(axis=1) == given["probability"]).all()
        assert (each.idxmax(axis=1) == "probability/" + given["label"]).all()
        assert list(given) == model.metadata.signature.outputs.input_names()
    except Exception as error:
        answers[name] = str(error)
assert sys.modules["models"].MINE and not [name for name in sys.modules if name.startswith("models.")]
assert any(name.startswith("siloflow_models_") for name in sys.modules)
print(json.dumps(answers))
"""


def answers(folder: Path, run: dict[str, Any], asked: list[str] | dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the run's model answers on the raw test rows of `CLIENT`, asked as each of these clients or with these params."""
    given = {
        "CHECKOUT": str(Path(__file__).parents[2]),
        "STORE": f"sqlite:///{folder / 'runs' / 'mlflow.db'}",
        "RUN": run["mlflow_run_id"],
        "MODEL": f"{run['method']}-seed{run['seed']}",
        "ROWS": str(folder / "data" / "digits" / f"{CLIENT}.safetensors"),
        "ASKED": asked if isinstance(asked, dict) else {client: {"client": client} for client in asked},
    }
    head = "nan = float('nan')\n" + "".join(f"{name} = {value!r}\n" for name, value in given.items())
    done = subprocess.run(
        [sys.executable, "-I", "-c", head + STRANGER], cwd="/", capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def accuracy(folder: Path, labels: list[str]) -> float:
    """Of labels on the test rows of `CLIENT`."""
    from safetensors.numpy import load_file

    right = load_file(folder / "data" / "digits" / f"{CLIENT}.safetensors")["test_y"]
    return sum(label == str(y) for label, y in zip(labels, right.tolist(), strict=True)) / len(right)


def reported(run: dict[str, Any]) -> float:
    """The run's accuracy on `CLIENT`."""
    (found,) = [row["accuracy"] for row in run["metrics"]["accuracy/by_client"] if row["client"] == CLIENT]
    return found


@pytest.fixture(scope="module")
def personal(unusual: Any) -> dict[str, Any]:
    """A run whose personal weights were asked for, reported at its best round."""
    (run,) = [run for run in unusual.one.json["runs"] if run["method"] == "local_only"]
    return run


@pytest.mark.slow
def test_the_global_model_answers_raw_rows_as_reported_and_refuses_to_be_a_clients(finished: Any) -> None:
    folder, run = finished.folder.path, finished.run("fedavg", 0)
    found = answers(folder, run, ["", CLIENT])
    assert (found["dtype"], found["shape"]) == ("uint8", [8, 8])
    assert accuracy(folder, found[""]) == pytest.approx(reported(run))
    assert found[CLIENT] == (
        f"client: got {CLIENT!r}, expected none, since FedAvg has one model for all clients. Drop the parameter."
    )


@pytest.mark.slow
def test_an_ensemble_answers_raw_rows_as_reported(finished: Any, server: str) -> None:
    folder = replace(finished.folder, server=server)
    asked = ("--set", "model.members=2", "--set", "training.rounds=2", "--json")
    run = folder.type("run", "fedavg", *asked).json
    alone = finished.run("fedavg", 0)
    assert run["parameters"] == 2 * alone["parameters"]
    found = answers(folder.path, run, [""])
    assert accuracy(folder.path, found[""]) == pytest.approx(reported(run))


def test_private_weights_are_not_logged_unless_asked_for(finished: Any) -> None:
    client, run = finished.folder.mlflow(), finished.run("local_only", 0)
    experiment = client.get_run(run["mlflow_run_id"]).info.experiment_id
    logged = {model.source_run_id for model in client.search_logged_models([experiment])}
    shared, private = ({finished.run(m, seed)["mlflow_run_id"] for seed in (0, 1)} for m in ("fedavg", "local_only"))
    assert logged & (shared | private) == shared  # other runs of the project are in the same experiment
    names = {file.path for file in client.list_artifacts(run["mlflow_run_id"])}
    assert names == {"clients.csv"}


@pytest.mark.slow
def test_personal_models_answer_for_their_client_and_refuse_a_stranger(unusual: Any, personal: dict[str, Any]) -> None:
    folder = unusual.folder.path
    found = answers(folder, personal, [CLIENT, "c04", "c99"])
    assert accuracy(folder, found[CLIENT]) == pytest.approx(reported(personal))
    assert found["c04"] != found[CLIENT]
    assert "'c99'" in found["c99"]
    assert "c00, c01, c02" in found["c99"]


@pytest.mark.slow
def test_a_conditional_model_answers_as_reported_given_the_statistics_that_the_client_makes(
    finished: Any, server: str, tmp_path: Path
) -> None:
    folder = replace(finished.folder, server=server)
    kinds = ("--set", "method.conditional.statistics=[{kind: class_means}, {kind: fingerprint, values: 4}]")
    slowly = ("--set", "training.rounds=5", "--set", "training.optimiser.learning_rate=0.1")
    run = folder.type("run", "conditional", "--json", *slowly, *kinds).json
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.is_file()}
    made = {client: folder.type("stats", client, "--json", *kinds).json for client in (CLIENT, "c04")}
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.is_file()} == before
    assert [(k["kind"], k["length"]) for k in made[CLIENT]["kinds"]] == [("class_means", 640), ("fingerprint", 4)]
    numbers = made[CLIENT]["statistics"]
    how, other = made[CLIENT]["made_as"], "class_means, fingerprint values 4 log true"
    assert how == "class_means, fingerprint values 4 log false"
    asked = {
        "own": {"statistics": numbers, "made_as": how},
        "of another kind": {"statistics": numbers, "made_as": other},
        "another's": {"statistics": made["c04"]["statistics"]},
        "none": {},
        "short": {"statistics": numbers[:-1]},
        "nan": {"statistics": [*numbers[:-1], float("nan")]},
    }
    found = answers(folder.path, run, asked)
    assert accuracy(folder.path, found["own"]) == pytest.approx(reported(run))
    assert found["another's"] != found["own"]
    assert f"statistics: got none, expected 644 numbers ({how})" in found["none"]
    assert "`siloflow stats CLIENT --json` prints" in found["none"]
    assert found["short"] == f"statistics: got 643, expected 644 numbers ({how})"
    assert found["of another kind"] == f"statistics: got some computed as {other}, expected 644 numbers ({how})"
    assert found["nan"] == "statistics: got nan as number 644, expected a finite float32 number"
    folder.type("stats", CLIENT, "--output", str(tmp_path / "own.json"), *kinds)
    assert json.loads((tmp_path / "own.json").read_text())["statistics"] == numbers


@pytest.mark.slow
def test_no_artifact_is_a_pickle(finished: Any, unusual: Any) -> None:
    roots = [folder.path / "runs" for folder in (finished.folder, unusual.folder)]
    files = [path for root in roots for path in root.rglob("*") if path.is_file()]
    assert any(path.name == "MLmodel" for path in files)
    assert any(path.name == "weights.safetensors" for path in files)
    assert [path for path in files if path.suffix in {".pkl", ".pickle", ".pt", ".pth", ".joblib"}] == []
    for path in files:
        assert not path.read_bytes().startswith((b"\x80\x04", b"\x80\x05")), f"{path} begins as a pickle does"
