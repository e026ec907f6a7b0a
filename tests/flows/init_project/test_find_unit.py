"""`siloflow init` finds the column of patients, and leaves quantities alone."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from flows.init_project.create_project import create_project
from flows.init_project.infer_schema import DataOptions, infer_schema
from flows.project.make_partition import make
from flows.project.project import Project
from silos.errors import UserError
from silos.sources.tabular.column_rules import is_unit_name

PATIENTS, VISITS = 60, 8


def visits(**columns: object) -> pd.DataFrame:
    """480 visits of 60 patients at two hospitals."""
    rng, patient = np.random.default_rng(0), np.repeat(np.arange(PATIENTS), VISITS)
    held = {
        "hospital": np.where(patient % 2, "north", "south"),
        "age": 30 + patient,
        "crp": rng.normal(size=len(patient)).round(2),
        "outcome": rng.choice(["ill", "well"], len(patient)),
    }
    return pd.DataFrame({**held, **columns})


PATIENT = np.repeat(np.arange(PATIENTS), VISITS)
SHARED = np.where(PATIENT < 38, PATIENT, np.arange(PATIENTS * VISITS))
"""38 values that repeat, two of them at both hospitals, and many that occur once."""
SHARED[4:8], SHARED[12:16] = 1, 0


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("patient_id", PATIENT),
        ("Subject", [f"s{each}" for each in PATIENT]),
        ("id", PATIENT),
        ("machine no", PATIENT + 10_000),
        ("who", PATIENT * 7 + 3),  # by the silo of each value
        ("who", [f"w{each}" for each in PATIENT]),
    ],
)
def test_the_column_of_patients_is_the_unit(tmp_path, name, values):
    file = tmp_path / "visits.csv"
    visits(age=np.random.default_rng(1).integers(20, 90, len(PATIENT)), **{name: values}).to_csv(file, index=False)
    found = infer_schema(file, DataOptions())
    assert found.source.unit == name
    assert any(note.startswith(f"unit {name} (") and "60 values in 480 rows" in note for note in found.guessed)
    assert len(np.unique(found.rows.unit)) == PATIENTS
    assert [feature.name for feature in found.rows.features] == ["age", "crp"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("pulse", np.random.default_rng(1).integers(40, 140, PATIENTS * VISITS)),  # a quantity
        ("ward", np.random.default_rng(1).choice(list("abcdefghijklmnop"), PATIENTS * VISITS)),
        ("patient", np.arange(PATIENTS * VISITS) % 3),  # few values
        ("patient", np.random.default_rng(1).normal(size=PATIENTS * VISITS).round(1)),
        ("visit_id", np.arange(PATIENTS * VISITS)),  # another in each row
        ("who", SHARED),
    ],
)
def test_other_columns_are_no_unit(tmp_path, name, values):
    ages = np.random.default_rng(2).integers(20, 90, len(PATIENT))
    visits(age=ages, **{name: values}).to_csv(tmp_path / "visits.csv", index=False)
    assert infer_schema(tmp_path / "visits.csv", DataOptions()).source.unit is None


def test_the_option_names_it_and_an_unknown_one_is_refused(tmp_path):
    file = tmp_path / "visits.csv"
    visits(ward=PATIENT % 16).to_csv(file, index=False)
    assert infer_schema(file, DataOptions(unit="ward")).source.unit == "ward"
    with pytest.raises(
        UserError, match=r"--unit: got who, expected a column of visits\.csv\. Choose one of 'hospital'"
    ):
        infer_schema(file, DataOptions(unit="who"))


def test_the_array_of_an_archive_is_found(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(480, 3)), np.arange(480) % 2
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=PATIENT % 2, patient=PATIENT)
    found = infer_schema(tmp_path / "mine.npz", DataOptions())
    assert found.source.unit == "patient"
    assert len(np.unique(found.rows.unit)) == PATIENTS


def test_it_is_written_and_the_splits_follow_it(tmp_path):
    visits(patient_id=PATIENT).to_csv(tmp_path / "visits.csv", index=False)
    made = create_project(tmp_path / "study", tmp_path / "visits.csv", DataOptions())
    written = yaml.safe_load(Path(made["folder"], "params.yaml").read_text(encoding="utf-8"))
    assert written["data"]["source"]["unit"] == "patient_id"
    project = Project.open(root=Path(made["folder"]))
    assert "unit: 480 rows of 60 units, each whole in training, validation or test" in make(project)["notes"]


def test_names_of_patients_are_known_in_many_forms():
    for name in ("Patient", "patient_id", "PatientID", "patient-no", "ID", "subject number", "mrn", "plant_id"):
        assert is_unit_name(name), name
    for name in ("age", "covid", "paid", "doctor_id", "visit", "caseload", "outcome", "no"):
        assert not is_unit_name(name), name


@pytest.mark.parametrize(("name", "is_unit"), [("patient_id", True), ("who", False)])
def test_a_column_with_gaps_is_the_unit_only_by_its_name(tmp_path, name, is_unit):
    file = tmp_path / "visits.csv"
    table = visits(
        age=np.random.default_rng(1).integers(20, 90, len(PATIENT)), **{name: [f"w{each}" for each in PATIENT]}
    )
    table.loc[3, name] = None
    table.to_csv(file, index=False)
    assert infer_schema(file, DataOptions()).source.unit == (name if is_unit else None)
