"""What DVC's remote lacks, as `siloflow status` reports it."""

import subprocess
import sys
from pathlib import Path

import pytest

from silos.versioning.dvc_files import has_remote, record, remote_status

DVC = Path(sys.executable).parent / "dvc"


def dvc(folder: Path, *words: str) -> None:
    subprocess.run([DVC, *words, "--quiet"], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("name", ["config", "config.local"])
@pytest.mark.parametrize("title", ['remote "store"', "'remote \"store\"'", "core"])
def test_a_remote_is_found_in_the_configuration_of_the_project_and_in_that_of_this_machine(tmp_path, name, title):
    (tmp_path / ".dvc").mkdir()
    assert not has_remote(tmp_path)
    (tmp_path / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (tmp_path / ".dvc" / name).write_text(f"[{title}]\n    url = /there\n")
    assert has_remote(tmp_path) == (title != "core")


@pytest.mark.slow
def test_files_to_push_and_to_pull_are_counted_and_an_absent_remote_is_a_sentence(tmp_path):
    root, store = tmp_path / "project", tmp_path / "store"
    (root / "data").mkdir(parents=True)
    for name in ("a", "b"):
        (root / "data" / name).write_text(name)
    assert remote_status(root) is None
    record(root)
    assert remote_status(root) is None
    dvc(root, "remote", "add", "--default", "store", str(store))
    states = [remote_status(root)]
    dvc(root, "push")
    states.append(remote_status(root))
    assert [(state["remote"], state["push"] > 0, state["problem"]) for state in states] == [
        ("store", True, None),
        ("store", False, None),
    ]
    for file in (root / ".dvc" / "cache").rglob("*/*"):
        if file.is_file():
            file.unlink()
    assert remote_status(root)["pull"] > 0
    dvc(root, "remote", "modify", "store", "url", "s3://bucket/store")
    assert remote_status(root)["problem"]
