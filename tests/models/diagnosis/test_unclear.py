"""Where nothing can be said of a pair, it is known why."""

import numpy as np
import pytest

from models.diagnosis import wald_tests
from models.diagnosis.diagnose_pairs import REASONS


def rows(seed, count, classes=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 2)), np.arange(count) % classes


def copies(seed, count):
    """Of three different rows."""
    x, y = rows(seed, count)
    return x[np.arange(count) % 3], y


def in_one_bin(seed, count):
    x, y = rows(seed, count)
    return 0.01 + 0.001 * np.abs(x), y


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (rows(0, 19), rows(1, 300), "rows"),
        (copies(0, 19), rows(1, 300), "rows"),
        (copies(0, 300), rows(1, 300), "unreported"),
        (rows(0, 25, 5), rows(1, 25, 5), "apart"),
        (in_one_bin(0, 300), in_one_bin(1, 300), "constant"),
    ],
)
def test_the_reason_is_named_whoever_comes_first(first, second, why, tell):
    told = tell([first, second], classes=5)
    for places in ((0, 1), (1, 0)):
        found = told.between(*places)
        assert found.verdicts.undetermined.tolist() == [True]
        assert REASONS[found.why[0]] == why
    tells = told.between().tells[0].tolist()
    assert tells == [len(np.unique(x, axis=0)) >= 10 for x, _ in (first, second)]


@pytest.mark.parametrize(("count", "why"), [(9, "apart"), (10, "rough")])
def test_a_class_of_ten_rows_on_both_sides_is_reported_by_both_and_too_rough_for_moments(count, why, tell):
    """The other rows are of a class that only one of the two has."""
    sides = [(rows(side, 150)[0], np.repeat([0, 1 + side], [count, 150 - count])) for side in (0, 1)]
    found = tell(sides, classes=3).between(
        collect_evidence=wald_tests.moment_evidence, min_rows=wald_tests.LEAST_WALD_ROWS
    )
    assert REASONS[found.why[0]] == why


def test_moments_say_that_a_class_has_too_few_rows_for_them(tell):
    reported = tell([rows(0, 150), rows(1, 150)])
    found = reported.between(collect_evidence=wald_tests.moment_evidence, min_rows=wald_tests.LEAST_WALD_ROWS)
    assert found.verdicts.undetermined.tolist() == [True]
    assert REASONS[found.why[0]] == "rough"
    assert not reported.between().verdicts.undetermined.any()
