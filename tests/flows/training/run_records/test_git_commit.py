"""The commit that a run names, also where there is none to be named."""

import subprocess

import pytest

from flows.training.run_records.mlflow_run_metadata import git_commit


def test_without_git_installed_or_outside_of_a_checkout_a_run_names_no_commit(tmp_path, monkeypatch):
    assert git_commit(tmp_path) == "none"
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert git_commit(tmp_path) == "none"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        subprocess.run(["git"], check=False)
    assert git_commit(tmp_path) == "none"
