"""By how much two clients differ: against textbook formulas on the rows themselves, and coverage of the intervals."""

import numpy as np
import pytest
from scipy import stats

from models.diagnosis.client_summaries.client_summary import Layout, concatenate_summaries, summarize
from models.diagnosis.magnitudes import (
    Change,
    absent_classes,
    are_unlike,
    constant_features,
    feature_change,
    largest_label_change,
    largest_mean_differences,
    largest_share_differences,
    rule_change,
    smallest_visible,
    target_change,
)

LAYOUT = Layout(
    ("age", "sex", "dose"), (None, (0.0, 1.0), None), np.array([0.0, 0, -5]), np.array([100.0, 1, 60]), 16, 2,
    missing=(False, False, True),
)  # fmt: skip
CLASSES = ["well", "ill"]


def rows(rng, count, age=60.0, ill=0.2, women=0.5, unit=1.0, absent=0.0):
    dose = unit * rng.gamma(4, 1, count)
    dose[rng.random(count) < absent] = np.nan
    x = np.stack([rng.normal(age, 10, count), rng.random(count) < women, dose], 1)
    return x, (rng.random(count) < ill).astype(np.int64)


def two(first, second):
    return concatenate_summaries([summarize(x, y, np.arange(len(y)), LAYOUT) for x, y in (first, second)])


def test_a_mean_has_the_difference_and_the_interval_of_the_rows():
    rng = np.random.default_rng(0)
    first, second = rows(rng, 800, age=66), rows(rng, 500)
    change = feature_change(two(first, second), LAYOUT, 0)
    a, b = first[0][:, 0], second[0][:, 0]
    error = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    assert change.what == "mean"
    assert change.difference == pytest.approx(a.mean() - b.mean())
    assert (change.low, change.high) == pytest.approx(change.difference + stats.norm.ppf([0.025, 0.975]) * error)
    pooled = np.sqrt(((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / (len(a) + len(b) - 2))
    assert change.deviations == pytest.approx((a.mean() - b.mean()) / pooled)
    assert change.factor is None


def test_another_unit_is_seen_as_a_factor_and_an_offset_or_a_spread_is_not():
    rng = np.random.default_rng(1)
    plain = rows(rng, 600)
    assert feature_change(two(rows(rng, 600, unit=0.1), plain), LAYOUT, 2).factor == pytest.approx(0.1, rel=0.1)
    shifted = rows(rng, 600)
    shifted[0][:, 2] += 20
    assert feature_change(two(shifted, plain), LAYOUT, 2).factor is None
    assert feature_change(two(plain, shifted), LAYOUT, 2).factor is None
    wide = rows(rng, 600)
    wide[0][:, 0] = 60 + 3 * (wide[0][:, 0] - 60)
    change = feature_change(two(wide, plain), LAYOUT, 0)
    assert (change.what, change.factor) == ("spread", None)
    assert change.first == pytest.approx(wide[0][:, 0].std(ddof=1))
    errors = [x[:, 0].std(ddof=1) / np.sqrt(2 * len(x)) for x, _ in (wide, plain)]  # of normals
    half = stats.norm.ppf(0.975) * np.hypot(*errors)
    assert (change.low, change.high) == pytest.approx((change.difference - half, change.difference + half), rel=0.03)


def test_categories_and_missing_values_are_shares():
    rng = np.random.default_rng(2)
    first, second = rows(rng, 700, women=0.7, absent=0.3), rows(rng, 900)
    pair = two(first, second)
    category = feature_change(pair, LAYOUT, 1)
    assert (category.what, category.value) == ("category", "1")
    assert (category.first, category.second) == pytest.approx((first[0][:, 1].mean(), second[0][:, 1].mean()))
    missing = feature_change(pair, LAYOUT, 2)
    assert missing.what == "missing"
    assert missing.first == pytest.approx(np.isnan(first[0][:, 2]).mean())


def test_of_two_labels_the_rarer_one_is_described():
    rng = np.random.default_rng(3)
    first, second = rows(rng, 700, ill=0.3), rows(rng, 900)
    change = largest_label_change(two(first, second), CLASSES)
    assert change.name == "ill"
    assert (change.first, change.second) == pytest.approx((first[1].mean(), second[1].mean()))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "shares"), [(60, (0.3, 0.2)), (400, (0.12, 0.1))])
def test_the_interval_of_a_share_covers_in_94_to_97_of_100(count, shares):
    rng = np.random.default_rng(4)
    covered = []
    for _ in range(400):
        pair = two(rows(rng, count, ill=shares[0]), rows(rng, count, ill=shares[1]))
        change = largest_label_change(pair, CLASSES)
        truth = (shares[0] - shares[1]) * (1 if change.name == "ill" else -1)  # a class of nine rows is not reported
        covered.append(change.low <= truth <= change.high)
    assert 0.92 <= np.mean(covered) <= 0.98


