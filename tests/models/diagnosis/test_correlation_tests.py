"""What correlations add to verdicts, on pairs drawn from known laws, and how near the loss of a shared model is."""

from collections import Counter

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from models.diagnosis.client_summaries.client_summary import concatenate_summaries, summarize
from models.diagnosis.correlation_tests import (
    _compare_thresholds,
    compare_correlations,
    effect_on_prediction,
    refine_findings,
)
from models.diagnosis.diagnose_pairs import diagnose_pairs, rule_features
from publications.synthetic_pairs.evaluate_verdicts import correlations_of, layout_of, verdict_of
from publications.synthetic_pairs.families import FAMILIES, PairRequest
from publications.synthetic_pairs.generators import KnownPair

FEATURES = 5


def law(correlation=0.6, weights=(1.0, 1.0), interaction=0.0, intercept=0.0, spread=1.0):
    """Two correlated normals decide two classes, and three more do not."""

    def draw(rng, count):
        x = rng.normal(size=(count, FEATURES))
        x[:, 1] = correlation * x[:, 0] + np.sqrt(1 - correlation**2) * x[:, 1]
        x[:, 0] *= spread
        logits = intercept + weights[0] * x[:, 0] + weights[1] * x[:, 1] + interaction * x[:, 0] * x[:, 1]
        return x, (rng.random(count) < expit(logits)).astype(np.int64)

    return draw


def compared(first, second, rows, seed, categories=(0,) * FEATURES, **more):
    rng = np.random.default_rng([seed, *rows])
    pair = KnownPair(
        (first(rng, rows[0]), second(rng, rows[1])), 2, np.array(categories), frozenset(), bounds=(-6.0, 6.0)
    )
    layout = layout_of(pair)
    summaries = concatenate_summaries([summarize(x, y, np.arange(len(y)), layout) for x, y in pair.clients])
    before = diagnose_pairs(summaries, layout, np.array([0]), np.array([1]))
    return pair, before, *refine_findings(before, summaries, layout, correlations_of(pair, summaries, layout), **more)


def verdicts(first, second, rows, pairs=10):
    found = [compared(first, second, rows, seed) for seed in range(pairs)]
    return Counter(verdict_of(before) for _, before, _, _ in found), Counter(
        verdict_of(after) for *_, after, _ in found
    )


@pytest.mark.slow
def test_a_turned_correlation_with_the_same_rule_is_feature_shift_and_was_another_rule():
    before, after = verdicts(law(0.6), law(-0.6), (1000, 1000))
    assert before["feature"] == 0
    assert after["feature"] >= 9
    *_, refinement = compared(law(0.6), law(-0.6), (1000, 1000), 0)
    found = refinement.together[0][0]
    assert found.features == (0, 1)
    assert found.of_first[-1] > 0.5
    assert found.of_second[-1] < -0.5
    assert refinement.resolved.all()
    assert not refinement.second_look.any()
    assert effect_on_prediction(refinement.losses[0]) == "none seen"


@pytest.mark.slow
def test_a_turned_correlation_with_another_rule_keeps_both_and_recommends_a_second_look():
    _, after = verdicts(law(0.6), law(-0.6, weights=(1.0, -1.0)), (1500, 1500), pairs=5)
    assert after["feature+concept"] + after["feature+label+concept"] == 5
    *_, refinement = compared(law(0.6), law(-0.6, weights=(1.0, -1.0)), (1500, 1500), 0)
    assert refinement.second_look.all()
    assert effect_on_prediction(refinement.losses[0]) == "seen"


@pytest.mark.slow
def test_a_wider_feature_that_is_correlated_with_another_is_no_other_rule():
    before, after = verdicts(law(0.8), law(0.8, spread=1.8), (4000, 4000), pairs=6)
    assert before["feature"] < 6
    assert after["feature"] == 6


def wards(shares, weight, tied=0.0):
    """A laboratory value decides two classes; a ward, in four columns, moves it if they are tied."""

    def draw(rng, count):
        ward = rng.choice(4, count, p=shares)
        lab = rng.normal(size=count) + tied * (ward == 0)
        also = 0.7 * lab + 0.7 * rng.normal(size=count)
        y = (rng.random(count) < expit(-2.5 + weight * lab + tied * (ward == 0))).astype(np.int64)
        return np.column_stack([lab, also, *(1.0 + (ward == at) for at in range(4))]), y

    return draw


