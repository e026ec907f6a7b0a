"""`siloflow init` finds label, silo and the user's own split, and asks or says so where the guess is unsure."""

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flows.init_project.create_project import create_project
from flows.init_project.infer_schema import DataOptions, infer_schema
from flows.project.make_partition import make
from flows.project.project import Project
from silos.errors import UserError

ROWS = 240


def table(tmp_path: Path, **columns: object) -> Path:
    """A file of these columns, of which `None` is drawn: a number."""
    rng = np.random.default_rng(0)
    drawn = {name: rng.normal(size=ROWS).round(2) if each is None else each for name, each in columns.items()}
    pd.DataFrame(drawn).to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def draw(*values: object) -> np.ndarray:
    seed = sum(map(ord, repr(values)))  # other values are drawn independently
    return np.random.default_rng(seed).choice(np.array(values), ROWS)


PARKS = {"park": draw("A", "B", "C"), "turbine_model": draw("v1", "v2"), "wind_speed": None, "temp": None}
VISITS = {"hospital": draw("n", "s"), "sex": draw("f", "m"), "age": None}


@pytest.mark.parametrize(
    ("columns", "label", "client"),
    [
        ({**VISITS, "readmitted": draw("yes", "no")}, "readmitted", "hospital"),
        ({**PARKS, "power_kw": None}, "power_kw", "park"),
        ({"clinic": draw(*range(12)), "severity": draw(0, 1), "age": None}, "severity", "clinic"),
        ({"windPark": draw("A", "B"), "Power": None, "speed": None, "model": draw("v1", "v2")}, "Power", "windPark"),
        ({**VISITS, "hba1c": None, "visit_id": np.arange(ROWS)}, "hba1c", "hospital"),  # the last that is no key
        ({**VISITS, "outcome": draw("a", "b"), "severity": draw(0, 1)}, "outcome", "hospital"),
        ({"region": draw("a", "b"), "clinic": draw("c", "d"), "x": None, "y": None}, "y", "clinic"),
        ({**VISITS, "grade": draw(1, 2, 3), "outcome_30d": draw(0, 1), "bmi": None}, "outcome_30d", "hospital"),
        ({**VISITS, "outcome_30d": draw(0, 1), "grade": draw(1, 2, 3)}, "outcome_30d", "hospital"),
        ({**VISITS, "price": None, "died": draw(0, 1), "bmi": None}, "died", "hospital"),
        ({"site": draw("a", "b"), "pos_x": None, "pos_y": None, "defect": draw(0, 1)}, "defect", "site"),
        ({**VISITS, "first_class": draw(0, 1), "amount": None}, "amount", "hospital"),
        ({"machine": draw(*"ABCD"), "material": draw("alu", "steel"), "load": None, "power": None}, "power", "machine"),
        ({"machine_id": draw(1, 2, 3), "load": None, "failure": draw(0, 1)}, "failure", "machine_id"),
        ({"machine": draw(*"ABCD"), "plant": draw("n", "s"), "failure": draw(0, 1)}, "failure", "plant"),
        ({"machine_type": draw("a", "b"), "plant": draw("n", "s"), "failure": draw(0, 1)}, "failure", "plant"),
        ({"shop_type": draw("a", "b"), "shop": draw("n", "s"), "demand": None}, "demand", "shop"),
    ],
)
def test_label_and_silo_are_found_by_words_of_their_names_and_by_their_values(tmp_path, columns, label, client):
    source = infer_schema(table(tmp_path, **columns), DataOptions()).source
    assert (source.label, source.client) == (label, client)


def test_an_unsure_label_is_said_to_be_with_the_options_that_change_it(tmp_path):
    guessed = infer_schema(table(tmp_path, **VISITS, hba1c=None), DataOptions()).guessed
    assert guessed[0] == "label hba1c (the last column that can be one; if it is another, add `--label COLUMN --force`)"


def test_silos_are_not_guessed_of_two_regions_or_of_texts_without_such_a_name(tmp_path):
    both = table(tmp_path, region=draw("a", "b"), station=draw("c", "d"), x=None, y=None)
    with pytest.raises(UserError, match=r"region and station may each be the client. Name it with --client"):
        infer_schema(both, DataOptions())
    texts = table(tmp_path, sex=draw("f", "m"), x=None, y=None)
    with pytest.raises(UserError, match=r"no column clearly is the client.*Few values with many rows each have sex"):
        infer_schema(texts, DataOptions())


def test_a_column_of_few_rows_a_value_is_no_silo(tmp_path):
    with pytest.raises(UserError, match="no column clearly is the client"):
        infer_schema(table(tmp_path, city=draw(*(f"c{at}" for at in range(100))), x=None, y=None), DataOptions())


def test_only_unclear_roles_are_asked_for_with_a_guess(tmp_path):
    asked = []

    def ask(role: str, columns: Sequence[str], guess: str | None) -> str:
        asked.append((role, tuple(columns), guess))
        return {"label": "age", "client": "sex"}[role]

    infer_schema(table(tmp_path, **VISITS, readmitted=draw(0, 1)), DataOptions(), ask)
    assert asked == []
    source = infer_schema(table(tmp_path, sex=draw("f", "m"), age=None, hba1c=None), DataOptions(), ask).source
    assert asked == [("client", ("sex", "age", "hba1c"), "sex"), ("label", ("age", "hba1c"), "hba1c")]
    assert (source.label, source.client) == ("age", "sex")


