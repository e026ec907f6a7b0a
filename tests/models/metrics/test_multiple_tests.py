"""Holm's correction: a case by hand, the definition by stepping down, and its error rate in simulations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.metrics.multiple_tests import holm


def test_a_case_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.7, 0.6]) == [1, 1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from([0.01, 0.05, 0.2]))
def test_it_rejects_what_stepping_down_rejects(p, level):
    """Holm's procedure: compare the smallest with level / m, the next with level / (m - 1), and stop at a failure."""
    rejected = set()
    for passed, index in enumerate(np.argsort(p, kind="stable")):
        if (len(p) - passed) * p[index] > level:
            break
        rejected.add(int(index))
    assert {index for index, value in enumerate(holm(p)) if value <= level} == rejected


def test_a_test_without_a_value_does_not_count():
    first, missing, second = holm([0.02, math.nan, 0.03])
    assert (first, second) == (0.04, 0.04)
    assert math.isnan(missing)


def test_the_family_error_is_at_most_five_percent():
    rng = np.random.default_rng(0)
    errors = [min(holm(rng.uniform(size=9).tolist())) <= 0.05 for _ in range(4000)]
    assert np.mean(errors) < 0.06
