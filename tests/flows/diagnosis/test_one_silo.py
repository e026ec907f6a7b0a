"""A single silo gets one clear answer by every verdict."""

import numpy as np
import pytest

from flows.diagnose import run_diagnosis
from tasks.execution.task_runner import PlainRunner


@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["guarded", "moments", "paper"])
def test_one_silo_has_nothing_to_be_compared_with_by_every_verdict(world, verdict):
    own, rng = world(), np.random.default_rng(0)
    own.write({"a": (rng.normal(size=(200, 2)), np.arange(200) % 2)})
    _, report = run_diagnosis(own.open(f"diagnose.verdict={verdict}"), PlainRunner())
    assert report["sentences"] == ["There is one silo, so there is nothing to compare it with."]
    assert report["pairs"] == []
