"""`siloflow watch` on three small silos: what it does if nothing changed, if a silo shifted, and if a model is worse."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.events.schemas.events import Event

from silos.io.locks import exclusive_lock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def champion(watched: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A copy of `watched` to work in."""
    return watched.copy(tmp_path_factory.mktemp("watch") / "project", server)


def contents(folder: Any) -> set[str]:
    return {path.name for path in (folder.path / "runs").glob("*-*")}


def test_without_a_change_or_beside_another_watch_one_line_is_printed_and_nothing_done(
    champion: Any, write_rows: Any, environment: dict[str, str]
) -> None:
    before = contents(champion)
    old = champion.path / "runs" / "stopped" / "fedavg-seed0" / "run.json"
    about = {"kind": "compare", "name": "stopped", "methods": ["fedavg"], "seeds": [0], "reference": "fedavg"}
    for path, content in ((old, {"tag": "stopped"}), (old.parents[1] / "experiment.json", about)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    os.utime(old.parents[1] / "experiment.json", (0, 0))
    answer = champion.type("watch", "--once", "--set", "retention.days=30")
    assert answer.out == "No silo has changed since champion 1 was trained.\n"
    assert not old.exists(), "it is older than retention.days, and unfinished"
    command = [sys.executable, "-X", "importtime", Path(sys.executable).parent / "siloflow", "watch", "--once"]
    again = subprocess.run(
        command, cwd=champion.path, env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    assert again.stdout == answer.out
    assert not re.findall(r"\| +((?:torch|prefect|mlflow|scipy|pandas)\b.*)", again.stderr)
    shutil.rmtree(old.parents[1])
    write_rows(champion.path, {"south": 1.0})
    with exclusive_lock(champion.path / "runs" / "registry" / "watch"):
        answer = champion.type("watch", "--once")
    assert answer.out == "Another `siloflow watch` works in this project; it finishes what there is to do.\n"
    write_rows(champion.path)
    assert contents(champion) == before


@pytest.fixture(scope="module")
def shifted(
    champion: Any, write_rows: Any, heard: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any, list[Event]]:
    """A copy in which south shifted, the answer of a watch after one that was killed while it trained, and its events."""
    folder = champion.copy(tmp_path_factory.mktemp("shifted") / "project", champion.server)
    write_rows(folder.path, {"south": 2.0})
    folder.write_waits()
    typed = ("watch", "--once", "--set", "plugins=[waits.py]", "--set", "watch.methods=[waits]")
    hearing = heard(champion.server, expected=2)  # what the killed watch has emitted is not repeated
    process = folder.start(*typed, PREFECT_API_URL=champion.server)
    while not (folder.path / "waits").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    folder.go_on()
    answer = folder.type(*typed, "--json").json
    hearing.join(60)
    return folder, answer, hearing.events


def test_a_silo_that_shifted_is_named_and_a_killed_watch_is_finished_once(shifted: tuple[Any, ...]) -> None:
    folder, answer, events = shifted
    assert answer["outcome"] == "promoted"
    assert answer["changed"] == {"south": "changed"}
    (silo,) = answer["shifted"]
    assert (silo["client"], list(silo["kinds"]), silo["features"]) == ("south", ["feature"], ["weight"])
    assert answer["decision"]["against"]["low"] > 0
    (comparison,) = folder.path.glob("runs/watch-*")
    assert comparison.name == answer["comparison"]
    assert {run.parent.name for run in comparison.glob("*/result.json")} == {"waits-seed0", "fedavg-seed0"}
    listed = folder.type("history", "--json").json["decisions"]
    assert [decision["decision"] for decision in listed] == ["promoted", "promoted"]
    assert listed[0] == answer["decision"]
    shift, promotion = events
    assert (shift.event, shift.resource.id) == ("siloflow.silo.shifted", "siloflow.silo.own.south")
    assert (shift.payload["kind"], shift.payload["grade"]) == (["feature"], "negligible")
    assert (promotion.event, promotion.resource.id) == ("siloflow.champion.promoted", "siloflow.model.own")
    assert promotion.payload["version"] == answer["decision"]["version"]


def test_a_worse_model_is_not_promoted_and_the_same_is_not_decided_twice(
    shifted: tuple[Any, ...], write_rows: Any, tmp_path: Path
) -> None:
    folder = shifted[0].copy(tmp_path / "project", shifted[0].server)
    write_rows(folder.path, {"south": 2.0, "west": -2.0})
    typed = ("watch", "--once", "--set", "training.rounds=1", "--set", "watch.methods=[fedavg]")
    typed += ("--set", "training.optimiser.learning_rate=0.000001")
    listed = folder.type("history", "--json").json["decisions"]
    run, away = folder.path / listed[0]["run"], folder.path / "away"
    run.rename(away)
    for _ in range(2):  # with a reason that may pass it tries again, and lists it once
        answer = folder.type(*typed)
        assert "shifted       west: weight is lower by " in answer.out
        assert f"there is no interval: {listed[0]['run']} is missing. Restore it from a copy." in " ".join(
            answer.out.split()
        )
        before = contents(folder)
    away.rename(run)
    answer = folder.type(*typed)
    assert " is not promoted: its interval is not above zero.\n" in answer.out
    assert len(folder.type("history", "--json").json["decisions"]) == len(listed) + 2
    assert contents(folder) == before, "neither diagnosed nor compared again"
    again = " ".join(folder.type(*typed).out.split())
    assert again.startswith("No silo has changed since ")
    assert again.endswith("then: refused, since its interval is not above zero.")
    assert contents(folder) == before
    assert "shifted: west; " in " ".join(folder.type("history").out.split())
    unmoved = folder.type("watch", "--once", "--set", "watch.grade=critical", "--json").json
    assert (unmoved["outcome"], unmoved["comparison"]) == ("kept", None)
    assert unmoved["decision"]["reason"].startswith("no silo shifted by at least watch.grade=critical, only less: ")