def test_at_equal_inputs_the_difference_of_a_moved_threshold_is_that_of_the_strata():
    """The Mantel-Haenszel risk difference, from the rows in each cell."""
    rng = np.random.default_rng(5)

    def by_age(count, shift):
        x, _ = rows(rng, count, age=60 + 5 * shift)
        return x, (rng.random(count) < 1 / (1 + np.exp(-(x[:, 0] - 75) / 5 - shift))).astype(np.int64)

    first, second = by_age(900, 1.0), by_age(700, 0.0)
    change = rule_change(two(first, second), LAYOUT, 0, CLASSES)
    cells = [LAYOUT.cells_of(x)[:, 0] for x, _ in (first, second)]
    numerator = weight = 0.0
    for cell in range(LAYOUT.cells):
        a, b = first[1][cells[0] == cell], second[1][cells[1] == cell]
        if len(a) and len(b):
            numerator += len(a) * len(b) / (len(a) + len(b)) * (a.mean() - b.mean())
            weight += len(a) * len(b) / (len(a) + len(b))
    assert change.value == "ill"
    assert change.difference == pytest.approx(numerator / weight)
    assert 0 < change.low < change.difference < change.high


def test_a_rule_that_differs_in_one_category_is_described_by_the_shares_of_its_rows():
    rng = np.random.default_rng(6)
    (x, y), (other, labels) = rows(rng, 900), rows(rng, 900)
    y[x[:, 1] == 1] = rng.random(int((x[:, 1] == 1).sum())) < 0.5
    change = rule_change(two((x, y), (other, labels)), LAYOUT, 1, CLASSES)
    shares = y[x[:, 1] == 1].mean(), labels[other[:, 1] == 1].mean()
    assert (change.cell, change.value) == ("1", "ill")
    assert (change.first, change.second) == pytest.approx(shares)
    assert change.difference == pytest.approx(shares[0] - shares[1])
    assert rule_change(two((x[:, [1, 0, 2]], y), (other[:, [1, 0, 2]], labels)), LAYOUT, 0, CLASSES).cell is None


def test_a_class_that_one_client_does_not_report_is_not_compared():
    rng = np.random.default_rng(6)
    x, y = rows(rng, 300)
    few = np.zeros_like(y)
    few[:4] = 1
    pair = two((x, few), rows(rng, 300))
    change = largest_label_change(pair, CLASSES)
    assert change is None or change.name == "well"


def test_the_smallest_visible_difference_is_found_in_about_four_of_five_pairs():
    rng = np.random.default_rng(7)
    seen = smallest_visible((800.0, 800.0), 0.5, 1)["share"]
    found = []
    for _ in range(400):
        counts = rng.binomial(800, [0.5 + seen / 2, 0.5 - seen / 2])
        table = np.stack([counts, 800 - counts])
        found.append(stats.chi2_contingency(table, correction=False).pvalue < 0.01)
    assert 0.74 <= np.mean(found) <= 0.86


@pytest.mark.parametrize("features", [1, 12])
@pytest.mark.parametrize("rows", [(400.0, 400.0), (300.0, 1200.0)])
def test_the_smallest_visible_difference_of_a_mean_is_found_in_four_of_five_pairs_among_all_features(rows, features):
    seen = smallest_visible(rows, 0.3, features)
    size = rows[0] * rows[1] / sum(rows)
    needed = stats.norm.isf(0.01 / features / 2)  # standard errors, of a test of one of so many features
    assert stats.norm.sf(needed - seen["deviations"] * np.sqrt(size)) == pytest.approx(0.8)
    of_label = seen["share"] / np.sqrt(0.3 * 0.7)
    assert stats.norm.sf(stats.norm.isf(0.005) - of_label * np.sqrt(size)) == pytest.approx(0.8)
    assert smallest_visible((1e6, 1e6), 0.5, features) == {"share": 0.05, "deviations": 0.1}  # less is no effect


def test_tables_of_all_pairs_have_the_largest_differences_of_single_pairs():
    rng = np.random.default_rng(8)
    own = [rows(rng, 300, age=age, ill=ill) for age, ill in ((60, 0.2), (70, 0.2), (60, 0.5))]
    summaries = concatenate_summaries([summarize(x, y, np.arange(len(y)), LAYOUT) for x, y in own])
    means, shares = largest_mean_differences(summaries, LAYOUT), largest_share_differences(summaries)
    assert (means == means.T).all()
    assert not np.diag(means).any()
    for a in range(3):
        for b in range(a):
            pair = summaries.take([a, b])
            single = [feature_change(pair, LAYOUT, feature) for feature in (0, 2)]
            largest = max(abs(change.deviations) for change in single if change.what == "mean")
            assert means[a, b] >= largest - 1e-12
            assert shares[a, b] == pytest.approx(abs(largest_label_change(pair, CLASSES).difference))


def test_the_largest_difference_of_a_mean_is_in_deviations_pooled_over_the_rows_of_two_clients():
    rng = np.random.default_rng(8)
    (x, y), (other, labels) = rows(rng, 200), rows(rng, 1800, age=66)
    x[:, 0] = 60 + 3 * (x[:, 0] - 60)
    x[:, 2] = other[:, 2] = np.nan
    means = largest_mean_differences(two((x, y), (other, labels)), LAYOUT)
    variance = (199 * x[:, 0].var(ddof=1) + 1799 * other[:, 0].var(ddof=1)) / 1998
    assert means[0, 1] == means[1, 0] == pytest.approx(abs(x[:, 0].mean() - other[:, 0].mean()) / np.sqrt(variance))


