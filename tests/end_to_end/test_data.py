"""Versions of data as a person uses them: what there was, what changed, back again, and the same numbers."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

NINE = "data.scheme.1.angles=[0, 0, 0, -50, -50, -50, 120, 120, 120]"
ONE_TURNED = "data.scheme.1.angles=[0, 0, 0, -50, 30, -50, 120, 120, 120]"
RUN = ("run", "fedavg", "--set", "training.rounds=3", "--json")


@pytest.fixture
def folder(partitioned: Any, server: str, tmp_path: Path) -> Any:
    """A partitioned folder of this test's own."""
    return partitioned[0].copy(tmp_path / "project", server)


@pytest.fixture(scope="module")
def once(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two committed versions of data/: nine silos, then one of them turned by another angle; and a run on the first."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("data") / "project", server)
    shutil.rmtree(folder.path / ".dvc")  # made outside of git
    git(folder.path, "init", "-q", "-b", "main")
    (folder.path / ".gitignore").write_text("/data\n/runs/\n/private/\n/.prefect/\n")
    folder.type("partition", "--set", NINE)
    git(folder.path, "add", "-A")
    git(folder.path, "commit", "-qm", "nine silos")
    first = folder.type(*RUN, "--set", NINE).json
    folder.type("partition", "--set", ONE_TURNED)
    git(folder.path, "commit", "-qam", "one silo turned")
    return folder, first


@pytest.fixture
def history(once: Any, server: str, tmp_path: Path) -> Any:
    """A copy of that, to be spoiled."""
    return once[0].copy(tmp_path / "history", server), once[1]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=n@localhost"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def dvc(folder: Path, *arguments: str) -> None:
    subprocess.run([Path(sys.executable).parent / "dvc", *arguments, "-q"], cwd=folder, check=True, capture_output=True)


def third_round(run: Path) -> bool:
    """Whether it is written down."""
    return bool(list(run.glob("fedavg-seed0/journal/000003*")))


@pytest.mark.slow
def test_diagnose_against_a_version_names_the_turned_silo_and_leaves_data_alone(history: Any) -> None:
    project, first = history
    asked = ("diagnose", "--against", "HEAD~1", "--set", ONE_TURNED)
    found = project.type(*asked, "--json", "--exit-code", code=1).json
    assert {pair["client"]: pair["types"] for pair in found["pairs"] if pair["types"]} == {"c04": ["feature"]}
    assert found["since"] == first["data_version"]
    said = " ".join(project.type(*asked).out.split())
    assert "c04: inputs differ, most in" in said
    assert git(project.path, "status", "--short") == ""
    project.type("diagnose", "--against", "HEAD", "--exit-code", "--set", ONE_TURNED, code=0)
    alone = project.type("diagnose", "--exit-code", "--set", ONE_TURNED, code=2)
    assert alone.err == "error: --exit-code: got no --against, expected a version. Add --against VERSION.\n"
    mistake = project.type("diagnose", "--against", "nowhere", "--set", ONE_TURNED, code=2)
    assert mistake.err.startswith(
        "error: version: got nowhere, expected a git revision with a data.dvc or the start of a hash"
    )
    assert mistake.out == ""


def test_a_turned_silo_is_the_only_difference_and_the_old_version_gives_the_old_weights(history: Any) -> None:
    project, first = history
    versions = project.type("data", "log", "--json").json
    assert [v["subject"] for v in versions["versions"]] == ["one silo turned", "nine silos"]
    assert versions["now"] == versions["versions"][0]["digest"]
    then = versions["versions"][1]
    assert (then["digest"], then["partitions"]) == (first["data_version"], ["digits"])

    (silo,) = project.type("data", "diff", "HEAD~1", "--json").json["silos"]
    assert (silo["client"], silo["change"]) == ("c04", "changed")
    assert silo["before"]["rows"] == silo["after"]["rows"]
    assert silo["before"]["label_shares"] == silo["after"]["label_shares"]
    assert silo["before"]["mean"] != silo["after"]["mean"]

    # by the version that MLflow shows on the run
    used = project.type("data", "use", first["data_version"][:10], "--json", alone=True).json
    assert (used["digest"], used["partitions"]) == (first["data_version"], ["digits"])
    again = project.type(*RUN, "--set", NINE).json
    assert again["weights_sha256"] == first["weights_sha256"]
    assert again["metrics"] == first["metrics"]


@pytest.mark.slow
def test_a_version_comes_back_from_a_remote_folder(history: Any, tmp_path: Path) -> None:
    project, first = history
    dvc(project.path, "remote", "add", "-d", "store", str(tmp_path / "store"))
    dvc(project.path, "push")
    project.type("data", "use", "HEAD~1")
    dvc(project.path, "push")
    shutil.rmtree(project.path / ".dvc" / "cache")
    shutil.rmtree(project.path / "data")
    project.type("data", "use", "HEAD")
    project.type("data", "use", "HEAD~1")
    assert project.type("show", "--set", NINE, "--json").json["data_version"] == first["data_version"]


def test_data_that_nobody_recorded_are_not_thrown_away(history: Any) -> None:
    project, _ = history
    file = project.path / "data" / "digits" / "c00.safetensors"
    file.write_bytes(file.read_bytes() + b" ")
    answer = project.type("data", "use", "HEAD~1", code=2)
    assert "would be lost" in answer.err
    assert file.read_bytes().endswith(b" ")


@pytest.mark.slow
def test_nothing_changes_data_under_a_run_and_what_gets_past_the_lock_ends_it(history: Any) -> None:
    project, first = history
    project.type("data", "use", "HEAD~1")
    typed = ("run", "fedavg", "--set", "training.rounds=40", "--set", NINE)
    before = set(project.path.glob("runs/run-*"))
    run = project.start(*typed, PREFECT_API_URL=project.server)
    try:
        end = time.monotonic() + 120
        while not (found := [r for r in project.path.glob("runs/run-*") if r not in before and third_round(r)]):
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < end
            time.sleep(0.002)
        run.send_signal(signal.SIGSTOP)
        for change in (("partition", "--set", "data.seed=5"), ("data", "use", "HEAD")):
            refused, _, said = project.run(change)
            assert refused == 2
            assert f"got data/ in use by {found[0].name}/fedavg-seed0, expected no other user" in said
        subprocess.run(["git", "checkout", "-q", "HEAD", "data.dvc"], cwd=project.path, check=True)
        dvc(project.path, "checkout", "--force")  # knows no locks
        run.send_signal(signal.SIGCONT)
        _, said = run.communicate(timeout=600)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == 2
    assert f"differs from data version {first['data_version']}: the file was changed while it was in use" in said
    assert "Traceback" not in said
    project.type("data", "use", first["data_version"][:12])
    gone_on = project.type(*typed, "--resume", "--json").json
    assert gone_on["data_version"] == first["data_version"]
    assert 3 <= gone_on["resumed_from_round"] < 40


def test_an_unknown_version_is_told(history: Any) -> None:
    project, _ = history
    assert "version: got 0123456789" in project.type("data", "use", "0123456789", code=2).err


def test_a_published_table_is_repeated_cell_by_cell_and_not_twice(folder: Any) -> None:
    page = {
        "tables": {
            "1": {
                "title": "Accuracy after two rounds",
                "source": "made for this test",
                "unit": "accuracy",
                "measure": {"metric": "accuracy/mean"},
                "known_errors": "none",
                "base": ["training.rounds=2"],
                "method": "fedavg",
                "cells": {
                    "alike": {
                        "about": "equal silos",
                        "published": 0.5,
                        "set": ["data.scheme=[{kind: equal, clients: 3}]"],
                    },
                    "few": {"about": "two silos", "published": 0.5, "set": ["data.scheme=[{kind: equal, clients: 2}]"]},
                },
                "grid": "training.optimiser={kind: sgd, learning_rate: {}}",
                "scales": {"cpu": {"seeds": [0], "grid": {"few": [0.001, 0.5]}}},
            }
        }
    }
    (folder.path / "tiny.yaml").write_text(yaml.safe_dump(page))
    typed = ("reproduce", "tiny.yaml", "--table", "1", "--json")
    found = folder.type(*typed).json
    alike, few = found["rows"]
    assert alike["choice"] is None
    assert few["choice"].endswith("learning_rate: 0.5}")
    assert len(few["values"]) == 1
    written = (folder.path / found["results"]).read_text()
    records = json.loads(written)["1"]["cpu"]
    assert {cell: len(runs) for cell, runs in records.items()} == {"alike": 1, "few": 2}
    assert str(folder.path) not in written
    (figure,) = found["figures"]
    assert (folder.path / figure).read_bytes().startswith(b"\x89PNG")
    assert not (folder.path / "data" / "tiny").exists()

    again = folder.type(*typed)
    assert again.json == found
    assert (folder.path / found["results"]).read_text() == written
    estimate = folder.type(*typed, "--estimate").json
    assert set(estimate["seconds"]) == {"alike", "few"}


@pytest.mark.slow
def test_what_a_partition_leaves_out_and_how_uneven_its_groups_are_is_said(folder: Any) -> None:
    """1,797 digits at 15 %: 269 would go to all, 260 go round ten clients, and the last 9 of the others are left out."""
    scheme = "data.scheme=[{kind: balanced, clients: 10, percent: 15, authors_deal: true}]"
    groups = "data.scheme[0] (`balanced`): its 3 groups have 4, 3 and 3 clients."
    left_out = "The scheme leaves out 9 rows of the source."
    printed = folder.type("partition", "--set", scheme).out.splitlines()
    at = printed.index(groups)
    assert printed[at : at + 2] == [groups, left_out]
    assert folder.type("partition", "--set", scheme, "--json").json["notes"] == [groups, left_out]
