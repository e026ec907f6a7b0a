"""What a report says of pairs of features, of far values, and of what was not compared."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flows.diagnose import run_diagnosis
from flows.diagnosis.data_faults import data_faults
from silos.privacy.owner_file import OWNER_FILE
from tasks.execution.task_runner import PlainRunner


def rows(seed, count=300, features=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(100, 15, size=(count, features))
    return x, (rng.random(count) < 0.4).astype(np.int64)


def diagnosed(world, silos, *overrides, single_rows=False, **more):
    """single_rows: whether the owner allows cells of one row."""
    own = world()
    own.write(silos, **more)
    if single_rows:
        own.allow_cells_of_one_row()
    return run_diagnosis(own.open(*overrides), PlainRunner())[1]


def entries(found, what, why=""):
    return [entry for entry in found["not_compared"] if entry["what"] == what and why in entry["why"]]


def test_a_feature_without_a_value_is_a_fault_of_silos_only_if_others_have_values_of_it():
    absent = np.array([[True, False], [True, True], [True, False]])
    comparison: Any = SimpleNamespace(clients=("a", "b", "c"), missing=SimpleNamespace(absent=absent))
    layout = SimpleNamespace(names=("age", "crp"), targets=(0.5,))
    of_pictures: Any = SimpleNamespace(layout=layout, pictures="mean")
    unused: Any = None
    found = data_faults(comparison, of_pictures, unused, [], by_unit=False)
    assert found == [{"what": "empty", "names": ["crp"], "silos": ["b"]}]


def test_copied_rows_are_said_to_be_missed_only_if_the_two_largest_silos_have_too_few_values(world):
    large = {"a": rows(0, 900), "b": rows(1, 800)}
    small = {"c": rows(2, 50), "d": rows(3, 50)}
    assert not entries(diagnosed(world, {**small, **large}), "shared rows")
    coarse = {name: (np.where(x > 100, 110.0, 90.0), y) for name, (x, y) in large.items()}
    assert entries(diagnosed(world, coarse), "shared rows")


def test_a_code_for_missing_values_is_listed_and_hides_no_shift_of_the_others(world):
    """A tenth of the values of both silos is -999; the others differ by two thirds of a deviation."""
    (x, y), (other_x, other_y) = rows(0), rows(1)
    other_x[:, 1] += 10
    x[:30, 1] = other_x[:30, 1] = -999
    found = diagnosed(world, {"a": (x, y), "b": (other_x, other_y)})
    assert found["pairs"][0]["types"] == ["feature"]
    assert next(iter(found["pairs"][0]["features"])) == "x1"
    listed = entries(found, "values")
    assert [(entry["names"], entry["rows"]) for entry in listed] == [(["x1"], {"a": [30, 0], "b": [30, 0]})]


def test_a_code_beside_values_of_a_wider_range_is_listed_and_looked_at_first(world):
    (x, y), (other_x, other_y) = rows(0, 370), rows(1, 370)
    x[:, 2], other_x[:, 2] = np.exp(x[:, 2] / 15), np.exp(other_x[:, 2] / 15)  # up to some 10,000
    x[:11, 2] = -999
    found = diagnosed(world, {"a": (x, y), "b": (other_x, other_y)})
    assert [(entry["names"], entry["rows"]) for entry in entries(found, "values")][-1] == (["x2"], {"a": [11, 0]})
    assert any(
        step.startswith("Look at the values of x2 at a that lie apart, below all others. ") for step in found["next"]
    )


@pytest.mark.parametrize("code", [-1, -9])
def test_a_code_of_one_digit_is_listed_and_looked_at_first(world, code):
    """No gap separates it: the others are 1 and more, up to some hundreds."""
    (x, y), (other_x, other_y) = rows(0, 370), rows(1, 370)
    x[:, 2], other_x[:, 2] = 1 + np.exp(x[:, 2] / 30), 1 + np.exp(other_x[:, 2] / 30)
    x[:20, 2] = code
    found = diagnosed(world, {"a": (x, y), "b": (other_x, other_y)})
    assert [(entry["names"], entry["rows"]) for entry in entries(found, "values")][-1] == (["x2"], {"a": [20, 0]})
    assert any(
        step.startswith("Look at the values of x2 at a that lie apart, below all others. ") for step in found["next"]
    )
    assert not any("far from all others" in line for line in [*found["sentences"], *found["notes"], *found["next"]])


def test_a_value_typed_once_makes_no_bins_too_wide_and_is_listed(world):
    (x, y), (other_x, other_y) = rows(0), rows(1)
    other_x[:, 1] += 10
    x[5, 1] = 1e9
    silos = {"a": (x, y), "b": (other_x, other_y)}
    found = diagnosed(world, silos, single_rows=True)
    assert found["pairs"][0]["types"] == ["feature"]
    assert entries(found, "values")[0]["rows"] == {"a": [0, 1]}


def test_a_value_typed_once_makes_no_bins_too_wide_and_is_not_told_if_cells_have_ten_rows(world):
    (x, y), (other_x, other_y) = rows(0), rows(1)
    other_x[:, 1] += 10
    x[5, 1] = 1e9
    found = diagnosed(world, {"a": (x, y), "b": (other_x, other_y)})
    assert found["pairs"][0]["types"] == ["feature"]
    assert entries(found, "values") == []


def test_a_class_of_eight_rows_in_each_silo_is_listed_and_an_absent_one_is_not(world):
    silos = {name: rows(at) for at, name in enumerate("ab")}
    for _, y in silos.values():
        y[:8] = 2
    silos["c"] = rows(2)
    found = diagnosed(world, silos)
    assert [(entry["names"], entry["silos"]) for entry in entries(found, "class")] == [([2], ["a", "b"])]


def test_targets_that_are_fifty_higher_with_equal_inputs_are_another_rule(world):
    silos = {}
    for name, added in (("a", 0), ("b", 50)):
        x, _ = rows(len(silos))
        silos[name] = x, x[:, 0] / 15 + np.random.default_rng(len(silos)).normal(size=len(x)) + added
    found = diagnosed(world, silos, task="regression")
    assert found["pairs"][0]["types"] == ["concept"]
    assert entries(found, "targets")


def test_a_target_typed_wrongly_is_listed(world):
    silos = {}
    for name in "ab":
        x, _ = rows(len(silos))
        silos[name] = x, x[:, 0] / 15 + np.random.default_rng(len(silos)).normal(size=len(x))
    silos["b"][1][7] += 5000
    found = diagnosed(world, silos, single_rows=True, task="regression")
    assert found["pairs"][0]["types"] == []
    assert [(entry["names"], entry["rows"]) for entry in entries(found, "values")] == [(["the target"], {"b": [0, 1]})]


def test_features_that_go_together_differently_are_in_the_report(world):
    (x, y), (other_x, other_y) = rows(2), rows(3)
    x[:, 1] += 2 * (x[:, 0] - 100)
    other_x[:, 1] -= 2 * (other_x[:, 0] - 100)
    found = diagnosed(world, {"a": (x, y), "b": (other_x, other_y)})
    pair = found["pairs"][0]
    assert (pair["types"], pair["together"][0]["features"]) == (["feature"], ["x0", "x1"])
    assert pair["together"][0]["first"] > 0.8
    assert pair["together"][0]["second"] < -0.8
    assert pair["effect_on_prediction"] == "none seen"
    assert pair["shared_model_loss"].keys() == {"first", "second"}


@pytest.mark.parametrize(
    ("override", "why"), [("diagnose.noise={epsilon: 4}", "noise"), ("diagnose.verdict=moments", "guarded")]
)
def test_with_noise_or_another_verdict_no_pair_of_features_is_asked_for_and_that_is_listed(world, override, why):
    features = [{"name": f"x{at}", "low": 0, "high": 200} for at in range(3)]
    found = diagnosed(world, {"a": rows(0), "b": rows(1)}, override, features=features)
    assert "together" not in found["pairs"][0]
    assert entries(found, "feature pairs", why)
    assert entries(found, "interactions", why)


def test_classes_with_too_few_rows_for_pairs_are_listed(world):
    silos = {name: rows(at) for at, name in enumerate("ab")}
    silos["b"][1][:] = np.arange(300) < 20
    found = diagnosed(world, silos)
    assert entries(found, "feature pairs", "of class 1")[0]["silos"] == ["b"]


def test_under_moments_far_values_are_replaced_and_the_screen_says_so(world):
    """The mean of 300 values would tell the one of 1e9; of those that are as usual it tells the same."""
    (x, y), other = rows(0), rows(1)
    x[5, 1] = 1e9
    found = diagnosed(world, {"a": (x, y), "b": other}, "diagnose.verdict=moments")
    assert entries(found, "values", "those far from all others")[0]["names"] == []
    assert any("Values far from all others, such as typing errors, count as" in line for line in found["notes"])
    assert found["pairs"][0]["types"] == []


def test_a_silo_of_a_regression_with_too_few_rows_reports_nothing_at_all(world):
    silos = {}
    for name, count in (("a", 300), ("b", 300), ("c", 3)):
        x, _ = rows(len(silos), count)
        silos[name] = x, x[:, 0] / 15 + np.random.default_rng(len(silos)).normal(size=len(x))
    listed = entries(diagnosed(world, silos, task="regression"), "targets")
    assert [(entry["why"], entry["silos"]) for entry in listed] == [("fewer than 10 different rows", ["c"])]


def test_after_a_second_look_one_silo_against_all_others_is_listed_as_not_refined(world):
    silos = {"a": rows(0), "b": rows(1)}
    assert not entries(diagnosed(world, silos), "rest")
    again = world()
    assert entries(run_diagnosis(again.open("diagnose.second_look=true"), PlainRunner())[1], "rest", "not refined")


def test_a_class_below_a_silos_own_least_rows_is_listed_with_that_number(world):
    silos = {name: rows(at) for at, name in enumerate("abc")}
    for _, y in silos.values():
        y[:] = np.arange(300) < 25
    own = world()
    own.write(silos)
    (own.folder / "private" / "own" / OWNER_FILE).write_text("silos: {b: {least_rows: 30}, c: {least_rows: 40}}\n")
    found = run_diagnosis(own.open(), PlainRunner())[1]
    assert [(entry["why"], entry["silos"]) for entry in entries(found, "class")] == [
        ("fewer than 30 to 40 different rows", ["b", "c"])
    ]


def test_a_rare_class_takes_no_cells_of_the_others_and_is_named(world):
    """The spread of a feature differs, which moments of it in one cell would not show to be inputs alone."""
    (x, y), (other_x, other_y) = rows(0, 1000), rows(1, 1000)
    other_x[:, 1] = 100 + 1.5 * (other_x[:, 1] - 100)
    y[np.flatnonzero(y)[:24]] = other_y[np.flatnonzero(other_y)[:24]] = 2
    found = diagnosed(world, {"a": (x, y), "b": (other_x, other_y)})
    assert found["pairs"][0]["types"] == ["feature"]
    assert next(iter(found["pairs"][0]["features"])) == "x1"
    assert [(entry["names"], entry["silos"]) for entry in entries(found, "class in cells")] == [([2], ["a", "b"])]
    assert any(note.startswith('Label "2" was compared at a and b by its share alone') for note in found["notes"])
    assert not entries(found, "feature", "two cells")


def test_a_number_that_moved_so_far_that_one_cell_is_common_is_compared_by_its_mean_and_named(world):
    """Two deviations, in a regression of silos of 300 and 1,000 rows: in the common cell both have all rows."""
    silos = {}
    for at, (name, count) in enumerate((("a", 300), ("b", 1000))):
        rng = np.random.default_rng([0, at])
        x = rng.normal(100, 15, size=(count, 3))
        silos[name] = x, x[:, 1] / 15 + rng.normal(size=count)
        x[:, 0] += 30 * at
    found = diagnosed(world, silos, task="regression")
    assert found["pairs"][0]["types"] == ["feature"]
    assert next(iter(found["pairs"][0]["features"])) == "x0"
    assert found["sentences"][0].startswith("a differs from b: x0 is lower by 32 (2.1 standard deviations")
    assert [(entry["names"], entry["silos"]) for entry in entries(found, "feature", "one cell")] == [
        (["x0"], ["a", "b"])
    ]
    assert any(note.startswith("Between a and b x0 was compared by its mean at most") for note in found["notes"])
    assert any(note.startswith("x1 was compared at a by its mean at most: too few") for note in found["notes"])


def test_a_number_that_moved_by_which_a_silo_has_one_cell_is_named_and_no_rule_in_its_place(world):
    """The target follows the moved number, so that its groups differ, and so do other numbers within groups."""
    silos = {}
    for at, (name, count) in enumerate((("a", 300), ("b", 1000))):
        rng = np.random.default_rng([2, at])
        x = rng.normal(size=(count, 3))
        x[:, 0] += 2 * at
        silos[name] = x, 0.7 * x[:, 0] + x[:, 1] + 0.5 * x[:, 2] + rng.normal(size=count)
    found = diagnosed(world, silos, task="regression")
    assert "x0" in found["gaps"]["merged"]
    assert found["pairs"][0]["types"] == ["feature", "label"]
    assert next(iter(found["pairs"][0]["features"])) == "x0"
