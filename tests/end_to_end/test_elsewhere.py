"""MLflow is a server that somebody else has started."""

import json
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking.mlflow_logging.connection import connect

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told(partitioned: Any, server: str, mlflow_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder whose params name a real `mlflow server`, and what `compare --name autumn` answered there."""
    mlflow_server.start()
    folder = partitioned[0].copy(tmp_path_factory.mktemp("elsewhere") / "project", server)
    params = folder.path / "params.yaml"
    params.write_text(params.read_text(encoding="utf-8").replace("uri: null ", f"uri: {mlflow_server.url} "))
    typed = ("compare", "fedavg", "--seeds", "0", "--set", "training.rounds=2", "--name", "autumn")
    return folder, folder.type(*typed, "--json"), typed


def test_stdout_is_one_json_object_also_where_mlflow_is_a_server(told: Any) -> None:
    _, answer, _ = told
    assert answer.out.count("\n") == 1
    assert answer.json["experiment"] == "autumn"
    assert "MLflow" not in answer.err
    assert "http" not in answer.err


def test_the_server_has_the_comparison_in_the_projects_experiment_with_the_model_and_its_files(
    told: Any, mlflow_server: Any
) -> None:
    folder, answer, _ = told
    assert json.loads((folder.path / "runs" / "autumn" / "comparison.json").read_text()) == answer.json
    client = connect(mlflow_server.url)
    experiment = client.get_experiment_by_name("project")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"fedavg-seed0", "autumn"}
    assert runs["fedavg-seed0"].info.run_id == answer.json["runs"][0]["mlflow_run_id"]
    (model,) = client.search_logged_models([experiment.experiment_id])
    assert (model.name, model.status) == ("fedavg-seed0", "READY")
    assert {m.dataset_name for m in model.metrics} == {"digits"}
    files = client.list_artifacts(runs["autumn"].info.run_id)
    assert runs["fedavg-seed0"].data.tags["mlflow.parentRunId"] == runs["autumn"].info.run_id
    assert "comparison.png" in {file.path for file in files}
    assert not (folder.path / "runs" / "artifacts").exists(), "it keeps them itself"


def test_a_name_that_is_taken_is_refused(told: Any) -> None:
    folder, _, typed = told
    said = folder.type(*typed, code=2).err
    assert said.count("\n") == 1
    assert "got autumn, which exists in runs/, expected a new name" in said


def test_ui_shows_the_server_and_starts_only_prefects_page(
    told: Any, mlflow_server: Any, tmp_path: Path, until: Any
) -> None:
    folder = told[0].copy(tmp_path / "project")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with (tmp_path / "screen.txt").open("w+") as screen:
        process = folder.start("ui", "--prefect-port", str(port), out=screen)
        said = until(screen.name, "Press ctrl-C to end Prefect's page; MLflow's runs elsewhere and goes on.", process)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    assert f"MLflow   {mlflow_server.url}/#/experiments?" in said
    (newest,) = [line for line in said.splitlines() if "(newest comparison)" in line]
    assert newest.split()[0].startswith(f"{mlflow_server.url}/#/experiments/")
    assert not (folder.path / "runs" / "mlflow-ui.log").exists()
    urllib.request.urlopen(f"{mlflow_server.url}/health", timeout=60).close()  # it goes on