@pytest.mark.slow
@pytest.mark.parametrize("tied", [0.0, 0.7])
def test_another_rule_is_named_by_the_feature_that_has_another_effect_and_not_by_one_whose_inputs_moved(tied):
    first, second = wards([0.25] * 4, -0.7, tied), wards([0.6, 0.2, 0.1, 0.1], 0.7, tied)
    named, by_counts, largest = Counter(), Counter(), Counter()
    for seed in range(12):
        _, before, after, _ = compared(first, second, (1000, 1000), seed, categories=(0, 0, 2, 2, 2, 2))
        assert after.verdicts.types[0, 2]
        named[tuple(rule_features(after, 0))] += 1
        by_counts[rule_features(before, 0)[0] < 2 or 0 in rule_features(before, 0)] += 1
        largest[int(after.parts[0].argmax())] += 1
    assert named[(0,)] >= 10
    assert named[(0,)] + named[(0, 1)] == 12
    assert by_counts[True] >= 11
    assert largest[0] <= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rows", "name", "at_least"),
    [
        ("threshold, many more positives", 1000, "concept", 17),
        ("prevalence", 1000, "label", 19),
        ("other weight", 1000, "concept", 16),
        ("coding practice", 3000, "concept", 15),
        ("alike, heavy tails", 1000, "none", 19),
    ],
)
def test_hospitals_are_judged_by_single_contrasts_and_by_the_correlations_that_they_report(kind, rows, name, at_least):
    """By tests of all cells and an assumed correlation, 16, 20, 12, 3 and 19 of these 20 were right."""
    found = Counter[str]()
    for number in range(20):
        pair = FAMILIES["clinical"].draw(PairRequest(kind, (rows, rows)), 22, number)
        layout = layout_of(pair)
        summaries = concatenate_summaries([summarize(x, y, np.arange(len(y)), layout) for x, y in pair.clients])
        before = diagnose_pairs(summaries, layout, np.array([0]), np.array([1]))
        judged = _compare_thresholds(before, summaries, layout, correlations_of(pair, summaries, layout))
        found[verdict_of(judged)] += 1
    assert found[name] >= at_least, found


def test_without_resolving_a_change_of_rule_stays_for_the_second_look():
    _, before, after, refinement = compared(law(0.6), law(-0.6), (1000, 1000), 0, resolve=False)
    assert before.verdicts.types[0].tolist() == [False, False, True]
    assert after.verdicts.types[0].tolist() == [True, False, True]
    assert not refinement.second_look.any()  # it follows anyway


@pytest.mark.slow
def test_a_rule_that_differs_in_how_two_features_act_together_is_another_rule():
    before, after = verdicts(law(0.0, (0, 0), 1.0), law(0.0, (0, 0), -1.0), (600, 600))
    assert before["none"] >= 8
    assert after["concept"] >= 8
    *_, refinement = compared(law(0.0, (0, 0), 1.0), law(0.0, (0, 0), -1.0), (600, 600), 0)
    assert [found.features for found in refinement.interactions[0]] == [(0, 1)]
    assert effect_on_prediction(refinement.losses[0]) == "seen"


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(300, 300), (2000, 400)])
def test_pairs_of_features_add_no_more_than_one_false_alarm_in_sixty_alike_pairs(rows):
    before, after = verdicts(law(0.6, intercept=-1), law(0.6, intercept=-1), rows, pairs=60)
    assert after["none"] >= before["none"] - 1


def test_another_rule_by_single_features_adds_no_pair_of_features():
    for seed in range(5):
        _, before, after, refinement = compared(law(0.0, (2, 0)), law(0.0, (0, 2)), (1000, 1000), seed)
        assert after.verdicts.types.tolist() == before.verdicts.types.tolist()
        assert refinement.together == refinement.interactions == ((),)


@pytest.mark.parametrize("second", [law(0.45), law(0.6, (0.6, 1.2))])
def test_two_thirds_of_the_level_are_for_single_features_and_one_third_for_pairs_of_features(second):
    pair, before, after, _ = compared(law(0.6), second, (600, 600), 1)
    layout = layout_of(pair)
    summaries = concatenate_summaries([summarize(x, y, np.arange(len(y)), layout) for x, y in pair.clients])
    correlations = correlations_of(pair, summaries, layout)
    of_pairs = compare_correlations(correlations, summaries.labels, np.array([0]), np.array([1])).chance
    assert 1e-12 < before.chance[0] < 1
    assert 1e-12 < of_pairs[0] < 1
    assert after.chance[0] == pytest.approx(min(1.5 * before.chance[0], 3 * of_pairs[0], 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "most"),
    [
        (law(0.6), 1.0),
        (law(-0.6), 1.0),
        (law(0.6, (-1.0, 1.0)), 3.0),
        (law(0.6, (0.0, 2.0)), 2.0),
        (law(0.6, (1.0, 1.0), intercept=2.0), 2.0),
    ],
    ids=["alike", "turned", "reversed", "exchanged", "more positives"],
)
def test_the_loss_of_a_shared_model_is_that_of_regressions_on_rows(second, most):
    """In points of accuracy, on 20,000 further rows of each client; alike pairs have no loss to be estimated."""
    errors = []
    for seed in range(4):
        pair, *_, refinement = compared(law(0.6), second, (1500, 1500), seed)
        if refinement.losses[0] is None:
            continue
        rng = np.random.default_rng([seed, 1])
        shared = fitted(pair.clients)
        for draw, own, loss in zip((law(0.6), second), pair.clients, refinement.losses[0], strict=True):
            x, y = draw(rng, 20_000)
            errors.append(100 * (loss.loss - (fitted([own]).score(x, y) - shared.score(x, y))))
    assert np.sqrt(np.mean(np.square(errors or [0.0]))) < most


def fitted(clients):
    x, y = (np.concatenate([own[at] for own in clients]) for at in (0, 1))
    return LogisticRegression(C=10).fit(x, y)
