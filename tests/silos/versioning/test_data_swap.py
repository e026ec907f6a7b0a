"""data/ and data.dvc are replaced together: killed at any step, and killed again while recovering, one version is whole."""

import shutil
from pathlib import Path

import pytest

from silos.io.hashing import folder_digest
from silos.versioning.data_versions import recover, replace_data
from silos.versioning.dvc_files import record_text, recorded_version

pytestmark = pytest.mark.slow

PREPARATION = """
import shutil
from pathlib import Path
from silos.versioning.data_versions import recover, replace_data

def check_out(record):
    shutil.copytree(record.parents[1] / "new", record.parent / "data")
"""
REPLACE = "replace_data(Path('.'), Path('new.dvc').read_text(), check_out)"


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Path, str, str]:
    """A project, the digest of what its data/ holds and data.dvc records, and that of new/, which new.dvc records."""
    project, digests = tmp_path / "project", []
    for name, files in (("data", {"a/x": "1", "b": "2"}), ("new", {"a/x": "1", "b": "3", "c": "4"})):
        for path, text in files.items():
            (project / name / path).parent.mkdir(parents=True, exist_ok=True)
            (project / name / path).write_text(text)
        digests.append(folder_digest(project / name))
        (project / f"{name}.dvc").write_text(record_text(digests[-1], len(files), len(files)))
    return project, digests[0], digests[1]


@pytest.mark.parametrize("there", [True, False])
def test_killed_at_any_step_the_old_or_the_new_version_is_whole(there, versions, killed_at_each_step):
    project, old, new = versions
    if not there:  # as in a fresh clone
        shutil.rmtree(project / "data")
    killed = killed_at_each_step(project, REPLACE, PREPARATION)
    assert len(killed) > 10
    found = []
    for copy in killed:
        recover(copy)
        found.append(recorded_version(copy))
        assert found[-1] in (old, new)
        present = folder_digest(copy / "data") if (copy / "data").exists() else None
        assert present == (found[-1] if there or found[-1] == new else None), copy.name
        assert leftovers(copy) == []
    assert found == [old] * found.count(old) + [new] * found.count(new)
    assert {old, new} == {*found}


def test_killed_again_while_recovering_nothing_is_lost_either(versions, killed_at_each_step, tmp_path):
    project, old, new = versions
    states = killed_at_each_step(project, REPLACE, PREPARATION)
    moved = [state for state in states if (state / ".data-use" / "old").exists()]
    assert len({(state / "data").exists() for state in moved}) == 2  # before the new folder is in its place, and after
    for number, state in enumerate(moved):
        kept = tmp_path / f"state{number}"
        state.rename(kept)
    shutil.rmtree(tmp_path / "killed")
    for number in range(len(moved)):
        for copy in killed_at_each_step(tmp_path / f"state{number}", "recover(Path('.'))", PREPARATION):
            recover(copy)
            assert folder_digest(copy / "data") == recorded_version(copy)
            assert recorded_version(copy) in (old, new)
            assert leftovers(copy) == []
        shutil.rmtree(tmp_path / "killed")


def test_what_somebody_put_there_after_a_kill_is_left_alone(versions):
    project, old, _ = versions
    beside = project / ".data-use"
    beside.mkdir()
    shutil.copyfile(project / "new.dvc", beside / "data.dvc")
    shutil.copytree(project / "data", beside / "old")
    recover(project)  # data/ is there, and it is not the version that was on its way
    assert folder_digest(project / "data") == recorded_version(project) == old
    assert leftovers(project) == []


def test_replacing_works_without_a_kill(versions):
    project, _, new = versions

    def check_out(record: Path) -> None:
        shutil.copytree(project / "new", record.parent / "data")

    replace_data(project, (project / "new.dvc").read_text(), check_out)
    assert folder_digest(project / "data") == recorded_version(project) == new
    assert leftovers(project) == []


def leftovers(project: Path) -> list[str]:
    return [path.name for path in project.iterdir() if path.name.startswith(".")]
