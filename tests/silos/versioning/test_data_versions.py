"""`use` brings a version of data/ back. If it fails or is killed, data/ is whole, and it deletes nothing unrecorded."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from silos.errors import UserError
from silos.io.hashing import folder_digest
from silos.storage.partition_store import write
from silos.versioning import data_versions, dvc_files
from silos.versioning.data_versions import diff, use_version, version_log
from silos.versioning.dvc_files import record, recorded_version

# is killed when DVC has written half of the new files
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
from silos.versioning import data_versions
data_versions.use_version(Path("."), sys.argv[1])
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


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before data/", "half way"])
@pytest.mark.parametrize("revision", ["HEAD~1", "HEAD"])
def test_use_that_was_killed_changed_nothing_and_can_be_repeated(moment, revision, versions, data, tmp_path):
    for _ in range(2):
        kill(tmp_path, "HEAD~1", moment)
    assert folder_digest(data) == recorded_version(tmp_path) == versions[1]
    expected = versions[revision == "HEAD"]
    assert use_version(tmp_path, revision) == folder_digest(data) == recorded_version(tmp_path) == expected
    assert git(tmp_path, "status", "--short") == ("" if revision == "HEAD" else " M data.dvc\n")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["B", "b/new", "b/mine", ".mine.tmp"])
def test_what_somebody_wrote_after_the_kill_is_not_lost(path, versions, data, tmp_path):
    kill(tmp_path, "HEAD~1", "half way")
    before = {other: other.read_text() for other in files(data)}
    (data / path).write_text("mine")
    with pytest.raises(UserError, match="would be lost"):
        use_version(tmp_path, "HEAD~1")
    assert {other: other.read_text() for other in files(data)} == {**before, data / path: "mine"}


@pytest.mark.usefixtures("versions")
def test_without_a_kill_a_mixture_of_two_versions_is_somebodys_own(data, tmp_path):
    (data / "B").write_text("5")  # as in the first version
    with pytest.raises(UserError, match="would be lost"):
        use_version(tmp_path, "HEAD~1")


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), MemoryError])
@pytest.mark.parametrize("step", ["_repository", "write_bytes", "rename", "last rename"])
def test_whatever_ends_it_everything_is_as_before(step, error, versions, data, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise error

    renamed = Path.rename

    def fails_at_data(path, target):
        if Path(target) == data:
            fail()
        return renamed(path, target)

    before = (tmp_path / "data.dvc").read_bytes()
    with monkeypatch.context() as patch:
        if step == "_repository":
            patch.setattr(dvc_files, step, fail)
        elif step == "write_bytes":
            patch.setattr(data_versions, step, fail)
        elif step == "rename":
            patch.setattr(Path, "rename", lambda path, target: fail() if path == data else renamed(path, target))
        else:
            patch.setattr(Path, "rename", once(fails_at_data, renamed))
        with pytest.raises(error if isinstance(error, type) else type(error)):
            use_version(tmp_path, "HEAD~1")
    assert (tmp_path / "data.dvc").read_bytes() == before
    assert folder_digest(data) == versions[1]
    assert git(tmp_path, "status", "--short") == ""
    assert use_version(tmp_path, "HEAD~1") == versions[0]


def once(first, then):
    """A function that is `first` until that fails, and `then` afterwards: the way back is open."""
    failed = []

    def called(*arguments):
        try:
            return (then if failed else first)(*arguments)
        except BaseException as error:
            failed.append(error)
            raise

    return called


def test_a_version_whose_contents_are_nowhere_leaves_data_as_they_are(versions, data, tmp_path):
    before = {path: path.read_bytes() for path in files(data)}
    shutil.rmtree(tmp_path / ".dvc" / "cache")
    for _ in range(2):
        with pytest.raises(UserError, match=f"DVC cannot restore version {versions[0]}"):
            use_version(tmp_path, "HEAD~1")
        assert {path: path.read_bytes() for path in files(data)} == before
        assert recorded_version(tmp_path) == versions[1]
        assert git(tmp_path, "status", "--short") == ""


def test_data_dvc_that_was_not_there_is_not_there_after_a_failure(versions, tmp_path):
    (tmp_path / "data.dvc").unlink()
    shutil.rmtree(tmp_path / "data")
    shutil.rmtree(tmp_path / ".dvc" / "cache")
    with pytest.raises(UserError, match=r"DVC cannot restore version d56a456d1840469aff7e0ba7fbbd6e9c\.dir"):
        use_version(tmp_path, "HEAD~1")
    assert git(tmp_path, "status", "--short") == " D data.dvc\n"
    assert not (tmp_path / "data").exists()


def test_a_version_that_lacks_one_file_leaves_data_as_they_are(versions, data, tmp_path):
    first = data_versions.object_path(tmp_path, data_versions.listed_files(tmp_path, versions[0])["B"])
    kept = first.read_bytes()
    first.unlink()
    with pytest.raises(UserError, match=r"DVC cannot restore version d56a456d1840469aff7e0ba7fbbd6e9c\.dir"):
        use_version(tmp_path, "HEAD~1")
    assert folder_digest(data) == recorded_version(tmp_path) == versions[1]
    first.write_bytes(kept)
    assert use_version(tmp_path, "HEAD~1") == versions[0]


def test_a_damaged_cache_is_found_before_data_are_replaced(versions, data, tmp_path):
    first = data_versions.object_path(tmp_path, data_versions.listed_files(tmp_path, versions[0])["B"])
    first.chmod(0o644)
    first.write_bytes(b"other")
    with pytest.raises(UserError, match=rf"got damaged files of version {versions[0]} \({first}\)"):
        use_version(tmp_path, "HEAD~1")
    assert folder_digest(data) == recorded_version(tmp_path) == versions[1]


def test_a_remote_that_is_away_is_not_needed_for_what_the_cache_holds(versions, tmp_path):
    remote(tmp_path, "http://127.0.0.1:1/gone")
    assert use_version(tmp_path, "HEAD~1") == versions[0]


def test_a_remote_whose_package_is_missing_is_a_sentence(versions, data, tmp_path):
    remote(tmp_path, "ssh://127.0.0.1:1/gone")
    with pytest.raises(UserError, match=r"DVC cannot restore version d56a456d1840469aff7e0ba7fbbd6e9c\.dir: ssh is"):
        use_version(tmp_path, "HEAD~1")
    assert folder_digest(data) == recorded_version(tmp_path) == versions[1]


def test_damaged_settings_of_dvc_are_a_sentence(versions, data, tmp_path):
    (tmp_path / ".dvc" / "config").write_text("[core]\n[core]\n")
    with pytest.raises(UserError, match="DVC's settings cannot be read: config file error: Duplicate section name"):
        data_versions.find_digest(tmp_path, versions[0][:10])
    with pytest.raises(UserError, match="DVC"):
        use_version(tmp_path, "HEAD~1")
    assert folder_digest(data) == recorded_version(tmp_path) == versions[1]


def test_an_older_data_dvc_from_git_is_no_reason_to_refuse(versions, data, tmp_path):
    git(tmp_path, "checkout", "-q", "HEAD~1", "--", "data.dvc")
    assert use_version(tmp_path, versions[0][:10]) == folder_digest(data) == recorded_version(tmp_path) == versions[0]
    (tmp_path / "data.dvc").unlink()  # the cache holds what data/ holds all the same
    assert use_version(tmp_path, "HEAD") == folder_digest(data) == recorded_version(tmp_path) == versions[1]


def test_recorded_data_that_the_cache_has_lost_are_put_there_before_they_are_replaced(versions, data, tmp_path):
    of_first = {*data_versions.listed_files(tmp_path, versions[0]).values(), versions[0]}
    for md5 in {*data_versions.listed_files(tmp_path, versions[1]).values(), versions[1]} - of_first:
        data_versions.object_path(tmp_path, md5).unlink()
    assert use_version(tmp_path, "HEAD~1") == versions[0]
    assert use_version(tmp_path, "HEAD") == folder_digest(data) == versions[1]


def test_data_on_a_mount_of_their_own_are_written_in_place(versions, data, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "is_mount", lambda path: path == data)
    inode = data.stat().st_ino
    assert use_version(tmp_path, "HEAD~1") == folder_digest(data) == recorded_version(tmp_path) == versions[0]
    real, calls = data_versions.check_out, []

    def fail_in_place(record, root):
        calls.append(record)
        if calls.count(tmp_path / "data.dvc") == 1 and record == tmp_path / "data.dvc":
            raise OSError(28, "No space left on device")
        real(record, root)

    monkeypatch.setattr(data_versions, "check_out", fail_in_place)
    with pytest.raises(OSError, match="No space left"):
        use_version(tmp_path, "HEAD")
    assert folder_digest(data) == recorded_version(tmp_path) == versions[0]
    assert data.stat().st_ino == inode


@pytest.mark.slow
def test_a_copy_without_git_is_recorded_and_restored_and_has_no_log(versions, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns(".git", "copy"))
    program = """
