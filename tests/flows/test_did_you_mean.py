"""A name that is nearly right is answered with the right one, and a fresh clone with the command that makes its data."""

import json
from pathlib import Path

import pytest

from flows.project.project import Project
from flows.training.load_finished_run import find_run
from publications.published_tables import table_of
from silos.errors import UserError
from silos.storage.manifest import read_manifest
from silos.versioning.dvc_files import record_text, verify


@pytest.mark.parametrize(
    ("paper", "table", "said"),
    [
        ("uefl", "residul", "uefl has no table 'residul' here. Did you mean residual?"),
        ("uefl", "zzz", "uefl has no table 'zzz' here; --table takes "),
        ("mcmahn", "2NN", "there is no paper 'mcmahn'. Did you mean mcmahan?"),
        ("zzz", "2NN", "there is no paper 'zzz'; there are "),
    ],
)
def test_the_nearest_paper_and_table(paper, table, said):
    with pytest.raises(UserError) as error:
        table_of(paper, table, "cpu")
    assert str(error.value).startswith(said)


def test_the_nearest_client(project):
    with pytest.raises(
        UserError,
        match=r"client: got c030, expected a client of data/digits\. Did you mean c03\? The clients are c00, ",
    ):
        read_manifest(project / "data" / "digits").client("c030")


def test_the_nearest_run(project: Path):
    folder = project / "runs" / "run-1" / "fedavg-seed0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({}))
    with pytest.raises(UserError, match=r"got no run 'fedavg-sed0'\. Did you mean fedavg-seed0\?"):
        find_run(Project.open(root=project), "fedavg-sed0")
    with pytest.raises(UserError, match="Give the path that"):
        find_run(Project.open(root=project), "zzz")


def test_a_fresh_clone_is_told_to_partition_and_not_to_check_out_what_it_never_had(tmp_path: Path):
    (tmp_path / "data.dvc").write_text(record_text("0" * 32 + ".dir", 1, 1))
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    no_scm = true\n")
    with pytest.raises(UserError) as error:
        verify(tmp_path, "digits")
    assert str(error.value).endswith(
        "/data/digits: got no such folder, expected a partition. Run `siloflow partition` to make it from params.yaml."
    )
    with (tmp_path / ".dvc" / "config").open("a") as config:
        config.write("['remote \"store\"']\n    url = /nowhere\n")
    with pytest.raises(UserError, match="dvc pull"):
        verify(tmp_path, "digits")
