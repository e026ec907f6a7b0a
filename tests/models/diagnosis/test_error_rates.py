"""Each factor that holds false alarms down, by a hand calculation: two sides, two tests, features, pairs and groups."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from models.diagnosis import chi_square, diagnose_pairs
from models.diagnosis.chi_square import Focused
from models.diagnosis.client_summaries.client_summary import Layout, Summaries
from models.diagnosis.client_summaries.rank_correlations import Correlations, combine_correlations
from models.diagnosis.correlation_tests import (
    _compare_targets,
    _describe,
    _largest,
    compare_correlations,
    effect_on_prediction,
)
from models.diagnosis.diagnose_pairs import REASONS, Alignment, Findings
from models.diagnosis.guarded_tests import ALPHA, SizedTest, covered, priors
from models.diagnosis.name_shift_types import Verdicts, check_covariates
from models.diagnosis.pseudo_rows import SharedModelLoss
from models.diagnosis.screen_clients import compare_inside, homogeneity

ONE = np.array([0])


def apart(inputs_moved=False):
    """A pair without a common group of targets, of which only margins are known."""
    no, zeros = np.zeros(1, bool), np.zeros((1, 2))
    verdicts = Verdicts(np.zeros((1, 3), bool), ~no, no, no, no)
    why = np.array([REASONS.index("apart")])
    moved = np.array([inputs_moved])
    rows = np.array([[400, 400]])
    of_features = [zeros] * 4
    return Findings(
        ONE, ONE + 1, rows, verdicts, np.ones(1), no, moved, *of_features, np.ones(1), np.ones((1, 2), bool), why
    )


def targets(difference, rows=400, deviation=1.0):
    return np.array([[rows, 0.0, deviation, 0, 3], [rows, difference, deviation, 0, 3]])


@pytest.mark.parametrize("sign", [-1, 1])
def test_targets_are_tested_on_both_sides(sign):
    """Between the quantiles of one and of two sides, targets did not move; the effect is large enough in either case."""
    few = 40  # rows, so that chance decides and not the size of the effect
    error = np.sqrt(2 / few)
    student = stats.t(2 * (few - 1))
    one_sided, two_sided = (student.isf(ALPHA / sides) * error for sides in (1, 2))
    between, beyond = (one_sided + two_sided) / 2, 1.01 * two_sided
    assert not _compare_targets(apart(), targets(sign * between, few)).labels[0]
    found = _compare_targets(apart(), targets(sign * beyond, few))
    assert found.labels[0]
    assert found.chance[0] == pytest.approx(min(1, 4 * student.sf(beyond / error)))


@pytest.mark.parametrize("swapped", [False, True])
def test_targets_of_unequal_rows_and_deviations_are_compared_by_welchs_test(swapped):
    for difference, differs in ((0.395, False), (0.41, True)):  # a fifth of the larger deviation
        sides = [(250, 10.0, 0.5), (400, 10 + difference, 2.0)][:: -1 if swapped else 1]
        found = _compare_targets(apart(), np.array([[*side, 0, 3] for side in sides]))
        statistics = [side[at] for side in sides for at in (1, 2, 0)]
        p_value = stats.ttest_ind_from_stats(*statistics, equal_var=False).pvalue
        assert p_value < ALPHA
        assert found.labels[0] == differs
        assert found.chance[0] == pytest.approx(2 * p_value if differs else 1)


def test_targets_that_moved_are_another_rule_where_inputs_did_not_and_only_margins_where_they_did():
    types = [_compare_targets(apart(moved), targets(2.0)).verdicts.types[0].tolist() for moved in (False, True)]
    assert types == [[False, False, True], [True, True, False]]


def test_the_smaller_of_two_tests_of_one_hypothesis_counts_twice_and_times_the_hypotheses():
    whole, size = (np.array([[9.0]]), np.array([[3]])), np.array([[100.0]])
    focused = Focused(np.array([[8.0]]), np.array([[1]]), np.array([[1]]))
    least = min(stats.chi2.sf(9, 3), stats.chi2.sf(8, 1))
    tested = SizedTest(whole, size, focused)
    assert tested.p_value[0, 0] == pytest.approx(2 * least)
    assert tested.rejected(1)[0, 0] == (2 * least < ALPHA)
    assert [SizedTest((np.array([[16.0]]), whole[1]), size).rejected(of)[0, 0] for of in (1, 8, 9)] == [
        True,
        True,
        False,
    ]
    assert 8 * stats.chi2.sf(16, 3) < ALPHA < 9 * stats.chi2.sf(16, 3)


def test_the_silos_of_a_group_are_compared_times_the_number_of_features():
    rng = np.random.default_rng(3)
    counts = rng.multinomial(200, [0.25] * 4, (6, 5)).astype(float)
    counts[:3, 0] += [12, 0, 0, 0]
    table = np.concatenate([counts[..., None], np.zeros((*counts.shape, 1))], -1)
    labels = table.sum(2)[:, 1, :1]
    summaries = Summaries(labels[:, 0], labels, table, np.full((6, 5, 2, 5), np.nan))
    single = homogeneity(table[..., :1], 0.1)
    assert compare_inside(summaries, [[*range(6)]])[0, 1] == pytest.approx(min(1.0, 5 * single.min()))


def test_correlations_are_tested_times_the_number_of_pairs_of_features():
    """Fisher's z of one of three pairs of features differs; its p-value is compared with a quarter of ALPHA over three."""
    values, variances = np.zeros((2, 3, 2)), np.full((2, 3, 2), 1 / 203)
    rows = np.array([[203.0], [203.0]])
    for level, differs in ((0.9, True), (1.1, False)):
        z = stats.norm.isf(level * ALPHA / 4 / 3 / 2) * np.sqrt(2 / 200)
        values[1, 0] = np.tanh(z)
        scaled = variances.copy()
        scaled[1, 0] *= (1 - np.tanh(z) ** 2) ** 2
        found = compare_correlations(Correlations(np.arange(3), values, scaled), rows, ONE, ONE + 1)
        assert found.differ[0].tolist() == [differs, False, False]
        assert found.chance[0] == pytest.approx(3 * level * ALPHA / 12, rel=1e-3)


