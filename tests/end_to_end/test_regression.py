"""A regression as typed: partitioned, compared, tracked, served."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.slow

CLIENTS, ROUNDS, METHODS = ("c00", "c01", "c02", "c03"), 5, ("fedavg", "local_only")
SETTINGS = {
    "data.name": "lines",
    "data.source": "{kind: synthetic, task: linear, clusters: 2, clients_per_cluster: 2, rows: 40, test_rows: 25, "
    "features: 3}",
    "data.scheme": "[{kind: column, column: client}]",
    "model.hidden": "[]",
    "training.rounds": ROUNDS,
    "training.objective": "{kind: squared_error}",
    "training.optimiser.learning_rate": 0.05,
    "evaluation.report": "best",
}
PREDICT = """
import json, sys
sys.path[:] = [p for p in sys.path if p.rstrip("/") != CHECKOUT]
import mlflow
from safetensors.numpy import load_file
mlflow.set_tracking_uri(STORE)
given = mlflow.pyfunc.load_model(f"runs:/{RUN}/{MODEL}").predict(load_file(ROWS)["test_x"])
print(json.dumps({name: given[name].tolist() for name in given}))
"""


def typed(**changes: Any) -> list[str]:
    """`--set` for each setting."""
    asked = {**SETTINGS, **{key.replace("__", "."): value for key, value in changes.items()}}
    return [part for key, value in asked.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def lines(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder in which a regression was partitioned, and what `compare` answered there."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("regression") / "lines", server)
    made = folder.type("partition", "--json", *typed()).json
    assert made["clients"] == len(CLIENTS)
    return folder, folder.type("compare", *METHODS, "--seeds", "0,1", "--json", *typed())


def test_the_answer_has_rmse_by_its_definition_and_nothing_of_accuracy(lines: Any) -> None:
    _, answer = lines
    for run in answer.json["runs"]:
        metrics = run["metrics"]
        each = [row["rmse"] for row in metrics["rmse/by_client"]]
        assert [row["client"] for row in metrics["rmse/by_client"]] == list(CLIENTS)
        assert metrics["rmse/pooled"] == pytest.approx(np.mean(np.square(each)) ** 0.5)
        assert metrics["rmse/worst"] == max(each)
        assert metrics["rmse/median"] == pytest.approx(np.median(each))
        assert "validation/rmse/pooled" in metrics
        assert not [name for name in metrics if "accuracy" in name or "entropy" in name]
    assert "accuracy" not in answer.out


def test_the_screen_says_rmse_and_no_noise(lines: Any, assert_quiet: Callable[[str], None]) -> None:
    assert_quiet(lines[1].err)
    for line in lines[1].lines:
        assert re.fullmatch(r" *\d of 4  \w+-seed\d +rmse \d+\.\d+ +[\d.]+ s", line), line


def test_training_alone_has_less_error_where_laws_differ_and_the_sentence_says_so(lines: Any) -> None:
    found = lines[1].json
    (paired,) = found["paired"]
    rows = {row["method"]: row["rmse/pooled"] for row in found["table"]}
    assert paired["difference"] == pytest.approx(rows["local_only"] - rows["fedavg"], rel=1e-4)
    assert paired["low"] < paired["difference"] < paired["high"] < 0
    assert paired["better"] == "local_only"
    assert re.fullmatch(
        r"local_only − fedavg −[\d.]+ in rmse, −[\d.]+ to −[\d.]+: local_only is better",
        paired["sentence"],
    )
    assert rows["local_only"] < rows["fedavg"]
    assert (lines[0].path / found["figure"]).read_bytes().startswith(b"\x89PNG")


def test_the_best_round_is_the_one_with_the_least_rmse_on_validation_rows(lines: Any) -> None:
    folder, answer = lines
    chosen = set()
    for run in answer.json["runs"]:
        journal = sorted((folder.path / run["folder"] / "journal").glob("*.json"))
        errors = [json.loads(p.read_text())["metrics"]["validation/rmse/pooled"] for p in journal]
        assert len(errors) == ROUNDS
        assert run["reported_round"] == 1 + int(np.argmin(errors))
        chosen.add(run["reported_round"])
    assert chosen - {1}


def test_mlflow_has_rmse_of_every_round_and_shows_the_least_first(lines: Any, tmp_path: Path) -> None:
    folder, answer = lines
    client, run = folder.mlflow(), answer.json["runs"][0]
    steps = [m.step for m in client.get_metric_history(run["mlflow_run_id"], "rmse/pooled")]
    assert steps == list(range(1, ROUNDS + 1))
    experiment = client.get_experiment(client.get_run(run["mlflow_run_id"]).info.experiment_id)
    view = json.loads(experiment.tags["mlflow.sharedViewState.siloflow"])
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`rmse/pooled`", True)
    assert "| rmse | worst client | median client |" in experiment.tags["mlflow.note.content"]
    assert "Against fedavg: local_only better." in experiment.tags["mlflow.note.content"]
    table = client.download_artifacts(run["mlflow_run_id"], "clients.csv", str(tmp_path))
    with Path(table).open(encoding="utf-8") as file:
        columns = set(csv.DictReader(file).fieldnames or ())
    assert {"test/rmse", "validation/rmse", "test/loss"} <= columns
    assert not [name for name in columns if "accuracy" in name or "entropy" in name]


def test_the_logged_model_predicts_the_numbers_that_were_scored(lines: Any) -> None:
    folder, answer = lines
    rows = folder.path / "data" / "lines" / "c02.safetensors"
    run = answer.json["runs"][0]
    given = {
        "CHECKOUT": str(Path(__file__).parents[2]),
        "STORE": f"sqlite:///{folder.path / 'runs' / 'mlflow.db'}",
        "RUN": run["mlflow_run_id"],
        "MODEL": f"{run['method']}-seed{run['seed']}",
        "ROWS": str(rows),
    }
    head = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    done = subprocess.run(
        [sys.executable, "-I", "-c", head + PREDICT], cwd="/", capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"prediction"}
    error = np.array(found["prediction"]) - load_file(rows)["test_y"]
    (reported,) = [row["rmse"] for row in run["metrics"]["rmse/by_client"] if row["client"] == "c02"]
    assert np.mean(error**2) ** 0.5 == pytest.approx(reported, rel=1e-4)


def test_a_logged_model_has_the_numbers_of_the_round_that_is_reported(lines: Any) -> None:
    folder, answer = lines
    client, runs = folder.mlflow(), {run["mlflow_run_id"]: run for run in answer.json["runs"]}
    models = client.search_logged_models([client.get_run(next(iter(runs))).info.experiment_id])
    assert models
    for model in models:
        run = runs[model.source_run_id]
        told = {m.key: (m.step, m.value) for m in model.metrics}
        assert told["rmse/pooled"] == (run["reported_round"], run["metrics"]["rmse/pooled"])


def test_a_run_stops_when_the_rmse_is_at_the_target_or_below(lines: Any) -> None:
    folder, answer = lines
    (alone,) = [r for r in answer.json["runs"] if (r["method"], r["seed"]) == ("local_only", 0)]
    journal = sorted((folder.path / alone["folder"] / "journal").glob("*.json"))
    second = json.loads(journal[1].read_text())["metrics"]["rmse/pooled"]
    arguments = typed(evaluation__stop_at=second, evaluation__report="last")
    run = folder.type("run", "local_only", "--json", *arguments).json
    assert (run["rounds"], run["ended_by"]) == (2, "evaluation.stop_at")


def test_silos_of_numbers_are_shown(lines: Any) -> None:
    shown = lines[0].type("show", *typed()).out
    assert "y mean" in shown
    assert "target spread" in shown
    assert "classes" not in shown


def test_runs_that_diverged_say_so_in_valid_json(lines: Any) -> None:
    folder, _ = lines
    arguments = typed(training__optimiser__learning_rate=50, training__rounds=20, evaluation__report="last")
    found = folder.type("compare", *METHODS, "--seeds", "0", "--json", *arguments)
    assert "rmse diverged" in found.err
    assert "Warning" not in found.err
    comparison = json.loads(found.out, parse_constant=pytest.fail)
    assert comparison["paired"][0]["better"] is None
    assert "not finite" in comparison["paired"][0]["sentence"]
