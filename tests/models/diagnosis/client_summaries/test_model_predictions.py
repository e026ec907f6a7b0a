"""Regressions on halves of a client's rows, and what they expect of rows, against SciPy's minimum and loops of our own."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from models.diagnosis.client_summaries.client_summary import LEAST_ROWS, Columns, Layout, assign_columns, summarize
from models.diagnosis.client_summaries.model_predictions import (
    SAME_RUN,
    Design,
    classes_in_both_halves,
    distribute_runs,
    fit_halves,
    predict_classes,
    predicted_counts,
)
from models.diagnosis.client_summaries.query import Query

pytestmark = pytest.mark.slow

ALL = np.ones(3, bool)
NAMES, CODES = ("a", "b", "c"), (None, (1.0, 2.0, 3.0), None)


def a_layout(classes=3, missing=(False, False, True)):
    return Layout(NAMES, CODES, np.full(3, -4.0), np.full(3, 4.0), 8, classes, missing=missing)


def a_design(layout):
    return Design(Query("", layout), np.array([1.0, 0.0, 0.0]), np.array([2.0, 1.0, 1.0]))


def some_rows(seed, count=120, classes=3):
    rng = np.random.default_rng(seed)
    x = np.stack([rng.normal(size=count), rng.choice([1.0, 2.0, 3.0, 9.0], count), rng.normal(size=count)], -1)
    y = np.argmax(x[:, :1] * np.arange(classes) + rng.gumbel(size=(count, classes)), axis=1)
    return x, y, np.arange(count)


def test_a_number_is_in_deviations_up_to_five_a_category_and_a_missing_value_are_columns_and_the_last_is_one():
    seen = a_design(a_layout()).matrix(np.array([[3.0, 2.0, 0.5], [-99.0, 9.0, np.nan]]))
    assert seen.tolist() == [[1.0, 0, 1, 0, 0.5, 0, 1], [-5.0, 0, 0, 0, 0.0, 1, 1]]


def test_a_design_has_no_product_of_two_categories():
    layout = Layout(("a", "b", "c"), (None, (1.0, 2.0), (1.0, 2.0)), np.full(3, -4.0), np.full(3, 4.0), 8, 2)
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=60), rng.choice([1.0, 2.0], (60, 2))])
    y, rows = np.arange(60) % 2, np.arange(60)
    summaries = summarize(x, y, rows, layout)
    assert Design.from_summaries(Query("", layout), summaries, ((0, 1), (1, 2))).products == ((0, 1),)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_half_s_regression_has_the_least_penalised_loss_of_its_rows_and_no_other_row_has_a_part_in_it(classes):
    """SciPy's minimum of the same loss: half the squared weights, without the constants, over 10 of the log loss."""
    x, y, same = some_rows(1, classes=classes)
    seen, second = a_design(a_layout(classes)).matrix(x), same % 2 == 1
    weights = fit_halves(seen, y, second, np.ones(classes, bool))
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
    np.testing.assert_array_equal(fit_halves(seen, changed, second, np.ones(classes, bool))[0], weights[0])


def test_of_a_client_s_own_rows_the_model_speaks_that_has_not_seen_them_and_of_others_the_mean_of_both():
    x, y, same = some_rows(2)
    seen, second = a_design(a_layout()).matrix(x), same % 3 == 0
    weights = fit_halves(seen, y, second, np.ones(3, bool))
    first, other = (softmax(seen @ half.T, axis=-1) for half in weights)
    np.testing.assert_allclose(predict_classes(seen, y, ALL, weights, second), np.where(second[:, None], first, other))
    np.testing.assert_allclose(predict_classes(seen, y, ALL, weights, None), (first + other) / 2)


def test_only_classes_that_both_know_are_possible_and_rows_of_others_have_no_part():
    x, y, same = some_rows(3)
    seen = a_design(a_layout()).matrix(x)
    weights = fit_halves(seen, y, same % 2 == 1, np.array([True, False, True]))
    assert np.isnan(weights[:, 1]).all()
    chances = predict_classes(seen, y, ALL, weights, None)
    assert not chances[y == 1].any()
    assert not chances[:, 1].any()
    np.testing.assert_allclose(chances[y != 1].sum(-1), 1.0)
    alone = predict_classes(seen, y, np.array([True, True, False]), weights, None)
    assert (alone == np.where(y[:, None] == 0, [1.0, 0.0, 0.0], 0.0)).all()


