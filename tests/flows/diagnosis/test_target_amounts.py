"""By how much, and in which direction, silos differ; of a regression's targets in their unit, or as a factor."""

import numpy as np
import pytest

from flows.diagnose import run_diagnosis
from tasks.execution.task_runner import PlainRunner


def park(seed, offset=0.0, gain=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1000, 3))
    return x, gain * (10 + 2 * x[:, 0] + x[:, 1] + rng.normal(size=1000)) + offset


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        ({"offset": 3.1}, "the target is higher by 2.95 (mean 12.97 against 10.02"),
        ({"gain": 1.2}, "times as large (mean"),
    ],
)
def test_an_offset_and_a_gain_of_targets_are_said_with_their_amount_once(world, second, sentence):
    own = world()
    rows = {"a": park(0, **second), "b": park(1), "c": park(2)}
    own.write(rows, task="regression", features=[{"name": name} for name in ("wind", "temperature", "direction")])
    own.allow_cells_of_one_row()  # a group of targets has few rows at the ends of the features that targets follow from
    _, report = run_diagnosis(own.open(), PlainRunner())
    assert report["pairs"][0]["types"] == ["label", "concept"]
    assert " ".join(report["sentences"]).count(sentence) == 1
    assert (
        "no difference of inputs was seen, so targets follow from the inputs by another rule" in report["sentences"][1]
    )


def test_a_change_goes_from_a_group_to_the_other_and_from_a_silo_to_all_others(world):
    own, older = world(), {"a": 10.0, "b": 0.0, "c": 0.0}
    rows = {}
    for seed, (silo, years) in enumerate(older.items()):
        rng = np.random.default_rng(seed)
        rows[silo] = (rng.normal([60 + years, 60], 10, (400, 2)), np.arange(400) % 2)
    own.write(rows, features=[{"name": name} for name in ("age", "pressure")])
    _, report = run_diagnosis(own.open(), PlainRunner())
    (apart,) = (record for record in report["between"] if record["types"]["feature"])
    first, second = (report["groups"][group] for group in apart["groups"])
    (change,) = apart["changes"]["feature"]
    assert {tuple(first), tuple(second)} == {("a",), ("b", "c")}
    assert change["name"] == "age"
    assert change["difference"] == pytest.approx(10 if first == ["a"] else -10, abs=2)
    assert change["difference"] == pytest.approx(change["first"] - change["second"])
    found = {record["client"]: record["changes"]["feature"] for record in report["rest"]}
    assert found["a"][0]["difference"] == pytest.approx(10, abs=2)
    assert found["a"][0]["first"] == pytest.approx(70, abs=2)
    assert all(change["difference"] < 0 for silo in "bc" for change in found[silo])
