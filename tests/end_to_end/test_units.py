"""A CSV with eight visits of each patient: found by `init`, kept whole by `partition`, counted once by `diagnose`."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from silos.storage.manifest import read_manifest
from silos.storage.partition_store import open_units

pytestmark = pytest.mark.slow

PATIENTS, VISITS = 120, 8


@pytest.fixture(scope="module")
def study(
    tmp_path_factory: pytest.TempPathFactory, databases: Path, server: str, folder_at: Callable[..., Any]
) -> dict[str, Any]:
    """What each command says of two hospitals that are alike."""
    home = tmp_path_factory.mktemp("patients")
    rng, patient = np.random.default_rng(0), np.repeat(np.arange(PATIENTS), VISITS)
    own = rng.normal(size=(PATIENTS, 2))[patient]
    visits = pd.DataFrame(
        {
            "patient_id": [f"p{each:03}" for each in patient],
            "hospital": np.where(patient % 2, "north", "south"),
            "crp": (own[:, 0] + 0.4 * rng.normal(size=len(patient))).round(3),
            "lactate": (own[:, 1] + 0.4 * rng.normal(size=len(patient))).round(3),
        }
    )
    visits["outcome"] = np.where(own[:, 0] + rng.normal(size=PATIENTS)[patient] > 0, "ill", "well")
    visits.to_csv(home / "visits.csv", index=False)
    made = folder_at(home, server).type("init", "study", "--data", "visits.csv", "--json", alone=True).json
    folder = folder_at(home / "study", server)
    (folder.path / "runs").mkdir()
    shutil.copy(databases / "mlflow.db", folder.path / "runs")
    partitioned = folder.type("partition", "--json").json
    (policy,) = (folder.path / "private").glob("*/owner.yaml")  # 36 patients have too few for two cells of ten
    policy.write_text(policy.read_text().replace("least_cell: 10", "least_cell: 1"))
    return {
        "folder": folder,
        "init": made,
        "partition": partitioned,
        "diagnose": folder.type("diagnose", "--set", "diagnose.second_look=true", "--json").json,
    }


def test_init_finds_patients_and_says_so(study: dict[str, Any]) -> None:
    assert "unit patient_id (by its name: 120 values in 960 rows)" in study["init"]["guessed"]
    written = (study["folder"].path / "params.yaml").read_text(encoding="utf-8")
    comment = "the column of patients, plants or machines, whose rows stay in one split"
    assert re.search(rf"^    unit: patient_id +# {comment}$", written, re.M)


def test_no_patient_is_in_two_splits_on_disk(study: dict[str, Any]) -> None:
    assert "unit: 960 rows of 120 units, each whole in training, validation or test" in study["partition"]["notes"]
    folder = study["folder"].path / "data" / "visits"
    manifest, seen = read_manifest(folder), list[set[int]]()
    for split in ("train", "validation", "test"):
        unit = open_units(folder, manifest.clients, split)
        assert unit is not None
        seen.append(set(unit.tolist()))
        assert len(unit) == VISITS * len(seen[-1])
    assert sum(map(len, seen)) == len(set().union(*seen)) == PATIENTS
    assert study["partition"]["rows"] == {"train": 576, "validation": 144, "test": 240}
    assert not any(b"p001" in path.read_bytes() for path in folder.iterdir())


def test_hospitals_that_are_alike_do_not_differ_and_rows_count_as_patients(study: dict[str, Any]) -> None:
    found = study["diagnose"]
    assert {"feature pairs", "interactions"} <= {
        entry["what"] for entry in found["not_compared"] if entry["why"] == "rows are counted by unit"
    }
    (pair,) = found["pairs"]
    assert (found["unit"], found["repeats"]) == ("patient_id", [])
    assert (pair["types"], pair["undetermined"]) == ([], False)
    assert all(36 <= rows < 288 for rows in pair["rows"])


def test_methods_are_compared_on_whole_patients(study: dict[str, Any]) -> None:
    quick = ("--set", "training.rounds=2", "--seeds", "0", "--json")
    compared = study["folder"].type("compare", "local_only", "fedavg", *quick).json
    (paired,) = compared["paired"]
    assert compared["failed"] == []
    assert paired["low"] <= paired["difference"] <= paired["high"]


def test_without_the_unit_the_column_that_was_dropped_is_named(study: dict[str, Any]) -> None:
    dropped = "data.source={kind: table, path: visits.csv, label: outcome, client: hospital, drop: [patient_id]}"
    refused = study["folder"].type("partition", "--set", dropped, code=2).err
    assert (
        "data.source.unit: got None, expected patient_id; data.source.drop: got ['patient_id'], expected []" in refused
    )
    assert "private/visits/owner.yaml" in refused
    owner = study["folder"].path / "private" / "visits" / "owner.yaml"
    owner.write_text(owner.read_text().replace("may_differ: []", "may_differ: [source]"))
    made = study["folder"].type("partition", "--set", dropped, "--json").json
    notes = [note for note in made["notes"] if note.startswith("rows may not be independent")]
    assert len(notes) == 1
    assert notes[0].startswith("rows may not be independent: patient_id has 120 values in 960 rows")
    assert made["data_version"] != study["partition"]["data_version"]
    found = study["folder"].type("diagnose", "--set", dropped, "--json").json
    (by_row,) = found["pairs"]
    assert (found["unit"], by_row["rows"]) == (None, [288, 288])
    assert by_row["types"] != []