def test_a_class_is_asked_about_that_has_as_many_different_rows_in_either_half_as_there_are_models():
    y = np.repeat([0, 1, 2, 3], [19, 24, 40, 40])
    same = np.where(y == 3, 999, np.arange(len(y)))  # the last are copies of one row
    column, second = assign_columns(y, same, a_layout(4)), same % 2 == 1
    for models, expected in (
        (2, [False, True, True, False]),
        (12, [False, True, True, False]),
        (13, [False, False, True, False]),
    ):
        assert classes_in_both_halves(column, same, second, models).tolist() == expected


@settings(max_examples=40)
@given(st.lists(st.integers(0, 30), min_size=3, max_size=3), st.integers(0, 99))
def test_a_model_knows_the_classes_of_ten_different_rows_in_either_half_and_is_none_of_fewer_than_two(sizes, seed):
    """Copies are in one half, and count once."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(3), np.array(sizes) * 2)
    same = np.arange(len(y)) // 2  # every row twice
    second = (rng.random(len(y)) < 0.5)[same]
    layout = a_layout()
    column = assign_columns(y, same, layout)
    expected = [
        min(len({row for row, c, half in zip(same, y, second, strict=True) if c == at and half == h}) for h in (0, 1))
        >= LEAST_ROWS
        for at in range(3)
    ]
    known = classes_in_both_halves(column, same, second)
    assert known.tolist() == expected
    seen = np.column_stack([rng.normal(size=len(y)), np.ones(len(y))])
    there = ~np.isnan(fit_halves(seen, column.index, second, known)).any((0, 2))
    assert there.tolist() == (expected if sum(expected) > 1 else [False] * 3)


def test_a_class_that_is_told_with_others_is_in_no_model_whatever_its_rows():
    """As in a regression, where a group of targets is joined to one that is too small: of it alone nothing is told."""
    of = np.repeat([0, 1, 3], 40)
    column = Columns(of, np.array([True, True, False]), np.ones(120, bool))
    second = np.arange(120) % 2 == 1
    assert classes_in_both_halves(column, np.arange(120), second).tolist() == [True, True, False]


def counted(seed, missing=0.3, models=2, count=400):
    """Rows of which a class has too few where the last feature is there, their columns, chances and draws.

    The last model does not know the class that is last.
    """
    x, y, same = some_rows(seed, count)
    rng = np.random.default_rng(seed + 1)
    same = same // 2 * 2 if seed % 2 else same  # every row twice
    x, y = x[same], y[same]
    if missing:
        x[(rng.random(count) < missing)[same], 2] = np.nan
        x[np.flatnonzero(y == 0)[8:], 2] = np.nan
    layout = a_layout()
    chances = rng.dirichlet(np.ones(3), (models, count))[:, same]
    chances[-1, y == 2], chances[-1, :, 2] = 0, 0
    chances[-1, y != 2] /= chances[-1, y != 2].sum(-1, keepdims=True)
    return x, y, same, layout, chances, rng.random((3, layout.cells, 3))


def halves(same):
    return same // 2 % 2 == 1


def runs_of(told):
    """(feature, cells) of each run, by our own walk over what is told."""
    for feature, cells in enumerate((told == SAME_RUN).all((0, 3))):
        firsts = np.flatnonzero(~cells)
        yield from ((feature, range(*ends)) for ends in zip(firsts, [*firsts[1:], len(cells)], strict=True))


def used_rows(y, same, layout, x, feature):
    """Those that counts of a feature are told of, by loops of our own; of a class without any value all rows miss it."""
    values = [len({*same[(y == c) & ~np.isnan(x[:, feature])].tolist()}) for c in range(3)]
    there = [c for c, number in enumerate(values) if number == 0 or number >= LEAST_ROWS]
    return np.isin(y, there) if np.isnan(x[:, feature]).any() else np.ones(len(y), bool)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.sampled_from([0.0, 0.3]), st.sampled_from([2, 15]), st.sampled_from([60, 150, 400]))
@example(31, 0.3, 2, 400)  # in which a class has no value of the last feature
def test_a_number_and_a_difference_of_two_models_numbers_stand_for_ten_different_rows_and_for_as_many_as_models(
    seed, missing, models, count
):
    """Also where one model knows a class that others do not, and where one half's model says the same of every row."""
    x, y, same, layout, chances, ends = counted(seed, missing, models, count)
    column = assign_columns(y, same, layout)
    chances *= classes_in_both_halves(column, same, halves(same), models)[y][:, None]
    told, cells = predicted_counts(x, column, same, halves(same), layout, chances, ends), layout.cells_of(x)
    least = max(LEAST_ROWS, models)
    for feature, run in runs_of(told):
        inside = np.isin(cells[:, feature], run) & used_rows(y, same, layout, x, feature) & column.reported
        speak = [inside & chances[model].any(-1) for model in range(models)]
        kinds = [rows & half for rows in (*speak, speak[0] & ~speak[-1]) for half in (halves(same), ~halves(same))]
        different = [len({*same[rows].tolist()}) for rows in kinds]
        assert all(number == 0 or number >= least for number in different)
        sums = np.array([chances[model][speak[model]].sum(0) for model in range(models)])
        assert (np.abs(told[:, feature, run[0]] - sums) < 1).all()


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_runs_are_no_longer_than_they_must_be(missing):
    """Where every model knows every class: but for a feature's last none has enough rows of both halves a cell earlier."""
    x, y, same, layout, chances, ends = counted(6, missing, count=1000)
    chances[-1] = chances[0]
    told = predicted_counts(x, assign_columns(y, same, layout), same, halves(same), layout, chances, ends)
    cells, runs = layout.cells_of(x), list(runs_of(told))
    assert len(runs) > 10
    for (feature, run), after in zip(runs, [*runs[1:], (3, None)], strict=True):
        inside = np.isin(cells[:, feature], run[:-1]) & used_rows(y, same, layout, x, feature)
        assert after[0] != feature or min(inside[halves(same)].sum(), inside[~halves(same)].sum()) < LEAST_ROWS


