"""A sweep's partitions follow the files that they are made from, and are made by one process at a time."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flows.project.project import Project
from flows.project.run_sets import new_experiment, newest_experiment
from flows.training.run_records.fingerprint import unused_name
from silos.errors import UserError
from silos.io import locks
from tasks.tracking.json_io import write_json

OPEN = """
from flows.core.console import progress
from flows.training.run_records.fingerprint import unused_name
from flows.project.project import Project
from flows.project.run_sets import new_experiment, newest_experiment
class Told(progress.ProgressSink):
    def say(self, line):
        print(line, flush=True)
progress.use(Told())
print(Project.open(derived=True).silos.version, flush=True)
"""


def archive(project: Path, value: float) -> list[str]:
    """Six clients in an archive of the user's own, with numbers that depend on `value`."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 4)) + value, rng.integers(0, 3, 120)
    np.savez(project / "own.npz", x=x, y=y, client=np.repeat(np.arange(6), 20))
    return ["data.source={kind: npz, path: own.npz}", "data.scheme=[{kind: column, column: client}]"]


def pictures(project: Path, value: float) -> list[str]:
    """Two domains of pictures, of which one depends on `value`."""
    for domain, shade in (("north", 10), ("south", int(100 * value))):
        for label in ("cat", "dog"):
            folder = project / "pictures" / domain / label
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(5):
                Image.new("RGB", (4, 4), (shade, number, 0)).save(folder / f"{number}.png")
    return ["data.source={kind: folder, path: pictures, size: 4}", "data.scheme=[{kind: equal, clients: 2}]"]


@pytest.mark.parametrize("write", [archive, pictures])
def test_another_source_file_is_another_partition(write, project):
    versions = []
    for value in (1.0, 2.0, 1.0):
        versions.append(Project.open(write(project, value), project, derived=True).silos.version)
    assert versions[0] == versions[2] != versions[1]


def test_other_code_makes_the_partition_anew(project, monkeypatch):
    """What a scheme writes may change with siloflow, and a cache would go on with the rows, or the laws, of before."""
    first = Path(Project.open(root=project, derived=True).silos.folder)
    made = (first / "manifest.json").stat().st_mtime_ns
    assert Path(Project.open(root=project, derived=True).silos.folder) == first
    assert (first / "manifest.json").stat().st_mtime_ns == made
    monkeypatch.setattr("flows.project.project_data.code_digest", lambda: "other")
    assert Path(Project.open(root=project, derived=True).silos.folder) != first


def test_a_partition_that_is_no_more_as_it_was_made_is_made_again(project):
    silos = Project.open(root=project, derived=True).silos
    file = Path(silos.folder) / "c03.safetensors"
    whole = file.read_bytes()
    for spoil in (lambda: file.write_bytes(whole[:-1] + b"?"), file.unlink, lambda: (file.parent / "more").touch()):
        spoil()
        again = Project.open(root=project, derived=True).silos
        assert (again.folder, again.version) == (silos.folder, silos.version)
        assert file.read_bytes() == whole
    before = file.stat()
    assert Project.open(root=project, derived=True).silos == silos
    assert file.stat() == before


@pytest.mark.slow
def test_who_needs_a_partition_that_another_process_makes_waits_for_it(project):
    own = Project.open(root=project, derived=True)
    expected = own.silos
    name = Path(expected.folder).name
    with locks.write_lock(Path(expected.folder).with_name(f"{name}.lock"), "the first", pytest.fail):
        second = subprocess.Popen([sys.executable, "-c", OPEN], cwd=project, stdout=subprocess.PIPE, text=True)
        assert second.stdout is not None
        assert second.stdout.readline() == "waiting for the first to end\n"
    assert second.communicate()[0] == f"{expected.version}\n"
    assert second.returncode == 0


def test_the_newest_comparison_is_found_whatever_it_is_called(project):
    opened = Project.open(root=project)
    for name in ("zebra", None, "autumn"):
        made = new_experiment(opened, "compare", {}, name)
        assert made == name or made.startswith("compare-")
        assert newest_experiment(opened, "compare") == made
    new_experiment(opened, "run", {})
    assert newest_experiment(opened, "compare") == "autumn"


def test_the_newest_unfinished_run_is_resumed_and_only_then_a_finished_one(project):
    opened, name = Project.open(root=project), "fedavg-seed0"
    for made, result in (("first", None), ("second", {"mlflow_run_id": "r"}), ("third", {"mlflow_run_id": "r"})):
        new_experiment(opened, "run", {}, made)
        write_json(opened.store.runs / made / name / "run.json", {"tag": made})
        if result is not None:
            write_json(opened.store.runs / made / name / "result.json", result)
    assert newest_experiment(opened, "run", inside=name) == "first"
    assert newest_experiment(Project.open(["training.rounds=9"], project), "run", inside=name) == "third"
    assert newest_experiment(Project.open(["runner.workers=2"], project), "run", inside=name) == "first"
    write_json(opened.store.runs / "first" / name / "result.json", {"mlflow_run_id": "r"})
    assert newest_experiment(opened, "run", inside=name) == "third"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../autumn", "expected at most 100 letters"),
        ("mlflow.json", "a name that siloflow generates"),
        ("mlflow.db", "a name that siloflow generates"),
        ("compare-20261124-090002-4989", "a name that siloflow generates"),
        ("autumn", "got autumn, which exists in runs/"),
    ],
)
def test_a_name_that_cannot_be_given_is_told_with_the_way_out(name, said, project):
    opened = Project.open(root=project)
    new_experiment(opened, "compare", {}, "autumn")
    with pytest.raises(UserError, match="expected a") as told:
        unused_name(opened, name)
    assert said in str(told.value)
    assert unused_name(opened, "spring") == "spring"


def test_a_project_keeps_the_mlflow_experiment_of_its_first_name_unless_the_environment_names_one(
    project, tmp_path, monkeypatch
):
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    first = Project.open(root=project).store.mlflow_experiment
    assert first.name == project.name
    shutil.copytree(project, tmp_path / "moved")
    moved = Project.open(root=tmp_path / "moved").store.mlflow_experiment
    assert (moved.name, moved.owner) == (first.name, first.owner)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "/team/silos")
    named = Project.open(root=project).store.mlflow_experiment
    assert (named.name, named.owner) == ("/team/silos", ""), "projects may share it"
    assert named.artifacts == (project / "runs" / "artifacts" / "_team_silos").as_uri()