def test_the_users_own_split_is_used_and_is_no_feature(tmp_path):
    split = draw("train", "Train", "test", "val")
    created = create_project(tmp_path / "study", table(tmp_path, **VISITS, split=split, y=draw(0, 1)), DataOptions())
    assert "split split (by its values: " in ", ".join(created["guessed"])
    made = make(Project.open(root=tmp_path / "study"))
    train, test, validation = (int((np.char.lower(split) == name).sum()) for name in ("train", "test", "val"))
    assert made["rows"] == {"train": train, "validation": validation, "test": test}
    assert f"split: split, {train} train, {validation} validation, {test} test" in made["notes"]
    assert any(note.startswith("features: 3 = ") for note in made["notes"])


@pytest.mark.parametrize(
    ("columns", "split"),
    [
        ({"fold": draw("train", "test")}, "fold"),  # whatever its name
        ({"split": draw(0, 1)}, "split"),
        ({"part": draw(0, 1)}, None),
        ({"split": draw("train", "val")}, None),  # no test rows
        ({"split": draw("train", "bus")}, None),
    ],
)
def test_a_split_is_known_by_its_values_and_needs_test_rows(tmp_path, columns, split):
    found = infer_schema(table(tmp_path, **VISITS, **columns, y=draw(0, 1)), DataOptions())
    assert found.source.split == split
    name = next(iter(columns))
    without_test = set(columns[name].tolist()) == {"train", "val"}
    assert (name in found.source.drop) == without_test
    assert any("it marks no test rows" in note for note in found.guessed) == without_test


def test_patients_in_several_of_the_users_splits_are_said_to_be_and_stop_nothing(tmp_path):
    columns = {**VISITS, "patient_id": np.arange(ROWS) // 4, "split": draw("train", "test"), "y": draw(0, 1)}
    created = create_project(tmp_path / "study", table(tmp_path, **columns), DataOptions())
    assert any(
        note.startswith("no unit, since ") and "patient_id have rows in several splits" in note
        for note in created["guessed"]
    )
    assert make(Project.open(root=tmp_path / "study"))["rows"]["test"] == (columns["split"] == "test").sum()


def test_missing_values_are_treated_as_requested_and_rows_without_a_label_cannot_be_filled_in(tmp_path):
    age = pd.Series(np.arange(ROWS)).where(np.arange(ROWS) % 3 > 0)
    file = table(tmp_path, **{**VISITS, "age": age}, y=draw(0, 1))
    for missing, value, rows in (
        ("drop_rows", "drop_rows", 160),
        ("zero", {"fill": 0}, ROWS),
        ("mean", {"fill": "mean"}, ROWS),
    ):
        found = infer_schema(file, DataOptions(missing=missing))
        assert found.source.model_dump(mode="json")["missing"] == value
        assert len(found.rows.y) == rows
        assert found.missing[0].partition("(")[2].startswith("as requested")
    label = pd.Series(draw("a", "b")).where(np.arange(ROWS) != 5)
    with pytest.raises(UserError, match="'y' has no value in 1 of 240 rows"):
        infer_schema(table(tmp_path, **{**VISITS, "age": age}, y=label), DataOptions(missing="mean"))


def test_a_number_to_predict_is_no_class_that_dropped_rows_could_lose(tmp_path):
    age = pd.Series(np.arange(150)).where(~np.isin(np.arange(150), [3, 10]))
    site, power = np.arange(150) % 3, np.arange(150) / 8
    found = infer_schema(table(tmp_path, age=age, site=site, power_kw=power), DataOptions())
    assert found.source.missing == "drop_rows"
    assert "(chosen, since 1.3% of the rows are at most a tenth: `missing: drop_rows`)" in found.missing[0]


def test_a_repetition_writes_params_again_and_keeps_the_rest(tmp_path):
    file, study = table(tmp_path, **VISITS, readmitted=draw(0, 1)), tmp_path / "study"
    create_project(study, file, DataOptions())
    make(Project.open(root=study))
    first, version = (study / "params.yaml").read_text(), (study / "data.dvc").read_text()
    (study / ".gitignore").write_text("/mine")
    with pytest.raises(UserError, match=r"which is a project already.*or add --force"):
        create_project(study, file, DataOptions(label="sex"))
    again = create_project(study, file, DataOptions(label="sex"), force=True)
    assert again["replaced"] == "params.yaml.old"
    assert (study / "params.yaml.old").read_text() == first
    assert Project.open(root=study).params.data.source.label == "sex"
    assert (study / "data.dvc").read_text() == version
    assert (study / ".gitignore").read_text().splitlines()[0] == "/mine"
    assert {"/private/", "/table.csv"} <= {*(study / ".gitignore").read_text().splitlines()}
    assert create_project(study, file, DataOptions(label="sex"), force=True)["replaced"] is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"which contains notes\.txt"):
        create_project(tmp_path / "other", file, DataOptions(), force=True)


@pytest.mark.slow
def test_on_a_terminal_init_asks_until_a_column_is_named_and_an_empty_answer_takes_the_guess(tmp_path):
    table(tmp_path, sex=draw("f", "m"), smoker=draw("never", "ex"), age=None, hba1c=None)
    command = [str(Path(sys.executable).with_name("siloflow")), "init", "study", "--data", "table.csv"]
    ours, theirs = pty.openpty()
    child = subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, answers = "", [b"nothing\n", b"smoker\n", b"\n"]
    with suppress(OSError):  # the child has ended
        while part := os.read(ours, 4096):
            shown += part.decode()
            if answers and shown.endswith("]: "):
                os.write(ours, answers.pop(0))
    os.close(ours)
    assert child.wait() == 0, shown
    assert shown.count("--client [sex]: ") == 2
    assert "got nothing, expected one of these columns." in shown
    assert "--label [hba1c]: " in shown
    source = Project.open(root=tmp_path / "study").params.data.source
    assert (source.client, source.label) == ("smoker", "hba1c")