def test_expected_rows_are_whole_numbers_next_to_the_sums_of_chances_and_in_the_mean_are_these():
    x, y, same, layout, chances, ends = counted(4)
    rng, column = np.random.default_rng(0), assign_columns(y, same, layout)
    sums = predicted_counts(x, column, same, halves(same), layout, chances, np.zeros(ends.shape))
    heard = [
        predicted_counts(x, column, same, halves(same), layout, chances, rng.random(ends.shape)) for _ in range(400)
    ]
    assert {told.dtype for told in heard} == {np.dtype(np.int32)}
    mean = np.mean(heard, 0)
    cells = layout.cells_of(x)
    for feature, run in runs_of(sums):
        inside = np.isin(cells[:, feature], run) & used_rows(y, same, layout, x, feature)
        np.testing.assert_allclose(mean[:, feature, run[0]], chances[:, inside].sum(1), atol=4 * 0.5 / 20)


def test_all_models_are_rounded_by_one_draw():
    """The same chances told by any number of models are the same numbers: their mean tells nothing more."""
    x, y, same, layout, chances, ends = counted(8, missing=0.0)
    told = predicted_counts(
        x, assign_columns(y, same, layout), same, halves(same), layout, np.repeat(chances[:1], 9, 0), ends
    )
    assert (told == told[:1]).all()


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_dealt_to_cells_expected_rows_sum_up_to_the_runs_and_of_all_classes_to_the_rows_that_are_told_of_each_cell(
    missing,
):
    x, y, same, layout, chances, ends = counted(6, missing)
    told = predicted_counts(x, assign_columns(y, same, layout), same, halves(same), layout, chances, ends)
    counts = summarize(x, y, same, layout).counts[0]
    dealt = distribute_runs(told, counts)
    for feature, run in runs_of(told):
        np.testing.assert_allclose(dealt[:, feature, run].sum(1), told[:, feature, run[0]])
        for model, classes in ((0, [0, 1, 2]), (1, [0, 1])):
            rows = counts[feature, run][:, classes].sum(-1)
            np.testing.assert_allclose(dealt[model, feature, run].sum(-1), rows, atol=3)
            assert not dealt[model, feature, run][rows == 0].any()
