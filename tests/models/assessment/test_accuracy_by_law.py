"""Accuracy by a client's own law is the mean of the classes' accuracies, weighted by the client's labels."""

import math

import numpy as np
import pytest

from models.assessment.accuracy_by_law import accuracy_by_law

LABELS = np.array([0, 0, 0, 0, 1, 1])
RIGHT = np.array([True, False, False, False, True, True])


@pytest.mark.parametrize(
    ("own", "accuracy"),
    [
        ([0] * 3 + [1], (3 * 1 / 4 + 1) / 4),
        ([1, 1], 1),
        ([0, 1, 2, 2, 2, 2], (1 / 4 + 1) / 2),  # no common row has class 2, which counts for nothing
        ([0, 2, 3, 3], 1 / 4),
    ],
)
def test_classes_without_common_rows_count_for_nothing_in_sum_and_divisor(own, accuracy):
    assert accuracy_by_law(RIGHT, LABELS, np.array(own), 4) == pytest.approx(accuracy)


def test_it_is_nan_where_no_class_is_in_both():
    assert math.isnan(accuracy_by_law(RIGHT, LABELS, np.array([2, 3]), 4))


def test_it_agrees_with_rows_drawn_by_the_law():
    rng = np.random.default_rng(0)
    labels, right = rng.integers(0, 5, 400), rng.random(400) < 0.6
    own = rng.choice(7, 90, p=[0.3, 0.05, 0.1, 0.2, 0.05, 0.2, 0.1])
    each = [right[labels == label].mean() for label in own if (labels == label).any()]
    assert accuracy_by_law(right, labels, own, 7) == pytest.approx(np.mean(each))