import sys
from pathlib import Path
from silos.versioning import dvc_files, data_versions
root = Path(sys.argv[1])
(root / "data" / "B").write_text("new")
print(dvc_files.record(root))
print(data_versions.use_version(root, sys.argv[2]))
try:
    data_versions.version_log(root)
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
    assert said.startswith("UserError git: cannot read the versions of data/ (fatal: not a git ")


@pytest.mark.usefixtures("versions")
def test_a_machine_without_git_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="it is not installed"):
        version_log(tmp_path)
    assert data_versions.find_digest(tmp_path, str(recorded_version(tmp_path))) == recorded_version(tmp_path)


def test_a_git_that_ends_without_a_reason_is_named_by_its_exit_code(tmp_path, monkeypatch):
    (tmp_path / "git").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"\(exit code 7\)"):
        version_log(tmp_path)


@pytest.mark.usefixtures("versions")
@pytest.mark.parametrize("nothing", ["", " "])
def test_no_name_is_no_version_though_git_takes_it_for_what_is_staged(tmp_path, nothing):
    with pytest.raises(UserError, match="version: got no name, expected a git revision, or the start of a version"):
        data_versions.find_digest(tmp_path, nothing)


@pytest.mark.parametrize("nothing", ["", " "])
def test_no_name_restores_nothing_though_git_shows_what_is_staged(tmp_path, versions, data, nothing):
    (tmp_path / "data.dvc").write_text((tmp_path / "data.dvc").read_text())
    git(tmp_path, "add", "data.dvc")
    before = folder_digest(data)
    with pytest.raises(UserError, match="version: got no name, expected a git revision, or the start of a version"):
        use_version(tmp_path, nothing)
    assert folder_digest(data) == before == versions[1]


