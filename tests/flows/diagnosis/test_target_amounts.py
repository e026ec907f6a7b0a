"""By how much a regression's targets differ is said in their unit, or as a factor."""

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
