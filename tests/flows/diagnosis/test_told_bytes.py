"""The bytes that are printed and recorded are those of every answer: to each question, of each version."""

import numpy as np
import pytest

from flows.diagnose import compare_with_version, run_diagnosis
from publications.synthetic_pairs.fixed_pairs import SixFeatures
from tasks.execution.task_runner import PlainRunner

FEATURES, CLASSES, CELLS = 2, 2, 33
MOMENTS = 4 * (1 + CLASSES + FEATURES * (CLASSES + 1) * 5)
"""Bytes of an answer to the first question: rows, labels, five moments of each feature and class, and of those together."""
COUNTS = MOMENTS + 4 * FEATURES * CELLS * (CLASSES + 1 + 1)
"""With counts, and the cell in which each is counted."""
PAIRS = 4 * (2 * 1 * (CLASSES + 1) + 2 * FEATURES)
"""Bytes of an answer about pairs: a correlation and its variance by class and of all, and far values of each feature."""
BOUNDED = [{"name": name, "low": -4, "high": 4} for name in "ab"]


def rows(seed, count=60, moved=0.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 2)) + moved, np.arange(count) % 2


def test_where_bounds_are_asked_for_first_that_answer_counts_too(world):
    own = world()
    own.write({"a": rows(0), "b": rows(1)})
    _, found = run_diagnosis(own.open(), PlainRunner())
    assert found["bytes"] == {"up": 2 * (MOMENTS + COUNTS + PAIRS), "up_of_a_client": MOMENTS + COUNTS + PAIRS}
    own.write({"a": rows(2), "b": rows(3)}, features=BOUNDED)
    _, found = run_diagnosis(own.open(), PlainRunner())
    assert found["bytes"] == {"up": 2 * (COUNTS + PAIRS), "up_of_a_client": COUNTS + PAIRS}


def test_against_an_earlier_version_what_was_told_of_it_counts_too(world):
    own = world()
    before = own.write({"a": rows(0), "b": rows(1)})
    own.write({"a": rows(0, moved=1.0), "b": rows(2)})
    _, found = compare_with_version(own.open(), PlainRunner(), before)
    assert found["bytes"] == {"up": 4 * (MOMENTS + COUNTS), "up_of_a_client": 2 * (MOMENTS + COUNTS)}


@pytest.mark.slow
def test_what_a_second_look_asks_for_is_among_the_bytes(world):
    own = world()
    features = [{"name": f"x{at}", "low": -8, "high": 8} for at in range(6)]
    features[4] = {"name": "x4", "kind": "categorical", "categories": [1, 2, 3]}
    laws = {"plain": (2000, SixFeatures()), "same": (1000, SixFeatures()), "wide": (1000, SixFeatures(width=1.8))}
    there = {name: law(np.random.default_rng([4, at]), count) for at, (name, (count, law)) in enumerate(laws.items())}
    own.write(there, features=features)
    _, before = run_diagnosis(own.open(), PlainRunner())
    _, found = run_diagnosis(own.open("diagnose.second_look=true"), PlainRunner())
    look = found["second_look"]["bytes"]
    assert look["up"] > 0
    assert {name: found["bytes"][name] - look[name] for name in look} == before["bytes"]
