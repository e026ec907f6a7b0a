"""What is plainly so in the data is said before any other sentence: an absent class, a constant, shared rows, visits."""

import numpy as np
import pytest

from flows.diagnose import run_diagnosis
from publications.synthetic_pairs.families import FAMILIES, PairRequest
from tasks.execution.task_runner import PlainRunner

pytestmark = pytest.mark.slow

FEATURES = [
    *({"name": name} for name in ("age", "systolic", "creatinine", "urea", "crp")),
    *({"name": name, "kind": "categorical", "categories": [1, 2]} for name in ("sex", "smoker")),
    {"name": "ward", "kind": "categorical", "categories": [1, 2, 3, 4]},
]


def hospitals(kind="alike", number=0):
    return FAMILIES["clinical"].draw(PairRequest(kind, (1000, 1000)), 5, number).clients


def diagnosed(world, first, second, *overrides):
    own = world()
    own.write({"bergen": first, "oslo": second}, features=FEATURES)
    return run_diagnosis(own.open(*overrides), PlainRunner())[1]


def test_a_class_that_a_silo_does_not_have_is_no_other_threshold(world):
    first, (x, y) = hospitals(number=1)
    report = diagnosed(world, first, (x[y != 2], y[y != 2]))
    assert report["data_faults"] == [{"what": "class", "names": [2], "silos": ["oslo"]}]
    assert report["sentences"][0] == 'oslo has no row in which the label is "2".'
    assert 'the label is "2" in 9.1 % of rows against none' in report["sentences"][1]
    assert not report["pairs"][0]["label_or_concept"]
    assert "threshold" not in " ".join([*report["sentences"], *report["next"]])


def test_a_feature_that_is_constant_at_a_silo_is_said_to_be_so_with_its_value(world):
    first, (x, y) = hospitals()
    x[:, 3] = 42
    report = diagnosed(world, first, (x, y))
    assert report["sentences"][0] == "urea is constant at oslo (42)."
    assert "urea varies, against 42 in all rows" in report["sentences"][1]
    assert report["next"][0] == "Check at oslo why urea has one value, such as a default."
    assert "deviations" not in " ".join(report["sentences"])


def test_half_of_a_silo_copied_into_another_is_no_good_start(world):
    first, second = hospitals()
    report = diagnosed(world, first, tuple(np.concatenate([a, b[:500]]) for a, b in zip(second, first, strict=True)))
    assert report["data_faults"] == [{"what": "shared", "names": [], "silos": ["bergen", "oslo"]}]
    assert report["sentences"][0].startswith("bergen and oslo are more alike than chance allows")
    assert not any("good start" in step for step in report["next"])


def test_visits_without_a_unit_are_taken_for_visits_and_not_for_another_unit_of_a_feature(world):
    report = diagnosed(world, *hospitals("alike, visits", 1))
    assert report["persons"] == ["bergen", "oslo"]
    assert report["sentences"][0].startswith(
        "At bergen and oslo, rows agree in several features as visits of one person"
    )
    assert report["next"] == [
        "Name the column of persons or machines under data.source.unit, partition, and diagnose again."
    ]


def test_alike_silos_have_no_fault_and_noise_hides_them(world):
    first, second = hospitals()
    assert diagnosed(world, first, second)["data_faults"] == []
