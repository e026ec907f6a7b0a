"""A command opens its project once: params.yaml is read once, data are checked once, an override is parsed once."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.compare import compare, make_plan
from flows.core.config import load_config
from flows.core.config.load_config import ParamsFile
from flows.project.make_partition import make
from flows.project.project import Project
from flows.run import run
from silos import strict_yaml
from silos.errors import UserError
from silos.versioning import dvc_files

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints

COMMAND = """
import json, sys
from flows.core.config import load_config
from flows.cli import app
from silos.versioning import dvc_files

counts = {"read": 0, "verify": 0}

def counted(name, function):
    def wrapper(*args):
        counts[name] += 1
        return function(*args)
    return wrapper

load_config.ParamsFile.read = counted("read", load_config.ParamsFile.read)
dvc_files.verify = counted("verify", dvc_files.verify)
try:
    app(sys.argv[1:])
finally:
    print(json.dumps(counts), file=sys.stderr)
"""


@pytest.fixture
def opened(project: Path, prefect: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a recorded version of its data; the current folder."""
    monkeypatch.chdir(project)
    make(Project.open())
    return project


@pytest.fixture
def counts(opened: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often params.yaml was read, data were checked, and each override was parsed."""
    found: Counter[str] = Counter()
    read, verify, parse = ParamsFile.read, dvc_files.verify, load_config._apply

    def count_read(root: Path) -> ParamsFile:
        found["read"] += 1
        return read(root)

    def count_verify(*args: Any) -> dict[str, str]:
        found["verify"] += 1
        return verify(*args)

    def count_parsed(raw: dict[str, Any], override: str) -> None:
        found[override] += 1
        parse(raw, override)

    monkeypatch.setattr(ParamsFile, "read", count_read)
    monkeypatch.setattr(dvc_files, "verify", count_verify)
    monkeypatch.setattr(load_config, "_apply", count_parsed)
    return found


@pytest.mark.slow
def test_a_comparison_opens_its_project_once(counts):
    found = compare(["fedavg", "local_only"], [0, 1], overrides=["training.rounds=1"])
    assert (len(found["runs"]), len(found["paired"]), len(found["ensembles"])) == (4, 1, 2)
    assert counts == {"read": 1, "verify": 1, "training.rounds=1": 1}


@pytest.mark.slow
def test_a_tuned_comparison_derives_its_trials_from_one_project(counts):
    asked = {"training.rounds": 1, "comparison.tune": 2}
    found = compare(["fedavg", "local_only"], [0, 1], overrides=asked)
    assert [one["tried"] >= 2 for one in found["tuning"]] == [True, True]
    assert found["failed"] == []
    assert counts.pop("read") == counts.pop("verify") == 1
    rates = {float(line.partition("=")[2]) for line in counts if "learning_rate" in line}
    assert len(rates) >= 2
    # methods that are tried with the same rate derive the same project
    assert {name: count for name, count in counts.items() if count > 1} == {}


def test_a_run_opens_its_project_once_and_runs_of_other_overrides_are_others(counts):
    first = run("fedavg", 0, ["training.rounds=1"])
    assert counts == {"read": 1, "verify": 1, "training.rounds=1": 1}
    counts.clear()
    project = Project.open(["training.rounds=2"])
    again = run.on(project.derive(["training.rounds=1"], derived=False), method="fedavg")
    assert again["weights_sha256"] == first["weights_sha256"]
    assert run.on(project, method="fedavg")["rounds"] == 2
    assert counts["read"] == 1


@pytest.mark.slow
def test_the_command_and_its_flows_open_the_project_once(opened):
    words = ["compare", "fedavg", "local_only", "--seeds", "0,1", "--set", "training.rounds=1", "--json"]
    asked = [sys.executable, "-c", COMMAND, *words]
    source = str(Path(__file__).parents[3])
    done = subprocess.run(asked, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == {"read": 1, "verify": 1}


def test_a_derived_project_is_the_one_that_all_overrides_open(opened):
    project = Project.open(["training.rounds=7"])
    for more in (
        ["training.batch=3"],
        ["method.fedprox.proximal=2", "data.seed=1"],
        ["model={kind: mlp, hidden: [4]}"],
    ):
        derived = project.with_overrides(more)
        assert derived == Project.open(["training.rounds=7", *more])
        assert derived.overrides == ["training.rounds=7", *more]
        assert project.with_overrides(more) is derived
    assert project.params == Project.open(["training.rounds=7"]).params
    with pytest.raises(UserError, match=r"comparison\.reference: got an unknown method 'fedavgg'"):
        project.with_overrides(["comparison.reference=fedavgg"])


def test_a_derived_project_has_the_checked_data_and_checks_others(counts):
    project = Project.open()
    with project.data.working("a test"):
        assert project.with_overrides(["training.rounds=1"]).silos is not None
        assert project.silos == project.with_overrides(["training.batch=1"]).silos
        assert counts["verify"] == 1
        with pytest.raises(UserError, match=r"data\.seed: got 1, expected 0, with which data/digits was made"):
            project.with_overrides(["data.seed=1"]).silos  # noqa: B018


def test_data_that_changed_before_they_were_locked_are_checked_again(opened):
    """As where a command waits for another that makes a new version of data/."""
    project = Project.open()
    before = project.silos.version
    rows = next((opened / "data" / "digits").glob("c03*"))
    whole = rows.read_bytes()
    rows.write_bytes(whole + b"?")
    with pytest.raises(UserError, match=r"data/: got files that differ from data\.dvc"), project.data.working("a test"):
        project.silos  # noqa: B018
    rows.write_bytes(whole)
    with project.data.working("a test"):
        assert project.silos.version == before


def test_the_flow_has_the_plan_that_the_command_has_made(opened):
    project = Project.open()
    before = make_plan(project, None, [0], None)
    with project.data.working("compare"):
        wanted = make_plan(project, None, [0], None)
        assert make_plan(project, [], (0,), "") is wanted
        assert make_plan(project, ["fedavg"], [0], None) is not wanted
    assert wanted == before is not wanted  # it was made before data/ was locked


def test_a_project_of_other_overrides_keeps_what_it_leaves_in_the_same_scratch_folder(opened, tmp_path):
    scratch = tmp_path / "scratch"
    other = replace(Project.open(), scratch=scratch).derive(["training.rounds=1"], derived=True)
    assert (other.scratch, other.derived, other.overrides) == (scratch, True, ["training.rounds=1"])


def test_params_are_parsed_once(opened, monkeypatch):
    project = Project.open(["training.rounds=7"])
    monkeypatch.setattr(strict_yaml, "load", pytest.fail)
    assert project.with_overrides([]) is project
    assert project.file is not None
    assert project.file.as_read.params.training.rounds == 3
