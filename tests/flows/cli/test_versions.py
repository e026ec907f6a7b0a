"""A version of data/ has one name: the hash that DVC writes into data.dvc. Commands print the settings that describe it."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from flows.diagnosis import describe_data
from flows.diagnosis.describe_data import overview_with_figure
from flows.diagnosis.load_version import load_version
from flows.project.make_partition import make
from flows.project.project import Project
from flows.training.run_records.run_folder import RunFolder
from silos.errors import UserError
from silos.io.hashing import folder_digest
from silos.versioning import data_versions
from silos.versioning.dvc_files import recorded_version

FEWER = "data.scheme=[{kind: equal, clients: 3}]"


@pytest.fixture
def two(project: Path) -> tuple[Path, list[str]]:
    """A project with two committed versions of data/, of three clients and of those in params.yaml, and their names."""
    git(project, "init", "-q")
    (project / ".gitignore").write_text("/data\n/runs/\n/private/\n/cache/\n")
    names = []
    for overrides in ([FEWER, "data.split.test=0.5"], []):
        names.append(make(Project.open(overrides, project))["data_version"])
        git(project, "add", "-A")
        git(project, "commit", "-qm", f"version {len(names)}")
    return project, names


@pytest.mark.slow
def test_a_version_is_called_what_data_dvc_calls_it_everywhere(two):
    project, names = two
    assert recorded_version(project) == names[1] == yaml.safe_load((project / "data.dvc").read_text())["outs"][0]["md5"]
    opened = Project.open(root=project)
    assert opened.silos.version == overview_with_figure(opened)["data_version"] == names[1]
    with load_version(opened, "HEAD") as then:
        assert then.version == names[1]
    log = describe_data.log(project)
    assert (log["now"], [v["digest"] for v in log["versions"]]) == (names[1], names[::-1])
    used = describe_data.use(project, names[0][:8])
    assert used["digest"] == recorded_version(project) == folder_digest(project / "data") == names[0]


def test_the_name_is_the_same_in_a_fresh_clone_before_and_after_a_pull(two, tmp_path):
    project, names = two
    store = tmp_path / "store"
    (project / ".dvc" / "config").write_text(
        f"[core]\n    remote = store\n    analytics = False\n['remote \"store\"']\n    url = {store}\n"
    )
    shutil.copytree(project / ".dvc" / "cache", store)
    git(project, "commit", "-qam", "remote")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(project), str(clone))
    before = describe_data.log(clone)
    assert [(v["digest"], v["partitions"]) for v in before["versions"]] == [(name, []) for name in names[::-1]]
    assert describe_data.use(clone, names[0][:10])["digest"] == names[0]  # by the name that a run carries in MLflow
    after = describe_data.log(clone)
    assert [v["digest"] for v in after["versions"]] == names[::-1]
    assert after["now"] == names[0]


def test_another_partition_in_data_is_another_version_and_the_same_rows(two):
    project, names = two
    opened = Project.open(root=project)
    other = make(Project.open(["data.name=other", FEWER], project))["data_version"]
    assert other not in names
    again = Project.open(root=project)
    assert again.silos.version == other == recorded_version(project)
    assert again.data.same_rows(names[1], other)
    assert not again.data.same_rows(names[0], other)
    assert again.data.same_rows(
        names[1], data_versions.partitions(project, names[1])[opened.params.data.name]
    )  # an earlier siloflow's
    assert not Project.open(["data.name=other", FEWER], project).data.same_rows(names[1], other)
    folder = RunFolder(project / "runs" / "one" / "fedavg-seed0")
    folder.identify({"data_version": names[1]}, resume=False, same_rows=again.data.same_rows)
    assert (
        folder.identify({"data_version": other}, resume=True, same_rows=again.data.same_rows)["data_version"]
        == names[1]
    )
    with pytest.raises(UserError, match="got other settings than at its start"):
        folder.identify({"data_version": names[0]}, resume=True, same_rows=again.data.same_rows)


def test_data_that_a_killed_partition_had_moved_aside_are_opened_again(two):
    project, names = two
    name = Project.open(root=project).params.data.name
    (project / "data" / name).rename(project / f".data-{name}.old")
    assert Project.open(root=project).silos.version == names[1]
    (project / "data" / name).rename(project / f".data-{name}.old")
    assert describe_data.use(project, "HEAD~1")["digest"] == names[0]
    assert not list(project.glob(".data-*"))


def test_after_another_recipe_the_settings_to_paste_describe_it(two):
    project, _ = two
    used = describe_data.use(project, "HEAD~1")
    assert used["params_differ"] is None
    assert [setting.partition("=")[0] for setting in used["settings"]] == ["data.scheme", "data.split.test"]
    with pytest.raises(UserError, match=r'data\.scheme: got \[\{"clients": 6, "within": null, "kind": "equal"\}'):
        _ = Project.open(root=project).silos
    pasted = shlex.split(" ".join(shlex.quote(setting) for setting in used["settings"]))
    assert Project.open(pasted, project).silos.version == used["digest"]
    assert describe_data.use(project, "HEAD")["settings"] == []


def test_a_recipe_with_another_name_source_and_small_numbers_can_be_pasted_too(project):
    odd = ["data.name=other", "data.scheme=[{kind: dirichlet, clients: 3, alpha: 0.00005}]", "data.seed=5"]
    shutil.rmtree(project / "data", ignore_errors=True)
    made = make(Project.open(odd, project))
    used = describe_data.use(project, made["data_version"])
    assert Project.open(used["settings"], project).silos.version == made["data_version"]


@pytest.mark.parametrize("overrides", [["data.seed=1"], [FEWER, "data.split.test=0.5", "data.split.validation=0.1"]])
def test_partition_says_what_params_yaml_must_hold_for_a_run(overrides, project):
    made = make(Project.open([*overrides, "training.rounds=3"], project))
    with pytest.raises(UserError, match=r"params.yaml: data\."):
        _ = Project.open(root=project).silos
    wanted = yaml.safe_load("\n".join(made["params_yaml"]))
    raw = yaml.safe_load((project / "params.yaml").read_text())
    assert wanted.keys() == {"data"}
    for key, value in wanted["data"].items():
        raw["data"][key] = {**raw["data"][key], **value} if isinstance(value, dict) else value
    (project / "params.yaml").write_text(yaml.safe_dump(raw))
    assert Project.open(root=project).silos.version == made["data_version"]
    assert make(Project.open(root=project))["params_yaml"] == []


def test_a_partition_whose_source_stands_on_the_command_line_only_gives_all_lines(project):
    (project / "params.yaml").write_text((project / "params.yaml").read_text().replace("kind: digits", "kind: none"))
    made = make(Project.open(["data.source={kind: digits}"], project))
    assert {"name", "seed", "source", "scheme", "split"} <= yaml.safe_load("\n".join(made["params_yaml"]))[
        "data"
    ].keys()


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=n@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, check=True)
