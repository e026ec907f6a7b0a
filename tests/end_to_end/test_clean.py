"""`siloflow clean`, as typed: what a killed run left goes, and nothing that anybody still needs."""

import time
from pathlib import Path
from typing import Any

import pytest

LONG = ("run", "local_only", "--seed", "7", "--set", "training.rounds=5000")


def contents(folder: Path, *parts: str) -> dict[str, bytes]:
    """Every file below these parts of a folder, without locks."""
    files = [file for part in parts for file in (folder / part).rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.name != ".lock"}


def kinds(answer: Any) -> dict[str, dict[str, Any]]:
    return {kind["kind"]: kind for kind in answer.json["kinds"]}


@pytest.fixture(scope="module")
def killed(finished: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The finished comparison, a diagnosis, and a run that is killed; what `clean` says before and after the kill."""
    folder = finished.folder.copy(tmp_path_factory.mktemp("clean") / "project", server)
    folder.type("diagnose", "--json")
    before = contents(folder.path, "runs", "private")
    process = folder.start(*LONG, PREFECT_API_URL=server)
    try:
        end = time.monotonic() + 120
        while not list(folder.path.glob("runs/run-*/local_only-seed7/checkpoint.safetensors")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)
        at_work = folder.run(["clean", "--yes", "--json"])
    finally:
        process.kill()
        process.communicate()
    while list((folder.path / "runs" / "locks").glob("works-*")) and time.monotonic() < end:
        time.sleep(0.05)
        folder.type("clean", "--json")  # looks which of them are dead processes'
    return {"folder": folder, "before": before, "at_work": at_work}


@pytest.mark.slow
def test_what_is_at_work_is_left_alone(killed: dict[str, Any]) -> None:
    code, out, err = killed["at_work"]
    assert (code, err) == (0, "")
    assert '"unfinished runs"' not in out
    assert list(killed["folder"].path.glob("runs/run-*/local_only-seed7/checkpoint.safetensors"))


@pytest.mark.slow
def test_without_a_terminal_nothing_is_deleted_unless_it_is_said(killed: dict[str, Any]) -> None:
    there = contents(killed["folder"].path, "runs", "private", ".prefect")
    out = killed["folder"].type("clean").out
    assert "unfinished runs" in out
    assert "nothing was deleted. Next: `siloflow clean --yes` deletes all of it." in " ".join(out.split())
    assert contents(killed["folder"].path, "runs", "private", ".prefect") == there


@pytest.mark.slow
def test_a_killed_run_goes_and_finished_runs_and_ledgers_are_the_same_bytes(
    killed: dict[str, Any], tmp_path: Path
) -> None:
    folder = killed["folder"].copy(tmp_path / "project", killed["folder"].server)
    listed = kinds(folder.type("clean", "--json"))["unfinished runs"]
    assert not listed["deleted"]
    assert any(place.startswith("runs/run-") for place in listed["places"])
    assert any(place.startswith("private/digits/run-") for place in listed["places"])
    gone = kinds(folder.type("clean", "--yes", "--json"))["unfinished runs"]
    assert (gone["deleted"], gone["kept"], gone["places"]) == (True, [], listed["places"])
    after = contents(folder.path, "runs", "private")
    kept = {
        name: content
        for name, content in killed["before"].items()
        if not name.startswith(("runs/locks", "runs/mlflow"))
    }
    assert {name: after.get(name) for name in kept} == kept
    assert [name for name in after if "local_only-seed7" in name] == []
    assert any("/.ledgers/" in name for name in kept)
    assert "unfinished runs" not in kinds(folder.type("clean", "--json"))


def test_artifacts_go_once_their_run_is_deleted_in_mlflow(finished: Any, server: str, tmp_path: Path) -> None:
    folder = finished.folder.copy(tmp_path / "project", server)
    deleted, stays = (finished.run("fedavg", seed)["mlflow_run_id"] for seed in (0, 1))
    folder.mlflow().delete_run(deleted)
    (place,) = kinds(folder.type("clean", "--yes", "--json"))["artifacts of runs deleted in MLflow"]["places"]
    assert place.endswith(deleted)
    assert not (folder.path / place).exists()
    assert (folder.path / place).with_name(stays).is_dir()
