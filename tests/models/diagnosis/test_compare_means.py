"""Means of a feature are compared where two clients have one or two cells in common, and only there."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from models.diagnosis.chi_square import p_value
from models.diagnosis.client_summaries.client_summary import Layout, concatenate_summaries, summarize
from models.diagnosis.client_summaries.common_cells import count_common_cells, count_in
from models.diagnosis.compare_means import compare_means
from models.diagnosis.diagnose_pairs import diagnose_pairs
from models.diagnosis.guarded_tests import count_evidence
from models.diagnosis.merged_tables import build_pairs

LAYOUT = Layout(("a", "b"), (None, None), np.full(2, -3.0), np.full(2, 3.0), 32, 2)
ONE, BOTH = np.array([0]), np.array([[0, 1]])


def client(seed, shift, ends):
    """Of 300 rows, whose first feature has cells that end at these bins."""
    rng = np.random.default_rng(seed)
    y = (np.arange(300) < 120).astype(int)
    x = rng.normal(size=(300, 2))
    x[:, 0] += shift
    found = summarize(x, y, np.arange(300), LAYOUT)
    cells = np.tile(np.arange(LAYOUT.cells), (2, 1))
    cells[0, :32] = np.array(ends)[np.searchsorted(ends, np.arange(32))]
    return replace(found, counts=count_in(found.counts, cells[None]), counted_in=cells[None])


def pair(seed, shift, second=(11, 31)):
    """Of two clients, the first of which has two cells of the first feature: up to bin 19, and from bin 20 on."""
    return concatenate_summaries([client([seed, 0], 0.0, (19, 31)), client([seed, 1], shift, second)])


def compared(summaries):
    return diagnose_pairs(summaries, LAYOUT, ONE, ONE + 1)


@pytest.mark.parametrize("shift", [-1.0, 0.5, 1.0, 1.5])
def test_a_number_that_moved_is_named_though_the_two_have_one_cell_in_common(shift):
    summaries = pair(3, shift)
    assert (count_common_cells(summaries, BOTH) == 1).tolist() == [[True, False]]
    found = compared(summaries)
    assert found.verdicts.types[0].tolist() == [True, False, False]
    assert found.parts[0].argmax() == 0
    assert found.parts[0, 0] > 0.3 * abs(shift)


def test_a_number_that_moved_is_named_though_nearly_all_rows_are_in_one_of_two_cells():
    silos = [client([3, 0], 0.0, (28, 31)), client([3, 1], 0.5, (11, 28, 31))]
    summaries = concatenate_summaries(silos)
    assert count_common_cells(summaries, BOTH)[0, 0] == 2
    found = compared(summaries)
    assert found.verdicts.types[0].tolist() == [True, False, False]
    without = count_evidence(build_pairs(summaries, LAYOUT, ONE, ONE + 1)._replace(by_mean=None))
    assert not without.bins_in_classes.any()


def test_where_three_cells_are_common_nothing_changes():
    summaries = concatenate_summaries([client([3, 0], 0.0, (11, 19, 31)), client([3, 1], 1.0, (11, 19, 25, 31))])
    assert count_common_cells(summaries, BOTH)[0, 0] == 3
    built = build_pairs(summaries, LAYOUT, ONE, ONE + 1)
    found, without = count_evidence(built), count_evidence(built._replace(by_mean=None))
    for name, chance in found.chances.items():
        np.testing.assert_array_equal(chance, without.chances[name])


def test_a_client_that_has_one_cell_itself_is_compared_too():
    summaries = pair(3, 1.5, second=(31,))
    assert (count_common_cells(summaries, BOTH) == 1).tolist() == [[True, False]]
    assert compared(summaries).verdicts.types[0].tolist() == [True, False, False]


def test_where_no_client_merged_cells_all_of_them_count():
    summaries = pair(3, 1.0)
    cells = np.tile(np.arange(LAYOUT.cells), (2, 2, 1))
    assert (count_common_cells(replace(summaries, counted_in=cells), BOTH) == LAYOUT.cells).all()


def test_under_noise_no_means_are_compared():
    summaries = pair(3, 1.0)
    noisy = replace(summaries, noise=np.ones_like(summaries.counts))
    assert (count_common_cells(noisy, BOTH) == LAYOUT.cells).all()


def test_missing_values_are_still_compared_where_values_have_one_cell():
    """A third of the rows of one client have no value, and means agree."""
    summaries = pair(3, 0.0)
    counts = summaries.counts.copy()
    counts[1, 0, -1] = np.round(counts[1, 0, :-1].sum(0) / 3)
    counts[1, 0, :-1] *= 2 / 3
    summaries = replace(summaries, counts=counts)
    assert (count_common_cells(summaries, BOTH) == 1).tolist() == [[True, False]]
    assert compared(summaries).verdicts.types[0].tolist() == [True, False, False]


def test_a_pair_with_one_cell_of_every_feature_is_compared_and_its_classes_too():
    summaries = pair(3, 0.0)
    one_cell = np.where(np.arange(LAYOUT.cells) < 32, 31, 32)
    cells = np.tile(one_cell, (2, 2, 1))
    summaries = replace(summaries, counts=count_in(summaries.counts, cells), counted_in=cells)
    verdicts = compared(summaries).verdicts
    assert not np.concatenate([verdicts.types[0], verdicts.undetermined, verdicts.margins_only]).any()


def test_without_means_nothing_is_compared():
    summaries = pair(3, 1.5)
    summaries.moments[1, 0, 0] = np.nan
    found = compared(summaries)
    assert (count_common_cells(summaries, BOTH) == 1).tolist() == [[True, False]]
    assert not found.verdicts.types.any()


def test_alike_clients_are_rarely_found_to_differ():
    """Of 200 pairs: each test at its level of 5 %, and all verdicts together."""
    chances, named = [], 0
    for seed in range(200):
        summaries = pair(seed, 0.0)
        evidence = count_evidence(build_pairs(summaries, LAYOUT, ONE, ONE + 1))
        chances.append([evidence.chances[name][0, 0] for name in ("bins", "bins_in_classes", "at_mean", "at_even")])
        named += compared(summaries).verdicts.types.any()
    for rejected in (np.array(chances) < 0.05).sum(0).tolist():
        assert stats.binomtest(rejected, 200, 0.05).pvalue > 0.01
    assert stats.binomtest(int(named), 200, 0.02, alternative="greater").pvalue > 0.01


def moments(*of_columns):
    """Of two clients, (2, columns, 5), from samples."""
    rows = [[(len(v), v.mean(), v.std(ddof=1), 0.0, 3.0) for v in columns] for columns in of_columns]
    return np.array(rows)


def chances_of(one, other):
    """The p-values of all four hypotheses, of two clients with one class."""
    none = np.full((2, 1, 5), np.nan)
    both = np.concatenate([moments([one], [other]), none], 1)
    found = compare_means(both, np.array([[True, False]] * 2), np.array([True]), (np.ones(1), np.ones(1)))
    return [p_value(result) for result in found]


def test_p_values_are_those_of_welchs_test_with_at_least_the_deviation_of_both():
    rng = np.random.default_rng(0)
    for first, second in ((10, 10), (10, 200), (40, 25)):
        one, other = rng.normal(size=first), rng.normal(0.8, 2.0, size=second)
        variances = one.var(ddof=1), other.var(ddof=1)
        of_both = np.average(variances, weights=(first - 1, second - 1))
        deviations = np.sqrt(np.maximum(variances, of_both))
        expected = stats.ttest_ind_from_stats(
            one.mean(), deviations[0], first, other.mean(), deviations[1], second, equal_var=False
        ).pvalue
        for result in chances_of(one, other):
            assert result == pytest.approx(expected, rel=0.03)


def test_alike_clients_of_unlike_sizes_are_rarely_found_to_differ_in_a_skewed_feature():
    """Of 500 pairs, with 15 and 1,000 values of a lognormal feature: Welch's test rejects far more at the 1 % level."""
    rng, rejected = np.random.default_rng(0), np.zeros(2)
    for _ in range(500):
        one, other = np.exp(rng.normal(size=15)), np.exp(rng.normal(size=1000))
        plain = stats.ttest_ind(one, other, equal_var=False).pvalue
        rejected += np.array([plain, max(chances_of(one, other))]) < 0.01
    assert rejected[0] > 15
    assert rejected[1] < 10
