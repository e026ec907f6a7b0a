"""Verdicts by moments: a truth table with the generators of its reference, false alarms, and what may be missing."""

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
from scipy import stats

from models.diagnosis import guarded_tests, wald_tests
from models.diagnosis.diagnose_pairs import Alignment
from models.diagnosis.merged_tables import Pairs
from models.diagnosis.name_shift_types import classify_pairs as judged

Rows = tuple[np.ndarray, np.ndarray]  # values (rows,) or (rows, features), and labels (rows,)
SIZE = 500


def told(pairs: list[tuple[Rows, Rows]], classes: int) -> tuple[np.ndarray, np.ndarray]:
    """What both clients of every pair send; classes under ten rows are withheld."""
    features = pairs[0][0][0].reshape(len(pairs[0][0][1]), -1).shape[1]
    counts = np.zeros((len(pairs), 2, classes))
    moments = np.full((len(pairs), features, 2, classes, 5), np.nan)
    for place in np.ndindex(len(pairs), 2, classes):
        pair, client, label = place
        values, labels = pairs[pair][client]
        of_class = values.reshape(len(labels), -1)[labels == label]
        counts[place] = len(of_class)
        if len(of_class) < 10:
            continue
        centred = of_class - of_class.mean(0)
        square = (centred**2).mean(0)
        with np.errstate(invalid="ignore"):
            shape = (centred**3).mean(0) / square**1.5, (centred**4).mean(0) / square**2
        of_rows = np.full(features, len(of_class)), of_class.mean(0), of_class.std(0, ddof=1)
        moments[pair, :, client, label] = np.stack([*of_rows, *shape], -1)
    return counts, moments


def paired(counts: np.ndarray, moments: np.ndarray) -> Pairs:
    """As the verdict takes them; a last column, of several classes together, is empty if there is none."""
    if moments.shape[-2] == counts.shape[-1]:
        moments = np.concatenate([moments, np.full_like(moments[..., :1, :], np.nan)], -2)
    labels = np.concatenate([counts, np.zeros_like(counts[..., :1])], -1).astype(float)
    no_counts = np.zeros((*moments.shape[:3], 0, moments.shape[-2]))
    return Pairs(no_counts, labels, labels.sum(-1), moments, np.ones(moments.shape[1], bool))


def evidence(counts: np.ndarray, moments: np.ndarray) -> guarded_tests.Evidence:
    return wald_tests.moment_evidence(paired(counts, moments))


def types(counts: np.ndarray, moments: np.ndarray) -> np.ndarray:
    pairs = paired(counts, moments)
    return judged(wald_tests.moment_evidence(pairs), pairs.rows, Alignment(pairs)).types


def verdicts(pairs: list[tuple[Rows, Rows]], classes: int = 2) -> list[str]:
    named = types(*told(pairs, classes))
    return ["+".join(np.array(guarded_tests.TYPES)[row]) or "none" for row in named]


def gauss(draw: np.random.Generator, share=0.5, means=(-1, 1), sds=(1, 1)) -> Rows:
    labels = (draw.random(SIZE) < share).astype(int)
    return draw.normal(np.array(means)[labels], np.array(sds)[labels]), labels


def logistic(draw: np.random.Generator, mean=0, sd=1, intercept=0, slope=2) -> Rows:
    values = draw.normal(mean, sd, SIZE)
    return values, (draw.random(SIZE) < 1 / (1 + np.exp(-(intercept + slope * values)))).astype(int)


def bump(draw: np.random.Generator, mean=0, width=1.0) -> Rows:
    values = draw.normal(mean, 1, SIZE)
    return values, (draw.random(SIZE) < np.where(abs(values) < width, 0.95, 0.05)).astype(int)


def share(draw: np.random.Generator) -> float:
    return 0.5 + draw.choice([-0.25, 0.25])


def none(draw):
    family = [gauss, logistic, bump][draw.integers(3)]
    return family(draw), family(draw)


