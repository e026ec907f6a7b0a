"""What verdicts say of pairs whose shift is known, and the families of such pairs."""

import numpy as np
import pytest
from scipy.stats import binomtest

from publications.synthetic_pairs.evaluate_verdicts import (
    BY_ROW,
    layout_of,
    named,
    named_types,
    opinion,
    opinion_under_noise,
    second_opinion,
)
from publications.synthetic_pairs.families import FAMILIES, PairRequest
from publications.synthetic_pairs.generators import KnownPair

pytestmark = pytest.mark.slow


def said(family: str, row: str, rows: tuple[int, int], pairs: int, judge: str = "guarded") -> list[str]:
    asked = PairRequest(row, rows)
    return [opinion(FAMILIES[family].draw(asked, 9, number)).verdicts[judge] for number in range(pairs)]


@pytest.mark.parametrize("row", ["none", "feature", "label", "concept", "label+feature"])
def test_a_row_of_the_first_truth_table_is_named_as_often_as_published_within_binomial_error(row):
    published = {"none": 197, "feature": 191, "label": 198, "concept": 195, "label+feature": 199}[row]
    truth = named_types(FAMILIES["one_feature"].truths[row])
    right = sum(verdict == truth for verdict in said("one_feature", row, (500, 500), 40))
    assert binomtest(right, 40, published / 200).pvalue > 0.001


def test_the_printed_rule_misses_half_of_the_label_shifts_that_it_is_published_to():
    right = sum(verdict == "label" for verdict in said("one_feature", "label", (500, 500), 40, "paper"))
    assert binomtest(right, 40, 97 / 200).pvalue > 0.001


def test_visits_of_patients_are_judged_by_patient_and_by_row():
    """Alike hospitals with eight visits a patient: counted by row they seem to differ, by patient they do not."""
    by_row, by_unit = (said("clinical", "alike, visits", (300, 300), 5, judge) for judge in (BY_ROW, "guarded"))
    assert by_row.count("none") <= 1
    assert by_unit.count("none") == 5
    asked = PairRequest("alike, visits", (300, 300))
    seconds = [
        second_opinion(FAMILIES["clinical"].draw(asked, 9, n), np.random.default_rng([9, n]))[0] for n in range(5)
    ]
    assert seconds == by_unit


@pytest.mark.parametrize("row", ["x5 + 1", "codes 0.6, 0.2, 0.2", "classes cycled"])
def test_rows_of_the_second_truth_table_are_named_and_codes_are_categories(row):
    truth = named_types(FAMILIES["six_features"].truths[row])
    assert said("six_features", row, (500, 500), 5).count(truth) >= 4


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_draws_its_rows_the_same_from_the_same_seed_and_others_from_another(family):
    row = [*FAMILIES[family].truths][1]
    asked = PairRequest(row, (60, 80), 0.3)
    pair, again, other, later = (FAMILIES[family].draw(asked, *at) for at in ((1, 0), (1, 0), (2, 0), (1, 1)))
    np.testing.assert_array_equal(pair.clients[0][0], again.clients[0][0])
    assert pair.truth == FAMILIES[family].truths[row]
    for one in (other, later):
        mine, theirs = (np.asarray(p.clients[0][0], float).ravel()[:20] for p in (pair, one))
        assert mine.shape != theirs.shape or (mine != theirs).any()


@pytest.mark.parametrize(
    ("epsilon", "row", "of_thirty"),
    [(1, "none", 22), (1, "label", 23), (1, "feature", 30), (1, "concept", 29), (4, "none", 28)],
)
def test_under_noise_the_truth_is_named_as_often_as_published_within_binomial_error(epsilon, row, of_thirty):
    pairs = [FAMILIES["five_features"].draw(PairRequest(row, (2000, 2000)), 9, number) for number in range(30)]
    rng = np.random.default_rng(9)
    right = sum(
        opinion_under_noise(pair, epsilon, rng).verdicts["guarded"] == named_types(pair.truth) for pair in pairs
    )
    assert right >= of_thirty or binomtest(right, 30, (of_thirty - 0.5) / 30).pvalue > 0.001


def test_without_noise_to_speak_of_to_know_of_it_changes_nothing_and_the_truth_is_named():
    for row, truth in FAMILIES["five_features"].truths.items():
        pair = FAMILIES["five_features"].draw(PairRequest(row, (2000, 2000)), 9, 0)
        said = opinion_under_noise(pair, 1e4, np.random.default_rng(0)).verdicts
        assert said == {"guarded": named_types(truth), "unaware": named_types(truth)}


def test_under_much_noise_a_verdict_that_knows_of_none_hears_shift_everywhere():
    pairs = [FAMILIES["five_features"].draw(PairRequest("none", (2000, 2000)), 9, number) for number in range(10)]
    said = [opinion_under_noise(pair, 0.7, np.random.default_rng(number)).verdicts for number, pair in enumerate(pairs)]
    assert sum(one["unaware"] == "none" for one in said) <= 4 < sum(one["guarded"] == "none" for one in said)


def test_where_bounds_are_agreed_on_bins_are_within_them():
    pair = FAMILIES["five_features"].draw(PairRequest("none", (500, 500)), 1, 0)
    layout = layout_of(pair, 8)
    assert (layout.low.tolist(), layout.high.tolist(), layout.bins) == ([-3] * 5, [3] * 5, 8)


def test_features_that_carry_a_shift_are_ranked_by_their_part():
    rng = np.random.default_rng(0)
    x, other = rng.normal(size=(400, 4)), rng.normal(size=(400, 4)) + np.array([0, 1, 0, 2])
    y, labels = rng.integers(0, 2, 400), rng.integers(0, 2, 400)

    def ranked(*shifted: int):
        pair = KnownPair(((x, y), (other, labels)), 2, np.zeros(4, int), frozenset({"feature"}), shifted)
        return opinion(pair).ranked

    assert ranked(1, 3) == (True, True)
    assert ranked(3) == (True, True)
    assert ranked(1) == (False, False)
    assert ranked(0, 3) == (False, True)
    assert ranked() is None


def test_clients_with_few_rows_are_undetermined_and_never_alike():
    rows = (np.zeros((19, 1)), np.zeros(19, int)), (np.ones((500, 1)), np.ones(500, int))
    assert opinion(KnownPair(rows, 2, np.zeros(1, int), frozenset())).verdicts["guarded"] == "undetermined"


def test_bins_are_those_of_both_clients_and_codes_are_in_their_order():
    pair = FAMILIES["six_features"].draw(PairRequest("none", (500, 500)), 1, 0)
    layout = layout_of(pair)
    both = np.concatenate([x for x, _ in pair.clients])
    assert layout.categories == (None, None, None, None, (1.0, 2.0, 3.0), None)
    np.testing.assert_allclose(layout.high - layout.low, 6 * both.std(0))
    np.testing.assert_allclose((layout.high + layout.low) / 2, both.mean(0))


def test_names_of_types_have_one_order():
    assert named_types(frozenset({"concept", "feature"})) == "feature+concept"
    assert named_types(frozenset()) == "none"
    assert named(np.array([False, True, True])) == "label+concept"
