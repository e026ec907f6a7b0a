"""A client beside all others differs from them where it does, and not because they tell less."""

from dataclasses import replace

import numpy as np
import pytest

from models.diagnosis.client_summaries.client_summary import Layout, Summaries, concatenate_summaries, summarize
from models.diagnosis.diagnose_pairs import append_rest, diagnose_pairs
from models.diagnosis.guarded_tests import TYPES
from models.diagnosis.screen_clients import combine_groups

CLASSES, CLIENTS, ROWS = 10, 9, 120
COLUMNS = Layout(("x",), (None,), np.array([-4.0]), np.array([4.0]), 32, CLASSES, missing=(False,))


def told(seed: int, first: np.ndarray | None = None) -> Summaries:
    """Clients with some twelve rows of a class, many told with others; `first`: class shares of the first."""
    rng = np.random.default_rng(seed)
    same = np.arange(ROWS)
    labels = [rng.choice(CLASSES, ROWS, p=first if at == 0 else None) for at in range(CLIENTS)]
    return concatenate_summaries([summarize(rng.normal(size=(ROWS, 1)), y, same, COLUMNS) for y in labels])


def types(there: Summaries) -> np.ndarray:
    """(clients, 3) bool."""
    places = np.arange(CLIENTS)
    return diagnose_pairs(append_rest(there), COLUMNS, places, places + CLIENTS).verdicts.types


def test_a_class_of_few_rows_with_each_client_is_not_missing_from_the_rest():
    alike = np.stack([types(told(seed)) for seed in range(20)])
    assert np.isnan(told(0).labels).mean() > 0.1
    assert alike.any(-1).mean() <= 0.05


def test_a_client_of_copies_that_tells_nothing_makes_no_other_differ_from_the_rest_in_labels():
    """Sixty rows, six of them different, and as many of each class as all: in pairs with it nothing can be said either."""
    rng, y = np.random.default_rng(0), np.repeat([0, 1], 60)
    asked = replace(COLUMNS, classes=2)
    alike = [summarize(rng.normal(size=(120, 1)), y, np.arange(120), asked) for _ in range(2)]
    copies = summarize(np.tile(rng.normal(size=(6, 1)), (10, 1)), np.tile([0, 1], 30), np.arange(60) % 6, asked)
    found = diagnose_pairs(append_rest(concatenate_summaries([*alike, copies])), asked, np.arange(2), np.arange(2) + 3)
    assert found.verdicts.types.tolist() == [[False, False, False]] * 2
    assert found.chance.min() > 0.05
    together_with_copies = combine_groups(concatenate_summaries([*alike, copies]), [[0], [1, 2]])
    np.testing.assert_allclose(together_with_copies.labels, [[60, 60], [90, 90]])


def test_a_class_that_none_of_the_others_tells_is_unknown_of_them_and_one_that_any_of_them_tells_is_known():
    """Of unequal clients: the first tells both classes, the second one of them, the third nothing but its rows."""
    rng, asked = np.random.default_rng(0), replace(COLUMNS, classes=2)
    labels = [np.repeat([0, 1], [50, 30]), np.repeat([0, 1], [40, 4]), np.repeat([0, 1], [6, 3])]
    there = concatenate_summaries(
        [summarize(rng.normal(size=(len(y), 1)), y, np.arange(len(y)), asked) for y in labels]
    )
    rest = append_rest(there)
    np.testing.assert_array_equal(np.isnan(rest.labels[3:]), [[False, True], [False, False], [False, False]])
    assert rest.rows[3:].tolist() == [53, 89, 124]


def test_label_shares_that_do_differ_from_the_rest_are_seen():
    shares = np.array([0.46] + [0.06] * 9)
    for seed in range(5):
        assert types(told(seed, shares))[0].tolist() == [name == "label" for name in TYPES]


@pytest.mark.parametrize("seed", range(5))
def test_the_rest_has_no_more_rows_of_a_class_than_there_can_be(seed):
    there = told(seed)
    rest = append_rest(there).take(np.arange(CLIENTS, 2 * CLIENTS))
    known, silent = np.nan_to_num(there.labels), np.isnan(there.labels)
    least = known.sum(0) - known
    assert (np.nan_to_num(rest.labels) <= least + 9 * (silent.sum(0) - silent) + 1e-9).all()
    assert (np.nan_to_num(rest.labels, nan=np.inf) >= least - 1e-9).all()
    assert (np.nansum(rest.labels, -1) <= rest.rows + 1e-9).all()
