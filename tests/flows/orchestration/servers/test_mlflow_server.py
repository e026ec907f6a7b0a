"""MLflow's server of a project is that of its database, whatever variables of MLflow's say."""

import json
import os
import shutil
import signal
import urllib.request

import mlflow.environment_variables
import pytest

from flows.orchestration.servers.mlflow_server import MlflowServer, server_environment
from silos.io.addresses import listening_socket

OF_SERVERS = ("BACKEND_STORE_URI", "REGISTRY_STORE_URI", "DEFAULT_ARTIFACT_ROOT", "STATIC_PREFIX", "HOST", "PORT")


def test_no_variable_of_mlflows_reaches_the_projects_own_server_but_those_of_its_database(monkeypatch):
    names = [name for name in dir(mlflow.environment_variables) if name.startswith("MLFLOW_")]
    assert len(names) > 150
    names += [f"MLFLOW_{name}" for name in OF_SERVERS]
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", **dict.fromkeys(names, "user")})
    given = server_environment("sqlite:///here.db")
    of_user = {name for name, value in given.items() if value == "user"}
    assert {name.split("_")[1] for name in of_user} == {"MYSQL", "SQLALCHEMYSTORE"}
    assert (given["MLFLOW_BACKEND_STORE_URI"], given["PATH"]) == ("sqlite:///here.db", "/bin")


@pytest.mark.slow
def test_the_server_shows_the_projects_database_where_it_says(tmp_path, databases, monkeypatch):
    shutil.copy(databases / "mlflow.db", tmp_path)
    other = f"sqlite:///{tmp_path}/other.db"
    before = signal.getsignal(signal.SIGINT)
    for name in OF_SERVERS[:3]:
        monkeypatch.setenv(f"MLFLOW_{name}", other)
    monkeypatch.setenv("MLFLOW_STATIC_PREFIX", "/elsewhere")
    with listening_socket(0) as listener:
        port = listener.getsockname()[1]
    server = MlflowServer(tmp_path, f"sqlite:///{tmp_path}/mlflow.db", port, tmp_path / "mlflow.log")
    try:
        server.wait()
        with urllib.request.urlopen(f"{server.page}/api/2.0/mlflow/registered-models/search") as answer:
            assert json.load(answer) == {}
    finally:
        server.stop()
        signal.signal(signal.SIGINT, before)
    assert not server.alive()
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["mlflow.db"]
