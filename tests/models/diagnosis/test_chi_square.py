"""Chi-square tests of tables: SciPy's statistics, and expected counts that solve the likelihood equations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chi2_contingency, kstest

from models.diagnosis import chi_square

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=40, deadline=None)


def drawn(seed: int, empty: float = 0.2) -> np.ndarray:
    """A table of two clients, bins and classes, some of its bins and classes empty."""
    random = np.random.default_rng(seed)
    bins, classes = random.integers(2, 7), random.integers(2, 5)
    means = random.gamma(1.0, 20.0, (2, bins, classes))
    means *= random.random((1, bins, 1)) > empty
    means *= random.random((1, 1, classes)) > empty
    return random.poisson(means).astype(float)


def of_scipy(counts: np.ndarray) -> tuple[float, int]:
    there = counts[:, counts.sum(0) > 0]
    if there.shape[1] < 2 or (there.sum(1) == 0).any():
        return 0.0, 0
    found = chi2_contingency(there, correction=False)
    return found.statistic, found.dof


@few
@given(seeds)
def test_every_part_is_scipys(seed):
    table = drawn(seed)
    parts = {
        chi_square.compare_inputs: [table.sum(2)],
        chi_square.compare_inputs_in_classes: [table[:, :, at] for at in range(table.shape[2])],
        chi_square.compare_classes_given_inputs: [table[:, at] for at in range(table.shape[1])],
    }
    for test, counts in parts.items():
        statistic, free = test(table[None])
        theirs = [of_scipy(one) for one in counts]
        assert statistic[0] == pytest.approx(sum(s for s, _ in theirs))
        assert free[0] == sum(f for _, f in theirs)


@few
@given(seeds)
def test_a_client_beside_itself_differs_by_nothing_and_who_comes_first_is_nothing(seed):
    table = drawn(seed)
    for test in (
        chi_square.compare_inputs,
        chi_square.compare_inputs_in_classes,
        chi_square.compare_classes_given_inputs,
        chi_square.compare_odds_ratios,
    ):
        assert test(np.stack([table[0], table[0]])[None])[0][0] == pytest.approx(0, abs=1e-6)
        there, back = test(table[None]), test(table[None, ::-1])
        assert there[0][0] == pytest.approx(back[0][0], abs=1e-4)
        assert there[1][0] == back[1][0]


def test_tables_without_interaction_have_equal_odds_ratios_whatever_their_margins():
    odds = np.exp(np.random.default_rng(0).normal(size=(5, 3)))
    first = odds * np.array([1, 5, 2, 1, 3])[:, None] * np.array([4, 1, 2]) * 50
    second = odds * np.array([6, 1, 1, 2, 1])[:, None] * np.array([1, 1, 7]) * 20
    statistic, free = chi_square.compare_odds_ratios(np.stack([first, second])[None])
    assert free[0] == 4 * 2
    assert statistic[0] == pytest.approx(0, abs=1e-3)
    second[0, 0] *= 3
    assert chi_square.compare_odds_ratios(np.stack([first, second])[None])[0][0] > 30


def test_odds_ratios_that_agree_are_rejected_as_often_as_asked():
    random = np.random.default_rng(1)
    odds = np.exp(random.normal(size=(4, 3)))
    first, second = (odds * random.gamma(5, size=(4, 1)) * random.gamma(5, size=3) for _ in range(2))
    means = np.stack([300 * first / first.mean() / 12, 200 * second / second.mean() / 12])
    chances = chi_square.p_value(
        chi_square.compare_odds_ratios(random.poisson(means * 3, (2000, *means.shape)).astype(float))
    )
    assert kstest(chances, "uniform").pvalue > 1e-3


def test_inputs_at_one_prior_agree_where_only_labels_differ_and_are_rejected_as_often_as_asked():
    random = np.random.default_rng(2)
    of_class = random.dirichlet(np.ones(6), 3)  # bins of each class
    rows = np.array([[300, 50, 100], [60, 200, 150]])
    drawn = np.stack([[random.multinomial(rows[c, m], of_class[m], 3000) for m in range(3)] for c in range(2)])
    counts = np.moveaxis(drawn, (2, 0, 3, 1), (0, 1, 2, 3)).astype(float)
    chances = chi_square.p_value(chi_square.compare_inputs_at_prior(counts, np.full((3000, 3), 1 / 3)))
    assert abs((chances < 0.05).mean() - 0.05) < 0.02
    assert (chi_square.p_value(chi_square.compare_inputs(counts)) < 0.01).mean() > 0.3  # as they are, inputs differ


def test_effects_do_not_grow_with_the_rows():
    table = np.array([[[40.0, 10.0], [20.0, 30.0]], [[25.0, 25.0], [25.0, 25.0]]])[None]
    sizes = [100 * 100 / 200 * more for more in (1, 10, 1000)]
    small, middle, large = (
        chi_square.effect_size(chi_square.compare_classes_given_inputs(table * more), np.array([size]))[0]
        for more, size in zip((1, 10, 1000), sizes, strict=True)
    )
    assert small < middle < large
    assert large == pytest.approx(middle, rel=0.1)


def test_what_cannot_be_tested_is_certain():
    empty = np.zeros((1, 2, 3, 2))
    one_bin = np.zeros((1, 2, 3, 2))
    one_bin[0, :, 1] = 20
    for table in (empty, one_bin):
        for test in (chi_square.compare_inputs, chi_square.compare_inputs_in_classes, chi_square.compare_odds_ratios):
            assert chi_square.p_value(test(table))[0] == 1


@few
@given(seeds)
def test_with_noise_of_no_variance_every_part_is_what_it_is_without(seed):
    table = drawn(seed)[None]
    for test in (
        chi_square.compare_inputs,
        chi_square.compare_inputs_in_classes,
        chi_square.compare_classes_given_inputs,
    ):
        found = test(table, np.zeros_like(table))
        assert found[0][0] == pytest.approx(test(table)[0][0])
        assert found[1][0] == test(table)[1][0]
    full = table + 5.0
    found = chi_square.compare_odds_ratios(full, np.zeros_like(full))
    assert found[0][0] == pytest.approx(chi_square.compare_odds_ratios(full)[0][0], rel=1e-3, abs=1e-3)
    assert found[1][0] == chi_square.compare_odds_ratios(full)[1][0]


@pytest.mark.parametrize("rows", [(2000, 2000), (1500, 20_000)])
def test_under_noise_every_part_is_rejected_as_often_as_asked_whatever_the_sizes(rows):
    """Bins hold very different shares of the rows, and the noise is larger than the smallest of the smaller client."""
    random = np.random.default_rng(5)
    law = np.outer([0.02, 0.08, 0.15, 0.2, 0.25, 0.3], [0.2, 0.3, 0.5]) * np.exp(random.normal(0, 0.4, (6, 3)))
    law /= law.sum()
    truth = np.stack([random.multinomial(n, law.ravel(), 800).reshape(800, 6, 3) for n in rows], 1)
    sigma = 11.0
    assert (law * rows[0]).min() < sigma
    counts = truth + np.rint(random.normal(0, sigma, truth.shape))
    noise = np.full(counts.shape, sigma**2)
    prior = np.broadcast_to(law.sum(0), (800, 3))
    tested = {
        "labels": chi_square.pearson(counts.sum(-2), noise.sum(-2)),
        "bins": chi_square.compare_inputs(counts, noise),
        "bins in classes": chi_square.compare_inputs_in_classes(counts, noise),
        "classes in bins": chi_square.compare_classes_given_inputs(counts, noise),
        "odds": chi_square.compare_odds_ratios(counts, noise),
        "at a prior": chi_square.compare_inputs_at_prior(counts, prior, noise),
    }
    for name, found in tested.items():
        rejected = int((chi_square.p_value(found) < 0.05).sum())
        assert binomtest(rejected, 800, 0.05).pvalue > 1e-3, f"{name}: {rejected} of 800"
    factor = chi_square.pearson(counts.sum(-1))[0].mean() / tested["bins"][0].mean()
    assert factor > 1.5, "the noise is no matter of rounding"


@few
@given(seeds)
def test_how_large_a_table_beside_it_is_changes_nothing_of_a_table(seed):
    table = drawn(seed, empty=0.0)
    large = 1e5 * drawn(seed + 1, empty=0.0)
    both = np.zeros((2, *np.maximum(table.shape, large.shape)))
    both[0, : table.shape[0], : table.shape[1], : table.shape[2]] = table
    both[1, : large.shape[0], : large.shape[1], : large.shape[2]] = large
    assert chi_square.compare_odds_ratios(both)[0][0] == pytest.approx(
        chi_square.compare_odds_ratios(table[None])[0][0], rel=1e-3, abs=1e-3
    )


def test_columns_that_are_rare_at_the_smaller_client_are_pooled():
    counts = np.array([[300.0, 150, 40, 20, 18], [20, 10, 0, 0, 2]])
    pooled = chi_square.pool_rare(counts[None])[0]
    np.testing.assert_array_equal(pooled, [[300, 150, 78, 0, 0], [20, 10, 2, 0, 0]])
    few = np.array([[300.0, 150, 4], [20, 10, 1]])
    np.testing.assert_array_equal(chi_square.pool_rare(few[None])[0], [[304, 150, 0], [21, 10, 0]])
    equal = np.array([[30.0, 20, 1], [30, 21, 0]])
    np.testing.assert_array_equal(chi_square.pool_rare(equal[None])[0], equal)


def test_a_sum_over_rare_columns_of_unequal_clients_is_rejected_no_more_often_than_asked():
    """Without pooling one row of the small client in a rare bin rejects equality alone."""
    random = np.random.default_rng(3)
    shares = np.array([0.5, 0.3, 0.15, *np.full(10, 0.005)])
    counts = np.stack([random.multinomial(rows, shares, 4000) for rows in (10000, 30)], 1).astype(float)
    rejected = (chi_square.p_value(chi_square.pearson(chi_square.pool_rare(counts))) < 0.001).mean()
    assert rejected < 0.003
    assert (chi_square.p_value(chi_square.pearson(counts)) < 0.001).mean() > 0.02


@pytest.mark.parametrize("numeric", [True, False])
def test_a_single_contrast_is_found_in_fewer_rows_and_is_no_more_often_found_where_there_is_none(numeric):
    """A trend of log odds over ten bins, or one category of ten in which they differ."""
    rng, tables, cells = np.random.default_rng(4), 1500, np.arange(11)
    effect = 1.2 * (cells - 4.5) / 10 if numeric else 1.3 * (cells == 3)
    levels = {}
    for name, size in (("alike", 0.0), ("differ", 1.0)):
        chance = 1 / (1 + np.exp(1.0 - size * np.stack([0 * cells, effect])))
        rows = np.array([60.0] * 10 + [15.0])[:, None] * np.stack([1 - chance, chance], -1)
        counts = rng.poisson(rows, (tables, 1, 2, 11, 2)).astype(float)
        whole = chi_square.compare_odds_ratios(counts)
        single = chi_square.focus_on_odds_ratios(counts, chi_square.fit_margins(counts), np.array([numeric]))
        levels[name] = [float((p < 0.01).mean()) for p in (chi_square.p_value(whole), single.p_value)]
        in_classes = chi_square.focus_on_inputs_in_classes(counts, np.array([numeric]))
        if name == "alike":
            assert (in_classes.p_value < 0.01).mean() < 0.018
    assert levels["alike"][1] < 0.018
    assert levels["differ"][1] > levels["differ"][0] + 0.1


def test_of_two_cells_there_is_no_single_contrast_besides_the_whole():
    counts = np.random.default_rng(5).poisson(30.0, (3, 2, 2, 3, 2)).astype(float)
    counts[..., 2, :] = 0
    numeric = np.array([True, False])
    for found in (
        chi_square.focus_on_inputs_in_classes(counts, numeric),
        chi_square.focus_on_odds_ratios(counts, chi_square.fit_margins(counts), numeric),
    ):
        assert not found.dof.any()
        assert (found.p_value == 1).all()


def test_a_class_whose_rows_are_all_in_one_cell_is_not_compared():
    """Its variance is what rounding leaves, as in pixels that are nearly always empty."""
    rng = np.random.default_rng(6)
    counts = np.zeros((1, 200, 2, 33, 6))
    for client, label in np.ndindex(2, 6):
        counts[0, :, client, 0, label] = rng.integers(71, 97)
    counts[0, :, :, 1:9, 5] = rng.poisson(2.0, (200, 2, 8))
    found = chi_square.focus_on_inputs_in_classes(counts, np.ones(200, bool))
    assert (found.dof == 1).all()
    assert (found.p_value < 0.01).mean() < 0.03


@pytest.mark.parametrize("rows", [(100, 5000), (150, 3000)])
def test_a_single_category_that_is_rare_at_the_smaller_client_is_not_compared(rows):
    """Of the last four categories the smaller client is expected to have no more than six rows."""
    rng, shares = np.random.default_rng(7), np.array([0.5, 0.25, 0.12, 0.06, 0.04, 0.02, 0.01])
    counts = np.zeros((600, 1, 2, 8, 5))
    for client, of_client in enumerate(rows):
        counts[:, 0, client, :7] = rng.multinomial(of_client, np.outer(shares, np.full(5, 0.2)).ravel(), 600).reshape(
            600, 7, 5
        )
    numeric = np.zeros(1, bool)
    for found in (
        chi_square.focus_on_inputs_in_classes(counts, numeric),
        chi_square.focus_on_odds_ratios(counts, chi_square.fit_margins(counts), numeric),
    ):
        assert (found.p_value < 0.001).mean() < 0.006
