"""The version of data/ is DVC's own, recorded quietly, checked without DVC, and clear where it differs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from silos.errors import UserError
from silos.io.hashing import folder_digest, listing_digest
from silos.storage.manifest import Manifest, read_manifest
from silos.storage.partition_store import write
from silos.versioning import data_versions, dvc_files
from silos.versioning.dvc_files import must_match_params, record, recorded_version, verify

HERE = Path(dvc_files.__file__).parents[2]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def dvc(folder: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.slow
def test_the_digest_is_the_one_that_dvc_writes(data, tmp_path):
    digest = folder_digest(data)
    assert record(tmp_path) == digest
    assert recorded_version(tmp_path) == digest
    dvc(tmp_path, "add", "data")
    assert recorded_version(tmp_path) == digest


def test_recording_again_leaves_data_dvc_untouched(data, tmp_path):
    digest = record(tmp_path)
    before = (tmp_path / "data.dvc").stat()
    assert record(tmp_path) == digest
    assert (tmp_path / "data.dvc").stat().st_mtime_ns == before.st_mtime_ns
    (data / "B").write_text("6")
    assert record(tmp_path) == folder_digest(data) != digest


@pytest.mark.slow
def test_recording_fills_a_cache_that_lost_the_data(data, tmp_path):
    record(tmp_path)
    shutil.rmtree(tmp_path / ".dvc" / "cache")
    digest = record(tmp_path)
    shutil.rmtree(data)
    dvc(tmp_path, "checkout")
    assert folder_digest(data) == digest


@pytest.mark.usefixtures("data")
def test_data_dvc_holds_no_path_of_this_machine(tmp_path):
    record(tmp_path)
    assert (tmp_path / "data.dvc").read_text().split("path: ")[1] == "data\n"
    assert tmp_path.name not in (tmp_path / "data.dvc").read_text()


@pytest.mark.slow
def test_recording_prints_nothing_not_even_on_a_terminal(data, tmp_path):
    program = (
        "import pty, sys\n"
        "code = 'from pathlib import Path; from silos.versioning.dvc_files import record; record(Path(\".\"))'\n"
        "sys.exit(pty.spawn([sys.executable, '-c', code]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    assert done.stdout + done.stderr == b""
    assert recorded_version(tmp_path) == folder_digest(data)


@pytest.mark.usefixtures("data")
def test_in_a_git_repository_data_is_ignored_and_its_record_is_not(tmp_path):
    git(tmp_path, "init", "-q")
    record(tmp_path)
    changed = git(tmp_path, "status", "--short")
    assert "data.dvc" in changed
    assert "data/" not in changed
    assert (tmp_path / ".gitignore").read_text() == "/data\n"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "data")
    assert "analytics = False" in git(tmp_path, "show", "HEAD:.dvc/config")


def test_below_a_git_repository_dvc_starts_in_the_subfolder(tmp_path, data):
    git(tmp_path, "init", "-q")
    root = tmp_path / "project"
    root.mkdir()
    data.rename(root / "data")
    digest = record(root)
    assert (root / ".dvc").is_dir()
    assert digest == recorded_version(root) == folder_digest(root / "data")
    git(tmp_path, "checkout", ".")  # restores what is staged
    assert "analytics = False" in (root / ".dvc" / "config").read_text()


@pytest.mark.slow
def test_below_a_dvc_repository_that_one_is_used(tmp_path, data):
    dvc(tmp_path, "init", "--no-scm")
    root = tmp_path / "project"
    root.mkdir()
    data.rename(root / "data")
    digest = record(root)
    assert not (root / ".dvc").exists()
    assert digest == recorded_version(root)
    (root / "data" / "B").write_text("6")
    with pytest.raises(UserError, match="data/B changed"):
        verify(root, "b")


@pytest.mark.usefixtures("data")
def test_data_that_git_tracks_is_a_sentence(tmp_path):
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "data")
    git(tmp_path, "commit", "-qm", "data")
    with pytest.raises(UserError, match=r"DVC cannot record .*data") as caught:
        record(tmp_path)
    assert "\n" not in str(caught.value)


def test_nothing_to_record_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="data: got no such folder, expected data to record"):
        record(tmp_path)


def test_verify_answers_with_the_files_of_one_folder(data, tmp_path):
    record(tmp_path)
    cache = tmp_path / "hashes.json"
    assert verify(tmp_path, "b", cache) == verify(tmp_path, "b")
    assert listing_digest(verify(tmp_path, "b")) == folder_digest(data / "b")
    assert verify(tmp_path, "É") != verify(tmp_path, "b")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: (data / "b" / "x").write_text("9"), "data/b/x changed"),
        (lambda data: (data / "b" / "y").write_text("9"), "data/b/y was added"),
        (lambda data: (data / "B").unlink(), "data/B is missing"),
        (lambda data: (data / "B").rename(data / "b" / "z"), "data/b/z was added, data/B is missing"),
    ],
)
def test_verify_names_the_file_that_differs_and_the_way_out(data, tmp_path, change, said):
    record(tmp_path)
    change(data)
    with pytest.raises(UserError, match=f"{said}. Run `dvc checkout`.*`siloflow partition`"):
        verify(tmp_path, "b")


def test_verify_without_dvcs_cache_still_says_that_data_differ(data, tmp_path):
    expected = record(tmp_path)
    shutil.rmtree(tmp_path / ".dvc")
    assert listing_digest(verify(tmp_path, "b")) == folder_digest(data / "b")
    (data / "B").unlink()
    with pytest.raises(UserError, match=f"its hash is {folder_digest(data)} and the recorded one is {expected}"):
        verify(tmp_path, "b")


def test_verify_says_what_is_missing(data, tmp_path):
    with pytest.raises(UserError, match=r"data.dvc is missing"):
        verify(tmp_path, "b")
    record(tmp_path)
    with pytest.raises(UserError, match="none: got no such folder, expected a partition"):
        verify(tmp_path, "none")
    shutil.rmtree(data)
    with pytest.raises(UserError, match="b: got no such folder, expected a partition"):
        verify(tmp_path, "b")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "outs: 3",
        "outs:\n- path: data",
        "{",
        "outs:\n- md5: abc\n  path: data",
        "outs:\n- md5: a.dir\n  path: x",
        "outs: 0b_",
        "outs: 2026-99-99",
        "? [a]\n: 1",
        "outs: " + "[" * 100_000,
        "outs: !!python/object/apply:os.system [ls]",
    ],
)
def test_a_malformed_record_is_a_sentence(tmp_path, text):
    (tmp_path / "data.dvc").write_text(text)
    with pytest.raises(UserError, match="expected its record") as caught:
        recorded_version(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_record_is_none(tmp_path):
    assert recorded_version(tmp_path) is None


def test_params_that_built_the_data_match(natural, params):
    manifest = read_manifest(natural({"lyon": 20}))
    must_match_params(manifest, params().model_validate(manifest.params))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 8}, "data.seed: got 8, expected 7, with which data/small was made"),
        (
            {"split": {"validation": 0.1, "test": 0.3}},
            "data.split.test: got 0.3, expected 0.2, with which data/small was made",
        ),
        ({"source": {"kind": "npz", "path": "x.npz"}}, 'data.source.kind: got "npz", expected "digits"'),
        ({"scheme": [{"kind": "equal", "clients": 4}]}, r"data.scheme\[0\].clients: got 4, expected 3"),
        (
            {"scheme": [{"kind": "dirichlet", "clients": 3, "alpha": 1}]},
            r'data.scheme\[0\].kind: got "dirichlet", expected "equal"',
        ),
        (
            {"scheme": [{"kind": "equal", "clients": 3}, {"kind": "rotation", "angles": [0]}]},
            r"data.scheme: got \[.*rotation.*\], expected \[",
        ),
    ],
)
def test_params_that_did_not_build_the_data_are_named_with_both_values(tmp_path, params, changes, said):
    manifest = write(tmp_path / "data" / "small", params(), tmp_path)
    with pytest.raises(UserError, match=f"params.yaml: {said}.*`siloflow partition`"):
        must_match_params(manifest, params(**changes))


def test_the_place_of_a_download_is_not_part_of_the_version(params):
    scheme = [{"kind": "equal", "clients": 2}]
    built = params(source={"kind": "mnist"}, scheme=scheme)
    moved = params(source={"kind": "mnist", "download_dir": "/elsewhere", "download": False}, scheme=scheme)
    fewer = params(source={"kind": "mnist", "rows": {"train": 9}}, scheme=scheme)
    manifest = Manifest("small", built.recipe(), ("0",), (1,), "uint8", ())
    must_match_params(manifest, moved)
    with pytest.raises(UserError, match=r"data\.source\.rows\.train: got 9, expected null, with which data/small"):
        must_match_params(manifest, fewer)


def test_a_manifest_with_its_defaults_written_out_still_matches(params):
    asked = params(scheme=[{"kind": "dirichlet", "clients": 3, "alpha": 1}])
    before = {"kind": "dirichlet", "clients": 3, "alpha": 1.0, "min_rows": 1}
    must_match_params(Manifest("small", asked.recipe() | {"scheme": [before]}, ("0",), (1,), "uint8", ()), asked)
    other = Manifest("small", asked.recipe() | {"scheme": [before | {"min_rows": 2}]}, ("0",), (1,), "uint8", ())
    with pytest.raises(UserError, match=r"data\.scheme\[0\]\.min_rows: got 1, expected 2, with which data/small was"):
        must_match_params(other, asked)


def test_a_manifest_with_keys_that_are_no_more_is_a_difference(params):
    old = params().recipe() | {"dealer": "kind"}
    with pytest.raises(UserError, match=r'data\.dealer: got nothing, expected "kind", with which data/small was'):
        must_match_params(Manifest("small", old, ("0",), (1,), "uint8", ()), params())


@pytest.mark.usefixtures("data")
def test_a_commits_words_may_hold_any_character(tmp_path, monkeypatch):
    record(tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "data.dvc")
    subject = "[/b] é日 \x1b[2J \x0c one \u2028 line\ttab"
    git(tmp_path, "commit", "--quiet", "--message", subject)
    monkeypatch.setattr("locale.getencoding", lambda: "ascii")  # what `text=True` reads with
    (found,) = data_versions.version_log(tmp_path)
    assert found.subject == subject


def test_what_dvc_says_of_a_link_has_no_colours(data, tmp_path):
    data.rename(tmp_path / "elsewhere")
    data.symlink_to("elsewhere")
    with pytest.raises(UserError, match="DVC cannot record it: Cannot add files inside symlinked") as caught:
        record(tmp_path)
    assert str(caught.value).isprintable()
