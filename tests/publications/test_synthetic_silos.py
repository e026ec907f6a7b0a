"""Silos of digits whose shift is known: what is said of their pairs, as cells of the page of shift types."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from flows.project.project import Project
from publications import verdict_trials
from publications.compare_with_published import table_of_records
from publications.fill_sweep import estimate, fill
from publications.sweep import Sweep
from publications.verdict_trials import diagnose_silos, run_trials
from silos.errors import UserError
from tasks.diagnosis import compare_silos

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
SEED = 7  # none of the page's
TURNED = ["data.source={kind: digits}", "data.scheme=[{kind: equal, clients: 3}, {kind: rotation, angles: [0, 45, 0]}]"]


def cell(truth: str, pairs: str, **more):
    return {"about": "w", "set": TURNED, "silos": {"truth": truth, "pairs": pairs}, **more}


TURNS = {
    "title": "t",
    "source": "s",
    "known_errors": "none",
    "seeds_are": "data",
    "cells": {"turned": cell("feature", "across"), "not": cell("none", "within")},
    "confusions": {"all": {"cells": ["turned", "not"]}},
    "scales": {"cpu": {"seeds": [1, 2]}},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"tables": {"turns": TURNS}}, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A cell of the page to what is said of its pairs."""
    root = tmp_path_factory.mktemp("images")
    shutil.copy(CHECKOUT / "params.yaml", root)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        sweep = Sweep("shift-types", "images", "cpu", seeds=[SEED])
        return lambda cell: run_trials(sweep, cell, SEED)


@pytest.mark.parametrize(
    ("cell", "truth", "pairs", "fewest"),
    [
        ("rotation", "feature", 27, 26),
        ("rotation-alike", "none", 9, 9),
        ("noise", "feature", 27, 20),
        ("noise-alike", "none", 9, 9),
        ("permuted", "concept", 27, 26),
        ("permuted-alike", "none", 9, 9),
        ("skew-and-rotation", "feature+label", 27, 14),
        ("alike", "none", 36, 35),
    ],
)
def test_a_known_shift_of_digits_is_named_of_the_pairs_that_have_it_and_of_no_other(cell, truth, pairs, fewest, images):
    record = images(cell)
    assert record["pairs"] == pairs
    assert record["said"]["guarded"].get(truth, 0) >= fewest


def test_silos_that_lack_classes_differ_in_labels_or_are_too_small_to_be_judged(images):
    said = images("skew")["said"]["guarded"]
    assert said["label"] >= 18
    assert said["label"] + said.get("undetermined", 0) >= 34


def test_of_digits_turned_far_the_feature_shift_is_always_named_and_a_concept_shift_at_times(images):
    said = images("far-rotation")["said"]["guarded"]
    assert 14 <= said["feature"] < 27
    assert all(verdict.startswith("feature") for verdict in said)
    assert sum(count for verdict, count in said.items() if verdict.endswith("concept")) == 27 - said["feature"]
    assert images("far-rotation-alike")["said"] == {"guarded": {"none": 9}}


def test_cells_that_share_their_silos_diagnose_them_once_and_leave_nothing_but_records_and_partitions(
    folder, monkeypatch
):
    asked, examined = [], verdict_trials.run_diagnosis

    def counted(project, runner):
        asked.append(project.params.data.seed)
        return examined(project, runner)

    monkeypatch.setattr(verdict_trials, "run_diagnosis", counted)
    sweep = Sweep("tiny.yaml", "turns", "cpu")
    fill(sweep)
    assert asked == [1, 2]
    assert sweep.finished
    kept = json.loads((folder / "docs/results/tiny.json").read_text())["turns"]["cpu"]
    assert {name: [record["pairs"] for record in records] for name, records in kept.items()} == {
        "turned": [2, 2],
        "not": [1, 1],
    }
    found = table_of_records(sweep)
    assert {row["cell"]: (row["truth"], row["ours"]["guarded"]["right"]) for row in found["rows"]} == {
        "turned": ("feature", 4),
        "not": ("none", 2),
    }
    assert found["confusions"]["all"]["false_alarms"]["guarded"]["of"] == 2
    assert not (folder / "private").exists()
    assert not (folder / "cache" / "diagnosed").exists()
    assert not list((folder / "runs").glob("reproduce-*"))


def test_another_verdict_can_be_asked_for_and_is_kept_under_its_name(folder):
    fill(Sweep("tiny.yaml", "turns", "cpu", seeds=[1], overrides=["diagnose.verdict=paper"]))
    (record,) = json.loads((folder / "docs/results/tiny.json").read_text())["turns"]["cpu"]["not"]
    assert record["set"] == ["diagnose.verdict=paper"]
    assert record["said"].keys() == {"paper"}
    assert not Sweep("tiny.yaml", "turns", "cpu", seeds=[1]).finished


def test_an_estimate_diagnoses_one_seed_and_records_nothing(folder):
    assert estimate(Sweep("tiny.yaml", "turns", "cpu"))["seconds"].keys() == {"turned", "not"}
    assert not (folder / "docs").exists()


def test_silos_whose_groups_are_compared_are_no_pairs_and_refused(folder, monkeypatch):
    monkeypatch.setattr(compare_silos, "MOST_PAIRS", 2)
    with pytest.raises(UserError, match="3 silos are compared as groups, and not in pairs; make fewer silos"):
        diagnose_silos(Project.open(root=folder), TURNED, across=True)