def feature(draw):
    sign = draw.choice([-1, 1])
    return [
        lambda: (logistic(draw), logistic(draw, mean=sign)),
        lambda: (logistic(draw), logistic(draw, sd=2)),
        lambda: (bump(draw), bump(draw, mean=sign)),
        lambda: (gauss(draw), gauss(draw, means=(sign - 1, sign + 1))),
    ][draw.choice([0, 0, 1, 2, 3, 3])]()


def label(draw):
    sds = [(1, 1), (0.7, 1.4)][draw.integers(2)]
    return gauss(draw, sds=sds), gauss(draw, share(draw), sds=sds)


def concept(draw):
    return [
        lambda: (gauss(draw), gauss(draw, means=(1, -1))),
        lambda: (logistic(draw), logistic(draw, slope=0)),
        lambda: (logistic(draw), bump(draw, width=0.6745)),
    ][draw.integers(3)]()


def feature_and_label(draw):
    return gauss(draw), gauss(draw, share(draw), means=(0.5, 2.5))


def label_and_concept(draw):
    return gauss(draw), gauss(draw, share(draw), means=(1, -1))


def feature_and_concept(draw):
    mean = draw.choice([-1, 1])
    return logistic(draw), logistic(draw, mean=mean, intercept=2 * mean, slope=-2)


TRUTH: dict[str, tuple[Callable, int]] = {  # to how many of 200 pairs the reference names so
    "none": (none, 197),
    "feature": (feature, 159),
    "label": (label, 195),
    "concept": (concept, 198),
    "feature+label": (feature_and_label, 198),
    "label+concept": (label_and_concept, 198),
    "feature+concept": (feature_and_concept, 198),
}


@pytest.mark.slow
def test_the_truth_table_of_the_reference_is_repeated_within_binomial_error():
    shares = {}
    for row, (truth, (make, reference)) in enumerate(TRUTH.items()):
        found = verdicts([make(np.random.default_rng([s, SIZE, 11, row])) for s in range(200)])
        right = found.count(truth)
        assert stats.fisher_exact([[right, 200 - right], [reference, 200 - reference]]).pvalue > 0.01, (truth, right)
        shares[truth] = right / 200
    single = np.mean([shares[truth] for truth in ("none", "feature", "label", "concept")])
    assert single == pytest.approx(0.936, abs=0.03)
    assert np.mean(list(shares.values())) == pytest.approx(0.959, abs=0.02)


def alike(seed: list[int], features: int, classes: int) -> tuple[Rows, Rows]:
    """Two clients of one law; every third feature is skewed, with a heavy tail."""
    draw = np.random.default_rng(seed)
    means, prior = draw.normal(size=(classes, features)), draw.dirichlet(np.full(classes, 3.0))

    def client() -> Rows:
        labels = draw.choice(classes, SIZE, p=prior)
        values = means[labels] + draw.normal(size=(SIZE, features))
        values[:, 2::3] = np.exp(0.5 * values[:, 2::3])
        return values, labels

    return client(), client()


@pytest.mark.parametrize(
    ("features", "classes", "pairs", "most"),
    [(5, 3, 200, 0.05), (30, 10, 100, 0.12)],  # measured on 400 and 300 pairs: 2.8 % and 10 %
)
def test_few_pairs_of_one_law_are_found_to_differ(features, classes, pairs, most):
    found = verdicts([alike([seed, 1], features, classes) for seed in range(pairs)], classes)
    wrong = pairs - found.count("none")
    assert stats.binomtest(wrong, pairs, most, alternative="greater").pvalue > 0.01


def two_valued(rows: Rows) -> Rows:
    return (rows[0] > 0.5).astype(float), rows[1]


def test_features_of_two_values_raise_no_more_false_alarms_though_their_moments_hang_together():
    pairs = [alike([seed, 2], 30, 10) for seed in range(60)]
    found = verdicts([(two_valued(a), two_valued(b)) for a, b in pairs], 10)
    assert stats.binomtest(60 - found.count("none"), 60, 0.05, alternative="greater").pvalue > 0.01


