"""`siloflow show` shows the rows that the data version says, and no others."""

from pathlib import Path

import numpy as np
import pytest

from flows.diagnosis import describe_data
from flows.diagnosis.reported_overview import reported_overview
from flows.project.project import Project
from silos.data_overview import opened_clients, overview
from silos.data_params import DataParams
from silos.errors import UserError
from silos.storage.partition_store import write


@pytest.mark.parametrize("late", [False, True])
def test_rows_that_are_no_more_what_the_version_says_are_not_shown(project, late, monkeypatch):
    opened = Project.open(root=project, derived=True)
    file = Path(opened.silos.folder) / "c03.safetensors"

    def spoil():
        held = file.read_bytes()
        file.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))

    if late:  # while they are read
        look = describe_data.examples
        monkeypatch.setattr(describe_data, "examples", lambda *asked: (look(*asked), spoil())[0])
    else:
        spoil()
    with pytest.raises(UserError, match=r"c03\.safetensors, with the rows of client c03, differs from data version"):
        describe_data.overview_with_figure(opened)
    assert not (opened.store.runs / "show-digits.png").exists()


@pytest.mark.parametrize(
    ("shape", "classes", "drawn"),
    [((8, 8, 5), 3, True), ((3, 8, 8, 3), 3, False), ((9,), 3, False), ((8, 8), 40, False)],
)
def test_examples_are_rows_of_pictures_that_there_are(tmp_path, shape, classes, drawn):
    """Neither videos nor rows of a table, nor clients that have none of the first classes."""
    y = np.arange(40) % classes if drawn else 39 - np.arange(40) % 3
    y = np.append(y, range(classes))
    client = ["a"] * 40 + ["b"] * classes
    np.savez(tmp_path / "own.npz", x=np.zeros((len(y), *shape), np.uint8), y=y, client=client)
    held = {
        "name": "own",
        "seed": 0,
        "source": {"kind": "npz", "path": "own.npz"},
        "split": {"validation": 0, "test": 0.2},
    }
    data = DataParams.model_validate({**held, "scheme": [{"kind": "column", "column": "client"}]})
    manifest = write(tmp_path / "silos", data, tmp_path)
    assert bool(describe_data.examples(manifest, tmp_path / "silos", manifest.clients[:1])) == drawn


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_what_silos_report_is_the_overview_of_their_training_rows(task, world):
    rng, rows = np.random.default_rng(0), {}
    for at, count in enumerate((50, 80, 130)):
        x = rng.normal(at, 1 + at, (count, 2))
        y = (rng.random(count) < 0.3 + 0.2 * at).astype(int) if task == "classification" else x[:, 0] * 3
        rows[f"silo{at}"] = (x, y)
    silos_of = world()
    silos_of.write(rows, task)
    project = silos_of.open()
    manifest = project.silos.manifest
    found, refused = reported_overview(project, opened_clients(manifest))
    read = overview(manifest, Path(project.silos.folder))
    assert not refused
    for name in ("label_shares", "label_spread", "feature_spread", "target_spread"):
        assert found[name] == (read[name] and pytest.approx(read[name], rel=1e-3)), name
    for one, other in ((found["laws"], read["laws"]), (found["clients"], read["clients"])):
        for reported, counted in zip(one, other, strict=True):
            assert reported["label_shares"] == pytest.approx(counted["label_shares"])
    target = read["laws"][0]["target"]
    assert found["laws"][0]["target"] == (target and pytest.approx(target))
