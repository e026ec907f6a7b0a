"""What `siloflow partition` says about the store that silos have already."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

from flows.project.make_partition import make
from flows.project.project import Project
from silos.errors import RefusalError
from silos.privacy.owner_file import make_store
from silos.versioning.git_commands import ignore_folders


def test_data_of_ones_own_after_public_ones_get_a_file_of_their_owners(project: Path) -> None:
    """Public rows may be reported by any silos; a file that stayed would let own rows have several budgets."""
    owner = project / "private" / "digits" / "owner.yaml"
    make_store(owner.parent, Project.open(root=project).params.data)
    assert "other_silos: true" in owner.read_text()
    assert make(Project.open(root=project))["notes"] == []
    rng = np.random.default_rng(0)
    np.savez(project / "own.npz", x=rng.normal(size=(90, 4)), y=np.arange(90) % 3, client=np.arange(90) % 3)
    raw = yaml.safe_load((project / "params.yaml").read_text())
    raw["data"] |= {"source": {"kind": "npz", "path": "own.npz"}, "scheme": [{"kind": "column", "column": "client"}]}
    (project / "params.yaml").write_text(yaml.safe_dump(raw))
    note, unit = make(Project.open(root=project))["notes"]
    assert unit.startswith("no data.source.unit: ten rows may be one person's")
    assert note.startswith("private/digits/owner.yaml: made. Only the owner of these silos changes it")
    assert "other_silos: false" in owner.read_text()
    assert make(Project.open(root=project))["notes"] == []
    with pytest.raises(RefusalError, match=r"got digits, whose store private/digits belongs to the source own\.npz"):
        make(Project.open(["data.source={kind: digits}", "data.scheme=[{kind: equal, clients: 3}]"], root=project))


def test_rows_in_another_file_need_another_name_or_a_correction_by_their_owner(project: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(90, 4)), "y": np.arange(90) % 3, "client": np.arange(90) % 3}
    np.savez(project / "own.npz", **arrays)
    rows = [f"{a:.3f},{b:.3f},{y},{c}" for (a, b, *_), y, c in zip(*arrays.values(), strict=True)]
    (project / "own.csv").write_text("\n".join(["a,b,y,client", *rows]))
    raw = yaml.safe_load((project / "params.yaml").read_text())
    raw["data"] |= {"name": "own", "scheme": [{"kind": "column", "column": "client"}]}
    table = {"kind": "table", "path": "own.csv", "label": "y", "client": "client"}
    raw["data"]["source"] = table
    (project / "params.yaml").write_text(yaml.safe_dump(raw))
    make(Project.open(root=project))
    raw["data"]["source"] = {"kind": "npz", "path": "own.npz"}
    (project / "params.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(
        RefusalError, match=r"store private/own belongs to the source own\.csv, expected another name for own\.npz"
    ):
        make(Project.open(root=project))
    owner = project / "private" / "own" / "owner.yaml"
    text = owner.read_text()
    owner.write_text(
        text.replace('"table"', "npz")
        .replace("own.csv", "own.npz")
        .replace('    label: "y"\n    client: "client"\n', "")
    )
    assert make(Project.open(root=project))["clients"] == 3
    assert make(Project.open(["data.name=other"], root=project))["name"] == "other"
    assert not (project / "private" / "other").exists(), "the same file has the same owner's file under any name"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_git_never_offers_what_silos_keep_private_and_a_file_of_rows_is_named(project: Path) -> None:
    rows = ["a,b,y,client", *(f"{at / 7:.3f},{at % 5},{at % 3},{at % 2}" for at in range(90))]
    (project / "own.csv").write_text("\n".join(rows))
    git(project, "init", "--quiet")
    source = "data.source={kind: table, path: own.csv, label: y, client: client}"
    settings = [source, "data.scheme=[{kind: column, column: client}]", "data.name=own"]
    (project / ".gitignore").write_text("/own.csv")
    notes = make(Project.open(settings, root=project))["notes"]
    assert ".gitignore: /private/ and /runs/ added, so that git commits nothing that silos keep private" in notes
    assert {"/own.csv", "/private/", "/runs/"} <= {*(project / ".gitignore").read_text().splitlines()}
    assert "private/" not in git(project, "status", "--porcelain")
    assert not [note for note in make(Project.open(settings, root=project))["notes"] if "git" in note]
    (project / ".gitignore").unlink()
    notes = make(Project.open(settings, root=project))["notes"]
    assert any(
        note.startswith("own.csv: git does not ignore it, so `git add --all` would commit its rows.") for note in notes
    )
    assert not {"private/", "runs/", "data/"} & {*git(project, "status", "--porcelain").split()}
    git(project, "add", "own.csv")  # by decision
    assert not [note for note in make(Project.open(settings, root=project))["notes"] if "git" in note]


@pytest.mark.parametrize("before", [b"/a\r\n/b\r\n", "# f\xfcr".encode("latin-1")], ids=["CRLF", "Latin-1"])
def test_lines_of_a_gitignore_in_another_form_stay_as_they_are(before: bytes, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_bytes(before)
    assert ignore_folders(tmp_path, ("runs",)) == ["runs"]
    after = b"/runs/\r\n" if b"\r" in before else b"\n/runs/\n"
    assert (tmp_path / ".gitignore").read_bytes() == before + after


def test_the_command_to_commit_names_no_gitignore_where_a_folder_above_ignores_the_data(project: Path) -> None:
    git(project.parent, "init", "--quiet")
    (project.parent / ".gitignore").write_text("data/\nprivate/\nruns/\n")
    (project / ".gitignore").unlink(missing_ok=True)
    made = make(Project.open(root=project))
    assert made["to_commit"] == ["data.dvc"]
    git(project, "add", *made["to_commit"])


def test_a_version_that_git_does_not_have_is_said_to_be_uncommitted(project: Path) -> None:
    assert not make(Project.open(root=project))["uncommitted"]  # no repository
    git(project, "init", "--quiet")
    assert make(Project.open(root=project))["uncommitted"]
    git(project, "add", "data.dvc")
    git(project, "commit", "--quiet", "-m", "Data")
    assert not make(Project.open(root=project))["uncommitted"]
    assert make(Project.open(["data.seed=1"], root=project))["uncommitted"]