def test_a_version_counts_as_cached_only_with_all_of_its_files_so_that_no_row_is_lost(versions, data, tmp_path):
    hashes = dvc_files.listed_files(tmp_path, versions[1])
    assert hashes is not None
    assert len(hashes) > 1
    assert dvc_files.is_cached(tmp_path, versions[1])
    for md5 in sorted(set(hashes.values()) - set((dvc_files.listed_files(tmp_path, versions[0]) or {}).values())):
        place = dvc_files.object_path(tmp_path, md5)
        content = place.read_bytes()
        place.chmod(0o644)
        place.unlink()
        assert not dvc_files.is_cached(tmp_path, versions[1])
        place.write_bytes(content)
    assert dvc_files.is_cached(tmp_path, versions[1])
    place.unlink()
    use_version(tmp_path, "HEAD~1")  # puts what only data/ has into the cache before it is replaced
    assert dvc_files.is_cached(tmp_path, versions[1])
    use_version(tmp_path, versions[1])
    assert folder_digest(data) == versions[1]


def test_the_start_of_a_version_needs_six_characters_and_the_present_one_comes_first(versions, tmp_path):
    for digest in versions:
        assert data_versions.find_digest(tmp_path, digest[:6]) == digest
    with pytest.raises(UserError, match=f"version: got {versions[0][:5]}, expected"):
        data_versions.find_digest(tmp_path, versions[0][:5])