def test_a_swap_of_classes_is_seen_in_features_of_two_values():
    draw = np.random.default_rng(3)
    swapped = [(two_valued(gauss(draw)), two_valued(gauss(draw, means=(1, -1)))) for _ in range(20)]
    assert verdicts(swapped) == ["concept"] * 20


def test_evidence_has_the_shapes_that_evidence_by_counts_has():
    pairs = [alike([seed, 4], 4, 3) for seed in range(5)]
    by = paired(*told(pairs, 3))
    counts = np.random.default_rng(0).integers(1, 30, (5, 4, 2, 10, 4)).astype(float)
    by_counts, found = guarded_tests.count_evidence(by._replace(counts=counts)), wald_tests.moment_evidence(by)
    for name in (one.name for one in fields(guarded_tests.Evidence) if one.name not in ("chances", "effects")):
        assert getattr(found, name).shape == getattr(by_counts, name).shape, name
        assert getattr(found, name).dtype == getattr(by_counts, name).dtype, name
    for name in ("chances", "effects"):
        assert {one: numbers.shape for one, numbers in getattr(found, name).items()} == {
            one: numbers.shape for one, numbers in getattr(by_counts, name).items()
        }


def test_classes_of_fewer_than_a_hundred_rows_are_not_compared_within():
    counts, moments = told([feature_and_concept(np.random.default_rng(5))], 2)
    assert evidence(counts, moments).interaction.any()
    moments[0, 0, 1, 1, 0] = 99  # of this feature: the others of these rows are missing
    found = evidence(counts, moments)
    assert not found.interaction.any()
    assert found.chances["classes_in_bins"] == 1
    assert found.bins.all()


def test_a_column_beyond_the_classes_counts_for_the_values_only():
    counts, moments = told([none(np.random.default_rng(6))], 2)
    rest = np.broadcast_to([400.0, 0.0, 1.0, 0.0, 3.0], (1, 1, 2, 1, 5)).copy()
    rest[0, 0, 1, 0, 1] = 9.0
    found = evidence(counts, np.concatenate([moments, rest], -2))
    without = evidence(counts, moments)
    assert found.bins.all()
    assert not without.bins.any()
    for name in ("bins_in_classes", "classes_in_bins", "interaction", "at_mean", "at_even"):
        np.testing.assert_allclose(found.chances[name], without.chances[name], rtol=1e-6)


def test_how_large_a_difference_is_goes_by_all_rows_that_it_is_of():
    """0.07 standard deviations are nothing of 5,200 rows a side; of the two hundred in classes they would be much."""
    moments = np.broadcast_to([100.0, 0.0, 1.0, 0.0, 3.0], (1, 1, 2, 3, 5)).copy()
    moments[..., 2, 0] = 5000
    moments[0, 0, 1, 2, 1] = 0.07
    found = evidence(np.full((1, 2, 2), 100), moments)
    assert found.chances["bins"] < 0.01
    assert not found.bins.any()


def test_verdicts_do_not_depend_on_the_order_of_clients_features_and_classes():
    counts, moments = told([alike([seed, 7], 4, 3) for seed in range(10)], 3)
    moments[:5, 1, 1, :, 1] += 2.0
    expected = types(counts, moments)
    order = [2, 0, 1]
    for other in (
        types(counts[:, ::-1], moments[:, :, ::-1]),
        types(counts, moments[:, [3, 1, 0, 2]]),
        types(counts[..., order], moments[..., order, :]),
    ):
        np.testing.assert_array_equal(other, expected)
    assert expected[:5].any(-1).all()


def test_a_pair_is_judged_alike_whatever_pairs_are_judged_beside_it():
    counts, moments = told([alike([seed, 8], 3, 3) for seed in range(6)], 3)
    together = evidence(counts, moments)
    alone = [evidence(counts[i : i + 1], moments[i : i + 1]) for i in range(6)]
    for name, chance in together.chances.items():
        np.testing.assert_allclose(chance, np.concatenate([one.chances[name] for one in alone]), rtol=1e-9)
