"""`siloflow stats`: one client's numbers, and a sentence for what is odd about its rows."""

import os
from pathlib import Path

import numpy as np
import pytest

from flows.project.project import Project
from flows.results.serving.client_statistics import client_statistics
from silos.errors import UserError
from silos.storage.partition_store import open_client

FEW = ["method.conditional.statistics=[{kind: mean}, {kind: loadings, components: 400}]"]
SOME = "client: got c99, expected a client of data/digits"


@pytest.fixture
def ask(project):
    return lambda client="c03", method="conditional", overrides=(), output=None: client_statistics(
        Project.open(list(overrides), project, derived=True), client, method, output
    )


def test_the_numbers_are_of_the_clients_training_rows(ask, project):
    silos = Project.open([], project, derived=True).silos
    x, y = open_client(Path(silos.folder), silos.manifest.client("c03"), "train")
    joint = np.cov(np.column_stack([x.reshape(len(x), -1) / 255, np.eye(10)[y]]).T)
    np.testing.assert_allclose(ask()["statistics"], joint[64:, :64].flatten(), atol=1e-6)


def test_the_numbers_are_of_rows_that_are_scaled_as_in_a_run(project):
    rows = [f"{site},{20 + 30 * at + row},{row % 2}" for at, site in enumerate(("north", "south")) for row in range(16)]
    (project / "own.csv").write_text("\n".join(["site,age,outcome", *rows]) + "\n")
    overrides = [
        *("data.name=own", "data.source={kind: table, path: own.csv, label: outcome, client: site}"),
        *("data.scheme=[{kind: column, column: client}]", "model.inputs=standardise"),
        "method.conditional.statistics=[{kind: mean}]",
    ]
    opened = Project.open(overrides, project, derived=True)
    age = {
        name: open_client(Path(opened.silos.folder), opened.silos.manifest.client(name), "train")[0][:, 0].astype(float)
        for name in ("north", "south")
    }
    everybody = np.concatenate([*age.values()])
    for name, own in age.items():
        found = client_statistics(opened, name, "conditional")["statistics"]
        np.testing.assert_allclose(found[0], (own.mean() - everybody.mean()) / everybody.std(), rtol=1e-4)


def test_few_rows_and_constant_features_are_said_by_client(ask):
    found = ask(overrides=FEW)
    rows = found["rows"]
    assert [kind["ok"] for kind in found["kinds"]] == [True, False]
    assert found["notes"][0].startswith(
        f"client c03 has {rows} training rows, expected 401 for the statistic loadings; "
    )
    assert found["notes"][1].endswith(
        "of the 64 features of client c03 are constant: they add nothing to the statistics."
    )


def test_of_loadings_it_says_how_far_halves_of_the_rows_agree(ask):
    """What four components tell together is the same in both halves; of eight the sign of one is not."""
    steady = ask(overrides=["method.conditional.statistics=[{kind: mean}, {kind: loadings, components: 4}]"])
    assert steady["kinds"][0]["agreement"] is None
    assert steady["kinds"][1]["agreement"] > 0.5
    assert not [note for note in steady["notes"] if "halves" in note]
    components = "method.conditional.statistics=[{kind: loadings, sign: ones, components: 8}]"
    flips = ask(overrides=[components])
    assert flips["kinds"][0]["agreement"] < 0.5
    (note,) = [note for note in flips["notes"] if "halves" in note]
    assert note.startswith("the loadings of two halves of client c03's rows agree only to ")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"client": "c99"}, SOME),
        ({"method": "fedavg"}, "method fedavg: got a method that reads no statistics"),
        (
            {"overrides": ["method.conditional.source=zeros"]},
            "method conditional: got a method that reads no statistics",
        ),
        (
            {"overrides": [*FEW, "method.conditional.few_rows=refuse"]},
            "client c03 of .* expected 401 for the statistic loadings. Give it more",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused(ask, asked, said):
    with pytest.raises(UserError, match=said):
        ask(**asked)


def test_nothing_is_written_unless_a_file_is_named(ask, project, tmp_path):
    ask()
    before = set(project.rglob("*"))
    found = ask(output=str(tmp_path / "own.json"))
    assert set(project.rglob("*")) == before
    assert (tmp_path / "own.json").is_file()
    assert found["written"] == str(tmp_path / "own.json")


@pytest.mark.parametrize("output", ["", ".", "..", "/", "runs", "pipe"])
def test_what_is_there_and_no_file_is_never_written_over(ask, project, output, monkeypatch):
    monkeypatch.chdir(project)
    Path("runs").mkdir(exist_ok=True)
    os.mkfifo("pipe")
    with pytest.raises(
        UserError,
        match=f"^--output: got {output!r}, which exists and is not a file, expected a file\\. Name another one\\.$",
    ):
        ask(output=output)
    assert Path("pipe").is_fifo()


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("file/own.json", r"--output: cannot write .*/file: a file has the name of the needed folder"),
        ("x" * 300, r"--output: cannot write .*x: its name is too long"),
        ("/proc/own.json", r"--output: cannot write /proc/own\.json: No such file"),
    ],
)
def test_a_place_that_takes_no_file_is_told(ask, project, output, said, monkeypatch):
    monkeypatch.chdir(project)
    Path("file").touch()
    with pytest.raises(UserError, match=said):
        ask(output=output)


def test_a_link_to_a_file_stays_one(ask, tmp_path):
    (tmp_path / "there.json").touch()
    (tmp_path / "link.json").symlink_to("there.json")
    ask(output=str(tmp_path / "link.json"))
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "there.json").read_bytes()
