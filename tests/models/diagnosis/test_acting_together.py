"""Two features that act together in a common rule are no other rule when one of them moves."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import expit

from models.diagnosis.client_summaries.client_summary import concatenate_summaries, summarize
from models.diagnosis.client_summaries.model_predictions import Design
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.correlation_tests import refine_findings
from models.diagnosis.diagnose_pairs import MOST_PRODUCTS, diagnose_pairs, explaining_products, rule_features
from publications.synthetic_pairs.evaluate_verdicts import correlations_of, layout_of, second_opinion, verdict_of
from publications.synthetic_pairs.generators import KnownPair

AGE, BMI, LAB, EMERGENCY, SEX = range(5)
CATEGORIES = np.array([0, 0, 0, 2, 2])
OF_AGE = {"usual": {}, "alone": {"alone": 0.0}, "less": {"together": -1.2, "alone": 0.6}, "more": {"together": 2.5}}


def patients(rng, rows, older=0.0, together=1.5, alone=0.3, emergency=1.0):
    """Age decides more in an emergency; `older` moves age only, the others change the rule."""
    age, urgent, sex = np.round(62 + 14 * rng.normal(size=rows) + older), rng.random(rows) < 0.4, rng.random(rows) < 0.5
    bmi, lab = 27 + 4 * rng.normal(size=rows), np.exp(rng.normal(size=rows))
    of_age = (alone + together * np.where(urgent, 1.0, -0.2)) * (age - 62) / 14
    chance = expit(-1 + of_age + 0.1 * (bmi - 27) + 0.3 * np.log(lab) + emergency * urgent)
    return np.stack([age, bmi, lab, 1.0 + urgent, 1.0 + sex], 1), (rng.random(rows) < chance).astype(np.int64)


def pair_of(seed, first, second, rows=3000):
    rng = np.random.default_rng([seed, 57])
    return KnownPair((patients(rng, rows, **first), patients(rng, rows, **second)), 2, CATEGORIES, frozenset())


def judged(pair, **more):
    layout = layout_of(pair)
    summaries = concatenate_summaries([summarize(x, y, np.arange(len(y)), layout) for x, y in pair.clients])
    before = diagnose_pairs(summaries, layout, np.array([0]), np.array([1]))
    return before, refine_findings(before, summaries, layout, correlations_of(pair, summaries, layout), **more)[0]


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_a_product_that_a_common_rule_explains_is_no_other_rule_if_only_a_trend_shows_it(seed):
    """Of 300 rows only the trend over the second number's ranks differs, and models explain just that."""
    rng, clients = np.random.default_rng([163, 300, seed, 3]), []
    for moved in (0.0, 0.65):
        x = rng.normal(size=(300, 4))
        x[:, 0] += moved
        log_odds = -0.5 + 0.3 * (x[:, 0] + x[:, 1] + x[:, 2]) + 1.5 * x[:, 0] * x[:, 1]
        clients.append((x, (rng.random(300) < expit(log_odds)).astype(np.int64)))
    pair = KnownPair(tuple(clients), 2, np.zeros(4, np.int64), frozenset({"feature"}))
    before, after = judged(pair)
    assert before.verdicts.types[0, 2]
    assert verdict_of(after) == "feature"


def test_older_patients_with_the_same_rule_differ_in_age_and_not_in_the_effect_of_emergency():
    pair = pair_of(0, {}, {"older": 9.0})
    before, after = judged(pair)
    assert before.verdicts.types[0, 2]
    assert before.odds[0].argmax() == EMERGENCY
    assert verdict_of(after) == "feature"
    assert after.inputs[0].argmax() == after.parts[0].argmax() == AGE
    assert after.inputs[0, EMERGENCY] < 0.1
    assert second_opinion(pair, np.random.default_rng(0))[0] == "feature"


@pytest.mark.slow
@pytest.mark.parametrize("rule", OF_AGE)
def test_a_common_rule_carries_what_moved_over_several_seeds_at_first_and_at_the_second_look(rule):
    same = OF_AGE[rule]
    pairs = [pair_of(seed, same, {**same, "older": 9.0}) for seed in range(6)]
    first = Counter(verdict_of(judged(pair)[1]) for pair in pairs)
    second = Counter(second_opinion(pair, np.random.default_rng(0))[0] for pair in pairs)
    assert first["feature"] >= 5, first
    assert second["feature"] >= 5, second


@pytest.mark.slow
def test_older_patients_with_a_turned_rule_keep_both_types_and_the_inputs_are_still_named_by_age():
    for seed in range(4):
        pair = pair_of(seed, {}, {"older": 9.0, "together": -1.5})
        _, after = judged(pair)
        assert verdict_of(after) == "feature+concept"
        assert second_opinion(pair, np.random.default_rng(0))[0] == "feature+concept"
        assert after.inputs[0].argmax() == AGE


@pytest.mark.slow
def test_another_effect_of_emergency_without_older_patients_is_another_rule_of_emergency():
    for seed in range(4):
        _, after = judged(pair_of(seed, {}, {"emergency": -0.5}))
        assert verdict_of(after) == "concept"
        assert rule_features(after, 0) == [EMERGENCY]


def test_parts_of_a_pair_with_both_types_are_those_of_the_inputs_or_of_the_odds_whichever_are_larger():
    before, _ = judged(pair_of(0, {}, {"older": 9.0}))
    assert before.verdicts.types[0, [0, 2]].all()
    np.testing.assert_array_equal(before.parts, np.maximum(before.inputs, before.odds))


def test_products_are_of_a_feature_that_moved_and_of_one_whose_odds_ratios_differ_the_largest_first():
    odds = np.array([[0.0, 0.3, 0.05, 0.2], [9.0, 9.0, 9.0, 9.0]])
    inputs = np.array([[0.4, 0.0, 0.9, 0.0], [9.0, 9.0, 9.0, 9.0]])
    found = explaining_products(SimpleNamespace(odds=odds, inputs=inputs), np.array([0]))
    assert found == ((1, 2), (2, 3), (0, 1), (0, 3))
    everything = SimpleNamespace(odds=np.ones((1, 9)), inputs=np.ones((1, 9)))
    assert len(explaining_products(everything, np.array([0]))) == MOST_PRODUCTS
    assert explaining_products(everything, np.zeros(0, np.int64)) == ()


def test_a_design_with_products_has_their_columns_before_the_last_and_another_id():
    layout = layout_of(pair_of(0, {}, {}, rows=50))
    plain = Design(Query("", layout), np.array([62.0, 27, 1, 0, 0]), np.array([14.0, 4, 1, 1, 1]))
    design = Design(plain.query, plain.centre, plain.spread, ((AGE, EMERGENCY),))
    x = np.array([[76.0, 27, 1, 2, 1], [np.nan, 27, 1, 1, 1], [48.0, 27, 1, 1, 2]])
    np.testing.assert_array_equal(design.matrix(x)[:, -3:], [[0, 1, 1], [0, 0, 1], [-1, 0, 1]])
    np.testing.assert_array_equal(np.delete(design.matrix(x), [-3, -2], 1), plain.matrix(x))
    assert design.id != plain.id
    assert len(design.features) == len(plain.features) == plain.matrix(x).shape[1] - 1