def test_pairs_of_features_are_described_with_the_largest_effect_first():
    values = np.arange(12.0).reshape(2, 3, 2) / 20
    correlations = Correlations(np.array([0, 2, 5]), values, np.full((2, 3, 2), 0.01))
    effects = np.array([[0.2, 0.4, 0.3]])
    evidence = SimpleNamespace(effects=effects)
    (found,) = _describe(correlations, evidence, np.array([[True, True, False]]), ONE, ONE + 1)
    assert [(pair.features, pair.effect) for pair in found] == [((0, 5), 0.4), ((0, 2), 0.2)]
    np.testing.assert_array_equal(found[0].of_first, values[0, 1])
    np.testing.assert_array_equal(found[0].of_second, values[1, 1])


@pytest.mark.parametrize(("classes", "fitted"), [(5, [4, 2, 0]), (50, [4, 2])])
def test_shared_models_are_fitted_of_the_pairs_that_differ_most_as_many_as_the_budget_allows(classes, fitted):
    """A thousand features times classes times pairs."""
    parts = np.array([[0.1, 0.2], [0.9, 0.9], [0.3, 0.1], [0.8, 0.1], [0.1, 0.4]])
    pseudo = SimpleNamespace(layout=SimpleNamespace(names=("x",) * 10, classes=classes))
    selected = np.array([True, False, True, False, True])
    assert _largest(SimpleNamespace(parts=parts), pseudo, selected) == fitted


def test_combined_correlations_are_weighted_by_rows_and_their_errors_by_the_squares_of_the_weights():
    values, variances = np.array([[[0.1]], [[0.5]]]), np.array([[[0.01]], [[0.04]]])
    found = combine_correlations(Correlations(np.arange(2), values, variances), np.array([[100.0], [300.0]]), [[0, 1]])
    assert found.values[0, 0, 0] == pytest.approx((100 * 0.1 + 300 * 0.5) / 400)
    assert found.variances[0, 0, 0] == pytest.approx((100**2 * 0.01 + 300**2 * 0.04) / 400**2)


def loss(points, half, log_loss=0.0, error=0.001):
    return SharedModelLoss(points, points - half, points + half, 0.9, 0.9 - points, log_loss, error)


