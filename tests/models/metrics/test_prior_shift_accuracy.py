"""Rows that are nobody's, weighed as a client's own, against a walk over classes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.metrics.task_metrics import prior_shift_accuracy

LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=20)


@given(LABELS, LABELS, st.integers(0, 99), st.sampled_from([4, 9]))
def test_it_is_the_mean_over_the_clients_own_rows_of_how_often_common_rows_of_that_class_are_right(
    labels, own, seed, classes
):
    """Also where a class has no common row, or the client has none of it, and whatever classes there are besides."""
    right = np.random.default_rng(seed).random(len(labels)) < 0.6
    of_class = {c: [r for r, label in zip(right.tolist(), labels, strict=True) if label == c] for c in set(labels)}
    shares = [sum(of_class[c]) / len(of_class[c]) for c in own if c in of_class]
    found = prior_shift_accuracy(right, np.array(labels), np.array(own), classes)
    if shares:
        assert found == pytest.approx(sum(shares) / len(shares))
    else:
        assert math.isnan(found)


def test_a_class_that_a_client_has_thrice_as_often_counts_thrice():
    right = np.array([True, True, False, False, True])
    labels, own = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 1, 1])
    assert prior_shift_accuracy(right, labels, own, 3) == pytest.approx((2 / 3 + 3 / 2) / 4)
