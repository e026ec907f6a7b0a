"""Git, and DVC's git, speak of the repository around the folder, also inside another repository's hook."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.core.console import progress
from flows.training.run_records.mlflow_run_metadata import git_commit
from silos.errors import UserError
from silos.versioning import data_versions
from silos.versioning.dvc_files import init_repositories, record, recorded_version

pytestmark = pytest.mark.slow


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A project in a subfolder of a repository, with data that are not recorded yet and one commit."""
    project = tmp_path / "own" / "project"
    (project / "data").mkdir(parents=True)
    (project / "data" / "rows").write_text("1")
    git(tmp_path / "own", "init", "-q")
    git(tmp_path / "own", "commit", "-q", "--allow-empty", "-m", "own")
    return project


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another repository, with one commit."""
    folder = tmp_path / "other"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "other")
    return folder


def state_of(repository: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in repository.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "variables",
    [
        {"GIT_DIR": "other/.git"},
        {"GIT_DIR": "other/.git", "GIT_WORK_TREE": "other"},
        {"GIT_DIR": "other/.git", "GIT_INDEX_FILE": "other/.git/index"},
        {"GIT_INDEX_FILE": "other/.git/index"},
        {"GIT_OBJECT_DIRECTORY": "other/.git/objects"},
        {"GIT_COMMON_DIR": "other/.git"},
        {"GIT_CEILING_DIRECTORIES": "own"},
    ],
    ids="+".join,
)
def test_variables_of_another_repository_change_nothing(variables, own, other, tmp_path, monkeypatch):
    before = state_of(other)
    named = {name: str(tmp_path / value) for name, value in variables.items()}
    commit = git(own, "rev-parse", "--short=12", "HEAD").strip()
    with monkeypatch.context() as patch:
        for name, value in named.items():
            patch.setenv(name, value)
        assert git_commit(own) == commit
        digest = record(own)
        assert {name: os.environ[name] for name in named} == named
    git(own, "add", "-A")
    git(own, "commit", "-qm", "data")
    commit = git(own, "rev-parse", "--short=12", "HEAD").strip()
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    assert [version.digest for version in data_versions.version_log(own)] == [digest]
    assert data_versions.use_version(own, "HEAD") == digest == recorded_version(own)
    assert git_commit(own) == commit
    assert state_of(other) == before


def test_a_new_project_inside_a_hook_gets_repositories_of_its_own(other, tmp_path, monkeypatch):
    before = state_of(other)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    (tmp_path / "new").mkdir()
    assert init_repositories(tmp_path / "new") == ["git", "DVC"]
    assert (tmp_path / "new" / ".git" / "HEAD").is_file()
    assert state_of(other) == before


def test_a_hook_of_another_repository_sees_the_projects_own_versions(own, other, tmp_path):
    record(own)
    git(own, "add", "-A")
    git(own, "commit", "-qm", "data")
    program = "from pathlib import Path\n"
    program += "from silos.versioning.data_versions import version_log; print(len(version_log(Path())))"
    hook = other / ".git" / "hooks" / "post-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ncd {own} && {sys.executable} -c '{program}' > {tmp_path}/said 2>&1\n")
    hook.chmod(0o755)
    git(other, "worktree", "add", "-q", str(tmp_path / "tree"))  # git sets GIT_DIR for its hooks there
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "with the hook")
    assert (tmp_path / "said").read_text() == "1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a repository to another user")
def test_a_repository_of_another_user_is_a_sentence_with_the_fix_and_no_silent_none(own, monkeypatch):
    digest = record(own)
    git(own, "add", "-A")
    git(own, "commit", "-qm", "data")
    os.chown(own.parent, 1234, 1234)
    fix = f"`git config --global --add safe.directory {own.parent}`"
    for asked in (data_versions.version_log, lambda root: data_versions.find_digest(root, "HEAD")):
        with pytest.raises(UserError, match="which another user owns") as refused:
            asked(own)
        assert fix in str(refused.value)
        assert "\t" not in str(refused.value)
    assert data_versions.find_digest(own, digest[:8]) == digest
    said: list[str] = []
    monkeypatch.setattr(progress.current(), "say_once", said.append)
    assert git_commit(own) == "none"
    assert [fix in line for line in said] == [True]
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(own.parent))
    assert git_commit(own) != "none"


def test_a_damaged_repository_is_not_a_silent_none(own, monkeypatch):
    (own.parent / ".git" / "HEAD").write_text("nonsense")
    said: list[str] = []
    monkeypatch.setattr(progress.current(), "say_once", said.append)
    assert git_commit(own) == "none"
    assert [line.startswith("git_commit is none in MLflow: fatal: ") for line in said] == [True]
