"""Regressions on halves of a client's rows, and what they expect of rows, against SciPy's minimum and loops of our own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from models.shift.told.foreseen import Design, fitted_halves, foreseen, foreseen_counts, in_both_halves
from models.shift.told.question import Question
from models.shift.told.summaries import LEAST_ROWS, Columns, Layout, columns, summary

NAMES, CODES = ("a", "b", "c"), (None, (1.0, 2.0, 3.0), None)


def a_layout(classes=3, missing=(False, False, True)):
    return Layout(NAMES, CODES, np.full(3, -4.0), np.full(3, 4.0), 8, classes, missing=missing)


def a_design(layout):
    return Design(Question("", layout), np.array([1.0, 0.0, 0.0]), np.array([2.0, 1.0, 1.0]))


def some_rows(seed, count=120, classes=3):
    rng = np.random.default_rng(seed)
    x = np.stack([rng.normal(size=count), rng.choice([1.0, 2.0, 3.0, 9.0], count), rng.normal(size=count)], -1)
    y = np.argmax(x[:, :1] * np.arange(classes) + rng.gumbel(size=(count, classes)), axis=1)
    return x, y, np.arange(count)


def test_a_number_is_in_deviations_up_to_five_a_category_and_a_missing_value_are_columns_and_the_last_is_one():
    seen = a_design(a_layout()).seen(np.array([[3.0, 2.0, 0.5], [-99.0, 9.0, np.nan]]))
    assert seen.tolist() == [[1.0, 0, 1, 0, 0.5, 0, 1], [-5.0, 0, 0, 0, 0.0, 1, 1]]


@pytest.mark.parametrize("classes", [2, 3])
def test_a_half_s_regression_has_the_least_penalised_loss_of_its_rows_and_no_other_row_has_a_part_in_it(classes):
    """SciPy's minimum of the same loss: half the squared weights, without the constants, over 10 of the log loss."""
    x, y, same = some_rows(1, classes=classes)
    seen, second = a_design(a_layout(classes)).seen(x), same % 2 == 1
    weights = fitted_halves(seen, y, second, np.ones(classes, bool))
    for place, half in enumerate((~second, second)):

        def loss(flat, mine=seen[half], labels=y[half]):
            own = flat.reshape(classes, -1)
            own = own - own[:1] if classes == 2 else own  # of two classes one regression, not two
            logs = log_softmax(mine @ own.T, axis=-1)
            return -10 * logs[np.arange(len(labels)), labels].sum() + (own[:, :-1] ** 2).sum() / 2

        best = minimize(loss, np.zeros(classes * seen.shape[1]), method="BFGS", options={"gtol": 1e-4})
        best = best.x.reshape(classes, -1)
        np.testing.assert_allclose(softmax(seen @ weights[place].T, -1), softmax(seen @ best.T, -1), atol=2e-3)
    changed = np.where(second, (y + 1) % classes, y)
    np.testing.assert_array_equal(fitted_halves(seen, changed, second, np.ones(classes, bool))[0], weights[0])


def test_of_a_client_s_own_rows_the_model_speaks_that_has_not_seen_them_and_of_others_the_mean_of_both():
    x, y, same = some_rows(2)
    seen, second = a_design(a_layout()).seen(x), same % 3 == 0
    weights = fitted_halves(seen, y, second, np.ones(3, bool))
    first, other = (softmax(seen @ half.T, axis=-1) for half in weights)
    np.testing.assert_allclose(foreseen(seen, y, weights, second), np.where(second[:, None], first, other))
    np.testing.assert_allclose(foreseen(seen, y, weights, None), (first + other) / 2)