@pytest.mark.parametrize(
    ("what", "low", "high", "is_clear"),
    [
        ("mean", 0.1, 0.3, True),
        ("mean", -0.3, -0.1, True),
        ("mean", -0.1, 0.3, False),
        ("category", np.nan, np.nan, True),
        ("rule", -0.1, 0.3, True),
    ],
)
def test_a_difference_is_clear_if_its_interval_leaves_out_none_and_a_rule_always(what, low, high, is_clear):
    assert Change(what, "age", 0.0, 0.0, 0.1, low, high).is_clear == is_clear


def test_a_feature_with_one_value_far_from_all_others_has_no_change_of_moments():
    rng = np.random.default_rng(9)
    first, second = rows(rng, 600, age=70), rows(rng, 600)
    first[0][3, 0] = 1e9
    assert feature_change(two(first, second), LAYOUT, 0) is None


def targets(rng, mean=10.0, gain=1.0, offset=0.0, count=800):
    y = gain * rng.normal(mean, 3, count) + offset
    centred = y - y.mean()
    m2, m3, m4 = ((centred**power).mean() for power in (2, 3, 4))
    return y, np.array([count, y.mean(), y.std(ddof=1), m3 / m2**1.5, m4 / m2**2])


def test_targets_differ_by_an_offset_or_by_a_gain_of_mean_and_deviation_and_the_amount_is_that_of_the_rows():
    rng = np.random.default_rng(0)
    (usual, own), (moved, of_offset), (_, of_gain) = targets(rng), targets(rng, offset=3.1), targets(rng, gain=1.2)
    offset = target_change(np.stack([of_offset, own]))
    assert (offset.what, offset.factor) == ("target", None)
    assert offset.difference == pytest.approx(moved.mean() - usual.mean())
    assert offset.low < 3.1 < offset.high
    gain = target_change(np.stack([of_gain, own]))
    assert gain.factor == pytest.approx(1.2, abs=0.1)
    assert target_change(np.stack([own, of_gain])).factor == pytest.approx(1 / gain.factor)
    assert target_change(np.full((2, 5), np.nan)) is None
    assert target_change(np.stack([targets(rng)[1], own])).factor is None  # deviations that differ by chance


def test_of_40_offsets_of_either_sign_none_is_called_a_gain_and_of_40_gains_nearly_all_are():
    rng = np.random.default_rng(1)
    of_offsets = [target_change(np.stack([targets(rng, offset=a)[1], targets(rng)[1]])) for a in [3.0, -3.0] * 20]
    of_gains = [target_change(np.stack([targets(rng, gain=g)[1], targets(rng)[1]])) for g in [1.25, 0.8] * 20]
    assert sum(change.factor is not None for change in of_offsets) <= 1
    assert sum(change.factor is not None for change in of_gains) >= 36


def test_amounts_of_targets_are_unlike_if_one_is_a_gain_or_if_they_are_further_apart_than_by_chance():
    def change(mean, deviation):
        return target_change(np.array([[400, mean, deviation, 0.0, 3.0], [4000, 31.0, 9.0, 0.0, 3.0]]))

    assert are_unlike([change(56.0, 9.0), change(55.8, 16.2)])
    assert not are_unlike([change(56.0, 9.0), change(56.5, 9.2)])
    assert are_unlike([change(56.0, 9.0), change(45.0, 9.0)])
    assert not are_unlike([change(56.0, 9.0)])
    assert not are_unlike([])


def test_a_class_that_one_client_does_not_have_comes_first_and_one_with_a_few_unreported_rows_is_not_absent():
    rng = np.random.default_rng(2)
    (x, y), usual = rows(rng, 600), rows(rng, 500, ill=0.4)
    change = largest_label_change(two((x[y == 0], y[y == 0]), usual), CLASSES)
    assert (change.what, change.name, change.first) == ("absent", "ill", 0.0)
    assert change.second == pytest.approx(usual[1].mean())
    few = np.flatnonzero(y == 1)[:5]
    kept = np.concatenate([np.flatnonzero(y == 0), few])
    assert not absent_classes(two((x[kept], y[kept]), usual)).any()
    assert absent_classes(two((x[y == 0], y[y == 0]), usual)).tolist() == [[False, True], [False, False]]


def test_a_feature_with_one_value_at_one_client_is_constant_there_whichever_side_it_is():
    rng = np.random.default_rng(3)
    (x, y), usual = rows(rng, 600), rows(rng, 500)
    x[:, 0] = 27.3
    change = feature_change(two((x, y), usual), LAYOUT, 0)
    assert (change.what, change.first, change.value) == ("constant", 0.0, "27.3")
    assert feature_change(two(usual, (x, y)), LAYOUT, 0).second == 0.0
    both = two((x, y), (x, y))
    assert not constant_features(both, LAYOUT).any()
    assert constant_features(two((x, y), usual), LAYOUT).tolist() == [[True, False, False], [False] * 3]