@pytest.mark.parametrize("newest", [0, 1])
def test_a_partitions_hash_is_that_of_the_present_version_and_else_of_the_one_recorded_last(newest, data, tmp_path):
    """Records of earlier siloflows name the hash of a partition, which several versions of data/ may have."""
    git(tmp_path, "init", "-q")
    (data / "two").mkdir()
    versions = []
    for text in ("1", "2"):
        (data / "two" / "rows").write_text(text)
        versions.append(record(tmp_path))
    for at, version in enumerate(versions):
        os.utime(dvc_files.object_path(tmp_path, version), (1e9 + (at == newest),) * 2)
    shared = data_versions.partitions(tmp_path, versions[0])["b"]
    assert shared == data_versions.partitions(tmp_path, versions[1])["b"]
    assert data_versions.find_digest(tmp_path, shared[:8]) == versions[1]  # which is there
    (data / "b" / "x").write_text("another")
    record(tmp_path)
    assert data_versions.find_digest(tmp_path, shared[:8]) == versions[newest]


def test_two_versions_have_the_same_rows_only_with_the_same_files_of_a_partition(data, tmp_path):
    git(tmp_path, "init", "-q")
    for name, text in (("one", "1"), ("two", "2")):
        (data / name).mkdir()
        (data / name / "rows").write_text(text)
    first = record(tmp_path)
    (data / "two" / "rows").write_text("3")
    second = record(tmp_path)
    assert data_versions.same_rows(tmp_path, "one", first, second)
    assert not data_versions.same_rows(tmp_path, "two", first, second)
    assert data_versions.same_rows(tmp_path, "two", first, first)


def test_a_version_that_gc_deleted_is_said_to_be_gone_without_a_folder_of_ours(tmp_path, versions, data):
    with dvc_files._quiet():
        from dvc.repo import Repo

        with Repo(str(tmp_path)) as repo:
            repo.gc(workspace=True, force=True)
    with pytest.raises(UserError) as refused:
        use_version(tmp_path, "HEAD~1")
    assert str(refused.value).startswith(f"DVC cannot restore version {versions[0]}: its cache lacks files (`dvc gc`")
    assert ".data-use" not in str(refused.value)
    assert folder_digest(data) == recorded_version(tmp_path) == versions[1]
    (tmp_path / "remote").mkdir()
    remote(tmp_path, str(tmp_path / "remote"))
    with pytest.raises(UserError) as refused:
        use_version(tmp_path, "HEAD~1")
    assert ".data-use" not in str(refused.value)
    assert folder_digest(data) == recorded_version(tmp_path) == versions[1]


def test_before_the_first_commit_git_knows_no_version(data, tmp_path):
    git(tmp_path, "init", "-q")
    record(tmp_path)
    assert version_log(tmp_path) == []


def remote(root: Path, url: str) -> None:
    (root / ".dvc" / "config.local").write_text(f"[core]\n    remote = gone\n['remote \"gone\"']\n    url = {url}\n")


def kill(root: Path, revision: str, moment: str) -> None:
    """`use` in a process that is killed in the middle."""
    here = str(Path(dvc_files.__file__).parents[2])
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


def test_a_client_whose_filled_in_mean_alone_moved_with_other_clients_rows_has_not_changed(tmp_path, params):
    client, x = np.repeat(["none", "some", "many"], 40), np.arange(120.0) - 60
    scheme, features = [{"kind": "column", "column": "client"}], [{"name": "age", "missing": {"fill": "mean"}}]

    def recorded(added: float, gap: int | None = None, other_label: int | None = None) -> str:
        rows = np.where(client == "many", x + added, x)[:, None]
        rows[client == "none"] = np.nan
        rows[[] if gap is None else gap] = np.nan
        y = (np.arange(120) + (np.arange(120) == other_label)) % 2
        np.savez(tmp_path / "own.npz", x=rows, y=y, client=client)
        source = {"kind": "npz", "path": "own.npz", "task": "classification"}
        write(tmp_path / "data" / "small", params(source=source, scheme=scheme, features=features), tmp_path)
        return record(tmp_path)

    before, moved = recorded(0), recorded(5)
    assert [silo["client"] for silo in diff(tmp_path, before, moved)["silos"]] == ["many", "none"]
    assert data_versions.changed_silos(tmp_path, "small", before, moved) == {"many": "changed"}
    for change in ({"gap": 45}, {"gap": 60}, {"other_label": 45}):  # row 60 had a 0
        changed = data_versions.changed_silos(tmp_path, "small", before, recorded(0, **change))
        assert changed == {"some": "changed"}, change