def test_only_classes_that_both_know_are_possible_and_rows_of_others_have_no_part():
    x, y, same = some_rows(3)
    seen = a_design(a_layout()).seen(x)
    weights = fitted_halves(seen, y, same % 2 == 1, np.array([True, False, True]))
    assert np.isnan(weights[:, 1]).all()
    chances = foreseen(seen, y, weights, None)
    assert not chances[y == 1].any()
    assert not chances[:, 1].any()
    np.testing.assert_allclose(chances[y != 1].sum(-1), 1.0)
    alone = foreseen(seen[y == 0], y[y == 0], weights, None)
    assert (alone == [1.0, 0.0, 0.0]).all()


@settings(max_examples=40)
@given(st.lists(st.integers(0, 30), min_size=3, max_size=3), st.integers(0, 99))
def test_a_model_knows_the_classes_of_ten_different_rows_in_either_half_and_is_none_of_fewer_than_two(sizes, seed):
    """Copies are in one half, and count once."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(3), np.array(sizes) * 2)
    same = np.arange(len(y)) // 2  # every row twice
    second = (rng.random(len(y)) < 0.5)[same]
    layout = a_layout()
    column = columns(y, same, layout)
    expected = [
        min(len({row for row, c, half in zip(same, y, second, strict=True) if c == at and half == h}) for h in (0, 1))
        >= LEAST_ROWS
        for at in range(3)
    ]
    known = in_both_halves(column, same, second, 3)
    assert known.tolist() == expected
    seen = np.column_stack([rng.normal(size=len(y)), np.ones(len(y))])
    there = ~np.isnan(fitted_halves(seen, column.of, second, known)).any((0, 2))
    assert there.tolist() == (expected if sum(expected) > 1 else [False] * 3)


def test_a_class_that_is_told_with_others_is_in_no_model_whatever_its_rows():
    """As in a regression, where a group of targets is joined to one that is too small: of it alone nothing is told."""
    of = np.repeat([0, 1, 3], 40)
    column = Columns(of, np.array([True, True, False]), np.ones(120, bool))
    second = np.arange(120) % 2 == 1
    assert in_both_halves(column, np.arange(120), second, 3).tolist() == [True, True, False]


def counted(seed, missing=0.3):
    """Rows of which a class has too few where the last feature is there, their columns, chances and draws."""
    x, y, same = some_rows(seed)
    rng = np.random.default_rng(seed + 1)
    x[rng.random(len(x)) < missing, 2] = np.nan
    x[np.flatnonzero(y == 0)[4:], 2] = np.nan
    layout = a_layout()
    chances = rng.dirichlet(np.ones(3), len(x))
    return x, y, same, layout, chances, rng.random((3, layout.cells, 3))


def test_expected_rows_are_whole_numbers_next_to_the_sums_of_chances_and_in_the_mean_are_these():
    x, y, same, layout, chances, _ = counted(5)
    sums = np.zeros((3, layout.cells, 3))
    cells = layout.cells_of(x)
    for row in range(len(x)):
        for feature in range(3):
            if feature < 2 or y[row] != 0:  # of class 0 too few rows have the last feature
                sums[feature, cells[row, feature]] += chances[row]
    rng, column, total = np.random.default_rng(0), columns(y, same, layout), np.zeros(sums.shape)
    for _ in range(400):
        told = foreseen_counts(x, column, same, layout, chances, rng.random(sums.shape))
        assert told.dtype == np.int32
        assert (np.abs(told - sums) < 1).all()
        total += told
    np.testing.assert_allclose(total / 400, sums, atol=4 * 0.5 / 20)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_summed_over_classes_expected_rows_are_the_rows_that_are_told_of_each_cell(missing):
    """So that who has both knows of no cell how many rows of a withheld class are in it."""
    x, y, same, layout, chances, _ = counted(6, missing)
    rng, column = np.random.default_rng(1), columns(y, same, layout)
    shape = (3, layout.cells, 3)
    mean = np.mean([foreseen_counts(x, column, same, layout, chances, rng.random(shape)) for _ in range(400)], 0)
    told = summary(x, y, same, layout).counts[0].sum(-1)
    np.testing.assert_allclose(mean.sum(-1), told, atol=0.3)
