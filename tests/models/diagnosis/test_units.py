"""Rows of one unit count as the independent rows that they are worth: few false alarms, and the power of as many units."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.diagnosis.client_summaries.client_summary import (
    LEAST_ROWS,
    Layout,
    Summaries,
    concatenate_summaries,
    effective_rows,
    summarize,
)
from models.diagnosis.client_summaries.model_predictions import _run_starts
from models.diagnosis.diagnose_pairs import diagnose_pairs
from models.diagnosis.guarded_tests import count_evidence
from models.diagnosis.wald_tests import moment_evidence
from silos.row_units import unit_weights

LAYOUT = Layout(("a", "b", "c"), (None,) * 3, np.full(3, -3.0), np.full(3, 3.0), 32, 2)
VISITS = 8
Silo = tuple[np.ndarray, np.ndarray, np.ndarray]


def silo(rng: np.random.Generator, units: int, share: float, fixed: bool = False, move: float = 0.0) -> Silo:
    """Eight visits of each unit; `share` of a feature's variance is the unit's, and with `fixed` so is all of the label."""
    unit = np.repeat(np.arange(units), VISITS)
    x = share**0.5 * rng.normal(size=(units, 3))[unit] + (1 - share) ** 0.5 * rng.normal(size=(len(unit), 3))
    score = x[:, 0] + 0.5 * x[:, 1] + 1.5 * rng.normal(size=units)[unit]
    if fixed:
        y = (np.bincount(unit, score) / VISITS + 0.5 * rng.normal(size=units) > 0)[unit]
    else:
        y = score + rng.logistic(size=len(unit)) > 0
    x[:, 0] += move
    return x, y.astype(int), unit


def told(of: Silo, by_unit: bool = True, counts: bool = True) -> Summaries:
    x, y, unit = of
    rows = np.arange(len(y))
    if not by_unit:
        return summarize(x, y, rows, LAYOUT)
    weights = unit_weights(unit, effective_rows(x, y, unit, LAYOUT, counts))
    return summarize(x, y, np.stack([rows, unit], 1), LAYOUT, weights)


def differ(first: Silo, second: Silo, by_unit: bool = True, counts: bool = True) -> bool:
    both = concatenate_summaries([told(silo, by_unit, counts) for silo in (first, second)])
    look = count_evidence if counts else moment_evidence
    found = diagnose_pairs(both, LAYOUT, np.array([0]), np.array([1]), collect_evidence=look)
    return bool(found.verdicts.types.any())


@pytest.mark.slow
@pytest.mark.parametrize(("share", "fixed"), [(0.2, False), (0.7, True), (1.0, True)])
@pytest.mark.parametrize(("units", "counts"), [(60, True), (150, True), (150, False)])
def test_pairs_that_are_alike_differ_in_3_of_100_at_most(units, counts, share, fixed):
    rng = np.random.default_rng(0)
    pairs = [(silo(rng, units, share, fixed), silo(rng, units, share, fixed)) for _ in range(200)]
    assert sum(differ(*pair, counts=counts) for pair in pairs) <= 6
    if share == 1:
        assert sum(differ(*pair, by_unit=False) for pair in pairs[:20]) == 20


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 1.0])
def test_what_as_many_units_of_one_row_would_show_is_found(share):
    rng, found, of_one = np.random.default_rng(1), 0, 0
    for _ in range(20):
        first, second = silo(rng, 150, share), silo(rng, 150, share, move=0.8)
        found += differ(first, second)
        one, other = (tuple(part[::VISITS] for part in rows) for rows in (first, second))
        of_one += differ(one, other, by_unit=False)
    assert found >= of_one - 3
    assert found >= 10


def test_copies_are_worth_one_row_and_independent_visits_all_of_them():
    rng = np.random.default_rng(0)
    unit = np.repeat(np.arange(200), VISITS)
    x, y = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    assert effective_rows(x[unit], y[unit], unit, LAYOUT) == 200
    loose = effective_rows(rng.normal(size=(1600, 3)), rng.integers(0, 2, 1600), unit, LAYOUT)
    assert 0.7 * 1600 < loose <= 1600
    assert effective_rows(x, y, np.arange(200), LAYOUT) == 200


def test_the_design_effect_of_labels_is_that_of_equal_clusters():
    """One feature of one value: labels alone decide, with the design effect 1 + (m - 1) times their correlation."""
    rng = np.random.default_rng(0)
    unit, layout = np.repeat(np.arange(5000), VISITS), Layout(("a",), (None,), np.zeros(1), np.ones(1), 4, 2)
    rate = np.where(rng.random(5000) < 0.5, 0.25, 0.75)  # a variance of 1/16 of 1/4: a correlation of 1/4
    y = (rng.random(len(unit)) < rate[unit]).astype(int)
    worth = effective_rows(np.full((len(unit), 1), 0.5), y, unit, layout)
    assert worth == pytest.approx(len(unit) / (1 + (VISITS - 1) / 4), rel=0.05)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(1, 9), min_size=20, max_size=40))
def test_counts_and_moments_are_weighted_sums(seed, sizes):
    rng, unit = np.random.default_rng(seed), np.repeat(np.arange(len(sizes)), sizes)
    x, y = rng.normal(size=(len(unit), 3)), rng.integers(0, 2, len(unit))
    weights = unit_weights(unit)
    found = summarize(x, y, np.stack([np.arange(len(y)), unit], 1), LAYOUT, weights)
    assert found.rows.tolist() == [len(sizes)]
    cells = LAYOUT.cells_of(x)
    for c in np.flatnonzero(~np.isnan(found.labels[0])).tolist():
        assert len(np.unique(unit[y == c])) >= LEAST_ROWS
        assert found.labels[0, c] == weights[y == c].sum()
        assert found.counts[0, 0, :, c].tolist() == [weights[(y == c) & (cells[:, 0] == k)].sum() for k in range(33)]
        mean = np.average(x[y == c, 0], weights=weights[y == c])
        rows, spread = weights[y == c].sum(), np.average((x[y == c, 0] - mean) ** 2, weights=weights[y == c])
        assert found.moments[0, 0, c, :3] == pytest.approx([rows, mean, (spread * rows / (rows - 1)) ** 0.5])
    few = [c for c in (0, 1) if len(np.unique(unit[y == c])) < LEAST_ROWS]
    assert np.isnan(found.labels[0, few]).all()


def test_equal_weights_count_as_rows_do():
    rng = np.random.default_rng(0)
    x, y, rows = rng.normal(size=(90, 3)), rng.integers(0, 2, 90), np.arange(90)
    x[:5, 0] = np.nan
    plain, by_unit = summarize(x, y, rows, LAYOUT), summarize(x, y, np.stack([rows, rows], 1), LAYOUT, np.ones(90))
    np.testing.assert_array_equal(plain.counts, by_unit.counts)
    np.testing.assert_array_equal(plain.labels, by_unit.labels)
    np.testing.assert_allclose(plain.moments, by_unit.moments)


@given(
    table=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 8)), min_size=1, max_size=80),
    least=st.integers(1, 5),
)
def test_a_run_of_bins_has_no_rows_or_enough_units(table, least):
    cells, kinds, units = np.array(table).T
    starts = _run_starts(cells, kinds, np.stack([np.arange(len(cells)), units], 1), 6, least)
    runs = np.unique(starts[cells])
    for run in runs if len(runs) > 1 else ():
        for kind in (0, 1):
            inside = units[(starts[cells] == run) & (kinds == kind)]
            assert len(inside) == 0 or len(np.unique(inside)) >= least


def test_a_unit_moves_counts_by_no_more_than_one_row_does():
    """The sensitivity under noise: weights of a unit add up to 1, however many rows it has."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y, unit = silo(rng, 30, 0.5)
        weights = unit_weights(unit)
        gone = unit != 7
        difference = LAYOUT.counts(x, y, weights=weights) - LAYOUT.counts(x[gone], y[gone], weights=weights[gone])
        assert np.linalg.norm(difference) <= 3**0.5
