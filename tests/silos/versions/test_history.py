"""`use` brings a version of data/ back; killed at any moment it goes on, and throws nothing away that nobody recorded."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from silos.errors import UserError
from silos.stored.store import write
from silos.versions import dvc_version, history
from silos.versions.changes import diff
from silos.versions.digest import folder_digest
from silos.versions.dvc_version import record, recorded
from silos.versions.history import log, use

# ends itself when DVC has deleted what is no more and written half of what is new, and is at the next file
KILLED = """
import os, signal, sys
from pathlib import Path
import dvc_data.index.checkout as checkout
whole = checkout.transfer

def half(from_fs, sources, to_fs, targets, **options):
    if sys.argv[2] == "half way":
        count = max(1, len(sources) // 2)
        whole(from_fs, sources[:count], to_fs, targets[:count], **options)
        Path(targets[0]).with_name(".Zm9vYmFyZm9vYmFyZm9vYm.tmp").write_bytes(b"hal")
    os.kill(os.getpid(), signal.SIGKILL)

checkout.transfer = half
from silos.versions import history
history.use(Path("."), sys.argv[1])
"""


@pytest.fixture
def versions(data: Path, tmp_path: Path) -> tuple[str, str]:
    """Two recorded and committed versions of data/, of which the second is there."""
    git(tmp_path, "init", "-q")
    first = record(tmp_path)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    for path, text in (("B", "50"), ("b/x", "10"), ("b/new", "60"), ("b-c", "20")):
        (data / path).write_text(text)
    (data / "b.d").unlink()
    second = record(tmp_path)
    git(tmp_path, "commit", "-qam", "second")
    return first, second


@pytest.fixture
def killed(versions: tuple[str, str], tmp_path: Path) -> dict[str, str]:
    """`use HEAD~1` was killed half way; the files as it left them."""
    kill(tmp_path, "HEAD~1", "half way")
    left = {path.relative_to(tmp_path / "data").as_posix(): path.read_text() for path in files(tmp_path / "data")}
    assert folder_digest(tmp_path / "data") not in versions
    assert any(path.endswith(".tmp") for path in left)
    return left


@pytest.mark.parametrize("moment", ["before data/", "half way"])
def test_use_that_was_killed_goes_on(moment, versions, tmp_path):
    for _ in range(2):
        kill(tmp_path, "HEAD~1", moment)
    assert use(tmp_path, "HEAD~1") == versions[0]
    assert folder_digest(tmp_path / "data") == recorded(tmp_path) == versions[0]
    assert git(tmp_path, "status", "--short") == " M data.dvc\n"


@pytest.mark.parametrize("content", ['{"from": {"B": ', "[]", '{"from": 5, "to": "x"}', '{"to": "x"}', "\udcff"])
@pytest.mark.usefixtures("killed")
def test_a_damaged_note_of_the_kill_is_a_sentence_and_costs_nothing(content, data, tmp_path):
    (tmp_path / history._UNDER_WAY).write_bytes(content.encode(errors="surrogateescape"))
    before = {path: path.read_text() for path in files(data)}
    with pytest.raises(UserError, match=r"data/ is not as data\.dvc records it, and would be lost"):
        use(tmp_path, "HEAD~1")
    assert {path: path.read_text() for path in files(data)} == before


@pytest.mark.usefixtures("killed")
def test_after_a_kill_the_way_back_is_open_too(versions, tmp_path):
    assert use(tmp_path, "HEAD") == versions[1]
    assert folder_digest(tmp_path / "data") == recorded(tmp_path) == versions[1]
    assert git(tmp_path, "status", "--short") == ""


@pytest.mark.parametrize("path", ["B", "b/new", "b/mine", ".mine.tmp"])
def test_what_somebody_wrote_after_the_kill_is_not_lost(path, killed, data, tmp_path):
    (data / path).write_text("mine")
    with pytest.raises(UserError, match="would be lost"):
        use(tmp_path, "HEAD~1")
    assert (data / path).read_text() == "mine"
    for other in killed.keys() - {path}:
        assert (data / other).read_text() == killed[other]


@pytest.mark.usefixtures("versions")
def test_without_a_kill_a_mixture_of_two_versions_is_somebodys_own(data, tmp_path):
    (data / "B").write_text("5")  # as in the first version
    with pytest.raises(UserError, match="would be lost"):
        use(tmp_path, "HEAD~1")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), MemoryError])
def test_whatever_ends_it_data_dvc_says_what_it_said(error, versions, tmp_path, monkeypatch):
    def fail(root):
        raise error

    before = (tmp_path / "data.dvc").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(dvc_version, "_repository", fail)
        with pytest.raises(error if isinstance(error, type) else type(error)):
            use(tmp_path, "HEAD~1")
    assert (tmp_path / "data.dvc").read_bytes() == before
    assert not (tmp_path / history._UNDER_WAY).exists()
    assert use(tmp_path, "HEAD~1") == versions[0]


def test_data_dvc_that_was_not_there_is_not_there_after_a_failure(versions, tmp_path):
    (tmp_path / "data.dvc").unlink()
    shutil.rmtree(tmp_path / "data")
    shutil.rmtree(tmp_path / ".dvc" / "cache")
    with pytest.raises(UserError, match="DVC cannot bring version"):
        use(tmp_path, "HEAD~1")
    assert not (tmp_path / "data.dvc").exists()
    assert not (tmp_path / history._UNDER_WAY).exists()


def test_a_failure_half_way_is_gone_on_from(versions, tmp_path):
    first = history.object_path(tmp_path, history.listed(tmp_path, versions[0])["B"])
    kept = first.read_bytes()
    first.unlink()
    with pytest.raises(UserError, match="DVC cannot bring version"):
        use(tmp_path, "HEAD~1")
    assert folder_digest(tmp_path / "data") not in versions
    first.write_bytes(kept)
    assert use(tmp_path, "HEAD~1") == versions[0]
    assert not (tmp_path / history._UNDER_WAY).exists()


def test_a_copy_without_git_is_recorded_and_restored_and_has_no_log(versions, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns(".git", "copy"))
    program = """
import sys
from pathlib import Path
from silos.versions import dvc_version, history
root = Path(sys.argv[1])
(root / "data" / "B").write_text("new")
print(dvc_version.record(root))
print(history.use(root, sys.argv[2]))
try:
    history.log(root)
except Exception as error:
    print(type(error).__name__, error)
"""
    # away from here: the copy lies in this test's own repository
    alone = Path(shutil.move(copy, tmp_path.parent / f"{tmp_path.name}-alone"))
    done = subprocess.run(
        [sys.executable, "-c", program, str(alone), versions[0]], capture_output=True, text=True, check=False
    )
    recorded_now, used, said = done.stdout.splitlines()
    assert recorded_now not in versions
    assert used == versions[0] == folder_digest(alone / "data")
    assert said.startswith("UserError the versions of data/ are read from git, and that fails (fatal: not a git ")


@pytest.mark.usefixtures("versions")
def test_a_machine_without_git_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="it is not installed"):
        log(tmp_path)
    assert history.find(tmp_path, str(recorded(tmp_path))) == recorded(tmp_path)


@pytest.mark.usefixtures("versions")
@pytest.mark.parametrize("nothing", ["", " "])
def test_no_name_is_no_version_though_git_takes_it_for_what_is_staged(tmp_path, nothing):
    with pytest.raises(UserError, match="no version is named; give a git revision"):
        history.find(tmp_path, nothing)


def test_before_the_first_commit_git_knows_no_version(data, tmp_path):
    git(tmp_path, "init", "-q")
    record(tmp_path)
    assert log(tmp_path) == []


def kill(root: Path, revision: str, moment: str) -> None:
    """`use` in a process that is killed in the middle."""
    here = str(Path(dvc_version.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, revision, moment],
        cwd=root,
        env={**os.environ, "PYTHONPATH": here},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_value_that_goes_missing_where_its_fill_stood_is_a_change_of_its_client(tmp_path, params):
    x = np.zeros((20, 1))
    source, scheme = {"kind": "npz", "path": "own.npz"}, [{"kind": "column", "column": "client"}]
    own = params(source=source, scheme=scheme, features=[{"name": "a", "missing": {"fill": 0}}])
    versions = []
    for value in (0.0, np.nan):
        x[3] = value
        np.savez(tmp_path / "own.npz", x=x, y=np.arange(20) % 2, client=np.repeat(["lyon", "oslo"], 10))
        write(tmp_path / "data" / "small", own, tmp_path)
        versions.append(record(tmp_path))
    changes = [(change["client"], change["change"]) for change in diff(tmp_path, *versions)["silos"]]
    assert changes == [("lyon", "changed")]
