"""A password that is in the environment stays there."""

import os
from pathlib import Path

import pytest

from flows.core.console import progress
from flows.orchestration.servers.prefect_server import PrefectServer
from flows.run import run
from silos.errors import UserError

PASSWORD = "hunter2-and-more"


def test_nothing_that_a_run_leaves_or_says_holds_the_password_of_its_tracker(
    project, prefect, monkeypatch, capfd, caplog
):
    class Heard(progress.ProgressSink):
        def __init__(self) -> None:
            self.said: list[str] = []

        def say(self, line: str) -> None:
            self.said.append(line)

    heard = Heard()
    monkeypatch.chdir(project)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{PASSWORD}@127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(progress, "_current", heard)
    result = run("fedavg", 0, ["training.rounds=1"], derived=True)
    (said,) = [line for line in heard.said if "MLflow" in line]
    assert "MLflow at http://me:***@127.0.0.1:9" in said
    shown = [*heard.said, *capfd.readouterr(), caplog.text, str(result)]
    assert not [text for text in shown if PASSWORD in text]
    left = [path for place in (project, Path(prefect.log).parent) for path in place.rglob("*") if path.is_file()]
    assert any(path.name == "run.json" for path in left)
    assert any(path.name == "prefect.db" for path in left)
    assert not [path for path in left if PASSWORD.encode() in path.read_bytes()]


def test_a_password_in_the_address_of_prefects_api_is_told_another_place(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", {"PREFECT_API_URL": f"http://me:{PASSWORD}@10.0.0.5:4200/api"})
    with pytest.raises(UserError) as told:
        PrefectServer(tmp_path)
    assert str(told.value).endswith("Remove it, and set PREFECT_API_AUTH_STRING=user:password.")
    assert PASSWORD not in str(told.value)
