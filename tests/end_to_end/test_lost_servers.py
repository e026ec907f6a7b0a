"""Servers that end in the middle of a command: what is trained is never lost, and the command ends."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from flows.orchestration.servers.prefect_server import PrefectServer

pytestmark = pytest.mark.slow

COMMAND = Path(sys.executable).parent / "siloflow"
ROUNDS = 6
SET = ("--json", "--set", f"training.rounds={ROUNDS}")


def kill_server(pid: int) -> None:
    """Kill the Prefect server among the descendants of the process."""
    found = [
        p for p in psutil.Process(pid).children(recursive=True) if any("prefect_process" in w for w in p.cmdline())
    ]
    assert len(found) == 1
    found[0].kill()


def test_a_run_whose_own_server_is_killed_ends_whole_and_prefect_has_all_of_it(partitioned, tmp_path, living):
    folder = partitioned[0].copy(tmp_path / "project")
    with (tmp_path / "screen.txt").open("w+") as screen:
        process = folder.start_waiting(*SET, out=screen)
        kill_server(process.pid)
        folder.go_on()
        assert process.wait(200) == 0, process.stderr.read()
        said = process.stderr.read()
    assert json.loads((tmp_path / "screen.txt").read_text())["rounds"] == ROUNDS
    assert "Prefect's server ended unexpectedly; a new one is started." in said
    assert "Traceback" not in said
    assert living(folder.path) == []
    assert {state for _, state in folder.flow_runs()} == {"COMPLETED"}
    assert folder.in_prefect("select distinct state_type from task_run") == [("COMPLETED",)]


def test_a_run_whose_server_elsewhere_is_gone_for_good_ends_whole_in_a_sentence(
    partitioned, tmp_path, databases, monkeypatch
):
    folder = partitioned[0].copy(tmp_path / "project")
    home = tmp_path / "elsewhere"
    (home / ".prefect").mkdir(parents=True)
    shutil.copy(databases / "prefect.db", home / ".prefect")
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_HOME", str(home / ".prefect"))
    server = PrefectServer(home)
    server.wait()
    settings = {"PREFECT_API_URL": server.url, "PREFECT_CLIENT_MAX_RETRIES": "1"}  # else each call waits 14 s
    process = folder.start_waiting(*SET, out=subprocess.PIPE, **settings)
    server.stop()
    folder.go_on()
    out, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert json.loads(out)["rounds"] == ROUNDS
    *_, sentence = said.strip().splitlines()
    assert sentence.startswith(f"Prefect's API at {server.url} does not respond any more")
    assert "Traceback" not in said
    assert "EventsWorker" not in said


@pytest.mark.parametrize("name", ["prefect_process", "mlflow"])
def test_ui_ends_in_a_sentence_when_a_server_of_its_own_is_gone_for_good(name, finished, tmp_path, living, until):
    folder = finished.folder.copy(tmp_path / "project")
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    words = [
        word
        for option, one in zip(("--mlflow-port", "--prefect-port"), sockets, strict=True)
        for word in (option, str(one.getsockname()[1]))
    ]
    for one in sockets:
        one.close()
    with (tmp_path / "screen.txt").open("w+") as screen:
        process = folder.start("ui", *words, out=screen)
        until(screen.name, "Press ctrl-C to end both", process)
        while process.poll() is None:  # Prefect's is started again three times
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if any(name in word for word in child.cmdline()):
                        child.kill()
            time.sleep(0.2)
    assert process.returncode == 2
    owner = "Prefect's" if name == "prefect_process" else "MLflow's"
    assert f"{owner} server ended unexpectedly. See " in process.stderr.read()
    assert living(folder.path) == []
