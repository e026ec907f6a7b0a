"""What a page asks for of a run's rounds."""

import numpy as np
import pytest

from publications.fill_sweep import _agrees, _at

CURVE = [(2, 0.5), (4, 0.7), (6, 0.6), (8, 0.65)]


def test_a_metric_at_a_round_is_there_only_if_the_round_was_scored():
    assert (_at(CURVE, "4"), _at(CURVE, 8), _at(CURVE, "5")) == (0.7, 0.65, None)


def test_a_run_agrees_with_a_record_that_lacks_a_later_metric_and_not_with_one_that_has_more_or_another_number():
    recorded = {"accuracy/mean": 0.5, "loss/mean": 1.0}
    assert _agrees({**recorded, "auc/mean": 0.7}, recorded)
    assert not _agrees({"accuracy/mean": 0.5}, recorded)
    assert not _agrees({**recorded, "loss/mean": 1.1}, recorded)
    assert _agrees(0.5, 0.5)
    assert not _agrees(0.5, 0.6)


def test_unrest_is_the_standard_deviation_of_the_changes_so_that_steady_progress_has_none():
    assert _at(CURVE, "unrest") == pytest.approx(np.std(np.diff([value for _, value in CURVE]), ddof=1))
    assert _at([(n, n / 8) for n in range(8)], "unrest") == pytest.approx(0)
    assert _at(CURVE[:2], "unrest") is None


def test_the_highest_is_that_of_any_round():
    assert _at([(1, 0.2), (2, 0.9), (3, 0.4)], "highest") == 0.9
    assert _at([], "highest") is None