@pytest.mark.parametrize(
    ("first", "second", "grade"),
    [
        (loss(0.03, 0.02), loss(0.0, 0.01), "seen"),
        (loss(0.03, 0.04), loss(0.0, 0.01), "unknown"),
        (loss(0.015, 0.004), loss(0.0, 0.01), "none seen"),
        (loss(0.015, 0.006), loss(0.0, 0.01), "unknown"),
        (loss(0.0, 0.01, 0.04, 0.01), loss(0.0, 0.01), "seen"),
        (loss(0.0, 0.01, 0.04, 0.015), loss(0.0, 0.01), "unknown"),
        (loss(0.0, 0.01, 0.025, 0.001), loss(0.0, 0.01), "none seen"),
    ],
)
def test_an_effect_on_prediction_needs_its_size_and_an_interval_that_leaves_out_none(first, second, grade):
    assert effect_on_prediction((first, second)) == effect_on_prediction((second, first)) == grade


def test_what_models_do_not_foresee_is_tested_times_the_number_of_features():
    """Nine features with the same odds ratios hide a deviation of the first that it alone would show."""
    counts = np.array([[[160.0, 40], [100, 100], [40, 160]], [[100, 100], [100, 100], [100, 100]]])
    expected = np.array([[[160.0, 40], [100, 100], [40, 160]], [[126, 74], [100, 100], [74, 126]]])
    deviation = chi_square.fit_margins(counts[None], expected[None])[0]
    p_value = stats.chi2.sf(((counts - deviation) ** 2 / deviation).sum(), 2)
    assert ALPHA / 9 < p_value < ALPHA
    answers = []
    for features in (1, 9):
        alike = np.broadcast_to(counts[:1], counts.shape)
        tables = np.stack([counts, *[alike] * (features - 1)], 1)
        models = np.stack([expected, *[alike] * (features - 1)], 1)
        cells = np.pad(tables, ((0, 0), (0, 0), (0, 1), (0, 1)))
        layout = Layout(
            tuple(map(str, range(features))), (None,) * features, np.zeros(features), np.ones(features), 3, 2
        )
        labels = counts.sum(1)
        summaries = Summaries(labels.sum(-1), labels, cells, np.full((2, features, 3, 5), np.nan))
        predicted = np.pad(np.stack([models, models], 1), ((0, 0), (0, 0), (0, 0), (0, 1), (0, 0)))
        answers.append(bool(check_covariates(summaries, layout, predicted, ONE, ONE + 1).rules[0]))
    assert answers == [False, True]


def test_a_gain_and_an_offset_are_tested_times_the_number_of_features_and_take_two_degrees_of_freedom(monkeypatch):
    """The statistic of two classes has 2 · 2 − 2 degrees of freedom, since gain and offset are fitted."""
    at = stats.chi2.isf(ALPHA / 3, 2)
    for statistic, same in ((0.99 * at, True), (1.01 * at, False)):
        pairs = SimpleNamespace(counts=np.zeros((1, 3, 2, 4, 3)), numeric=np.ones(3, bool))
        scaled, compared = np.ones((1, 3, 2, 2, 5)), np.ones((1, 3, 2), bool)
        scaled[..., 0] = 200
        monkeypatch.setattr(Alignment, "_scaled", lambda *_, answer=(scaled, compared): answer)
        monkeypatch.setattr(diagnose_pairs, "mean_and_spread", lambda _, of=statistic: np.full((1, 3, 2), of / 2))
        assert Alignment(pairs).transforms(ONE, np.ones((1, 3), bool))[0] == same


def test_a_common_prior_is_the_mean_of_both_clients_shares_of_the_compared_classes():
    labels = np.array([[[60.0, 30, 10, 5], [20, 20, 60, 0]]])
    mean, even = priors(labels, np.array([[[True, True, True], [True, True, False]]]))
    shares = (labels[0, :, :3] / 100).mean(0)
    np.testing.assert_allclose(mean[0], [shares, [*(shares[:2] / shares[:2].sum()), 0]])
    np.testing.assert_allclose(even[0], [[1 / 3] * 3, [1 / 2, 1 / 2, 0]])


def test_a_class_is_covered_if_any_feature_compares_it():
    pairs = SimpleNamespace(labels=np.array([[[60.0, 40, 9, 0], [60, 0, 9, 0]]]), noise=None)
    compared = np.array([[[True, True, False], [True, False, False]]])
    assert covered(pairs, compared).tolist() == [True]  # of the third class there are nine rows
    assert covered(pairs, compared[:, 1:]).tolist() == [False]
