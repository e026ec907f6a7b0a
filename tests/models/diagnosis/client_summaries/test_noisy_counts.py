"""From noisy counts the server knows what it would of true ones, and its tests know the noise: the reference's table."""

import numpy as np
import pytest
from scipy import stats

from models.diagnosis import guarded_tests, wald_tests
from models.diagnosis.client_summaries.client_summary import Layout
from models.diagnosis.client_summaries.gaussian_mechanism import (
    MIN_NOISY_ROWS,
    add_noise,
    clip_negative,
    counts_sensitivity,
    summaries_from_counts,
    with_effective_rows,
)
from models.diagnosis.diagnose_pairs import append_rest, diagnose_pairs
from models.privacy_accounting import rho, sigma
from publications.synthetic_pairs.generators import Normals, drawn

pytestmark = pytest.mark.slow

PAIRS = 100
REFERENCE = {1: 0.0208199383, 4: 0.2976519916}
"""The ρ of the reference's noise: it bounded epsilon at delta 1e-5 by ρ + 2 √(ρ ln(1/δ)), so that its noise is larger."""
FIVE = Layout(tuple("abcde"), (None,) * 5, np.full(5, -4.0), np.full(5, 4.0), 8, 2, missing=(False,) * 5)


def told(law, rows, epsilon, seed, layout=FIVE, pairs=PAIRS):
    """Noisy counts of pairs, the first clients before the second: (2 pairs, features, cells, classes), and sigma."""
    size = sigma(counts_sensitivity(len(layout.names)), REFERENCE[epsilon])
    rng, found = np.random.default_rng(seed), ([], [])
    for _ in range(pairs):
        for side, (x, y) in zip(
            found, drawn(Normals(), law, rng, rows, lambda r, n: r.normal(size=(n, 4))), strict=True
        ):
            side.append(layout.counts(x, y))
    truth = np.stack([*found[0], *found[1]])
    return add_noise(truth.astype(np.int64), size, rng), size


def each_pair(law, rows, epsilon, seed=0, known_noise=True, look=guarded_tests.count_evidence):
    """What is found of each pair, looked at alone as the reference did."""
    counts, size = told(law, rows, epsilon, seed)
    known = with_effective_rows(summaries_from_counts(counts, FIVE, size if known_noise else 0.0), FIVE)
    return [
        diagnose_pairs(known, FIVE, np.array([at]), np.array([at + PAIRS]), collect_evidence=look)
        for at in range(PAIRS)
    ]


def named(*asked, **more) -> list[frozenset[str]]:
    """What each pair is said to differ by."""
    every = [found.verdicts.types[0] for found in each_pair(*asked, **more)]
    return [frozenset(name for name, there in zip(guarded_tests.TYPES, types, strict=True) if there) for types in every]


def not_fewer(right: int, of_thirty: int) -> bool:
    """Whether so many of PAIRS are no fewer than the reference's share of 30 pairs, as far as both samples can tell."""
    table = [[right, PAIRS - right], [of_thirty, 30 - of_thirty]]
    return right / PAIRS >= of_thirty / 30 or stats.fisher_exact(table)[1] > 0.01


@pytest.mark.parametrize(
    ("law", "rows", "epsilon", "types", "of_thirty"),
    [
        (Normals(), (2000, 2000), 1, set(), 22),
        (Normals(), (2000, 2000), 4, set(), 28),
        (Normals(), (20_000, 20_000), 1, set(), 30),
        (Normals(positive=0.75), (2000, 2000), 1, {"label"}, 23),
        (Normals(means=(0.0, 2.0)), (2000, 2000), 1, {"feature"}, 30),
        (Normals(means=(1.0, -1.0)), (2000, 2000), 1, {"concept"}, 29),
    ],
    ids=["none", "none, epsilon 4", "none, 20,000 rows", "label", "feature", "concept"],
)
def test_pairs_are_named_as_often_as_the_reference_measured(law, rows, epsilon, types, of_thirty):
    assert not_fewer(sum(found == types for found in named(law, rows, epsilon)), of_thirty)


def test_if_the_noise_were_not_known_it_would_be_taken_for_shift():
    """2 of 30 in the reference."""
    right = sum(not found for found in named(Normals(), (2000, 2000), 1, known_noise=False))
    assert right <= 0.3 * PAIRS


@pytest.mark.parametrize(
    ("rows", "epsilon"), [((2000, 2000), 1), ((1500, 20_000), 1), ((20_000, 1500), 4), ((600, 20_000), 1)]
)
def test_chances_are_right_under_noise_whatever_the_sizes(rows, epsilon):
    """Of pairs that are alike no more than a share p has a chance below p, as far as so many can tell; few are named."""
    found = each_pair(Normals(), rows, epsilon, seed=3)
    chances = np.array([pair.chance[0] for pair in found])
    for level in (0.01, 0.05, 0.25):
        assert stats.binomtest(int((chances < level).sum()), PAIRS, level, alternative="greater").pvalue > 1e-3
    alarms = sum(bool(pair.verdicts.types.any()) for pair in found)
    assert stats.binomtest(alarms, PAIRS, 0.03, alternative="greater").pvalue > 1e-3


def test_moments_of_noisy_counts_are_no_more_often_taken_for_shift_between_two_sizes_either():
    found = each_pair(Normals(), (1500, 20_000), 1, seed=3, look=wald_tests.moment_evidence)
    alarms = sum(bool(pair.verdicts.types.any()) for pair in found)
    assert stats.binomtest(alarms, PAIRS, 0.03, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize(
    ("law", "types"),
    [
        (Normals(positive=0.75), {"label"}),
        (Normals(means=(0.0, 2.0)), {"feature"}),
        (Normals(means=(1.0, -1.0)), {"concept"}),
    ],
)
def test_shift_is_named_under_noise_also_between_a_small_and_a_large_client(law, types):
    assert sum(found == types for found in named(law, (1500, 20_000), 1)) >= 0.9 * PAIRS


def test_the_noise_of_all_others_together_is_known():
    """Twelve clients of very different sizes that are alike: none differs from the rest."""
    counts = np.concatenate([told(Normals(), (rows, rows), 1, rows, pairs=2)[0] for rows in (800, 3000, 20_000)])
    size = told(Normals(), (50, 50), 1, 0, pairs=1)[1]
    both = with_effective_rows(append_rest(summaries_from_counts(counts, FIVE, size)), FIVE)
    found = diagnose_pairs(both, FIVE, np.arange(12), np.arange(12, 24))
    assert not found.verdicts.types.any()
    assert stats.kstest(found.chance, "uniform", alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize("epsilon", [1, 4])
def test_moments_of_bins_with_noise_vary_as_those_of_so_many_rows_would(epsilon):
    """Of all pairs' first clients, which are drawn alike: a mean's variance is the deviation's over the rows, or less."""
    counts, size = told(Normals(), (2000, 2000), epsilon, 8)
    known = with_effective_rows(summaries_from_counts(counts, FIVE, size), FIVE)
    rows, mean, spread, _, kurtosis = np.moveaxis(known.moments[:, :, :2], -1, 0)
    assert (rows < 1000).all()
    expected = (spread**2 / rows).mean(0)
    assert (mean.var(0) < 2 * expected).all()
    of_spread = ((kurtosis - 1) / (4 * rows)).mean(0)
    assert (np.log(spread).var(0) < 2 * of_spread).all()
    assert (np.log(spread).var(0) > of_spread / 5).all()


def test_labels_and_rows_follow_from_counts_within_the_noise_of_a_mean_over_features():
    counts, size = told(Normals(positive=0.7), (2000, 2000), 4, 6)
    known = summaries_from_counts(counts, FIVE, size)
    expected = size * np.sqrt(8 / 5)  # eight cells of a feature, and five features
    first = known.labels[:PAIRS]
    assert np.abs(first.sum(1) - 2000).max() < 6 * expected * np.sqrt(2)
    assert (first.sum(1) - 2000).std() == pytest.approx(expected * np.sqrt(2), rel=0.4)
    np.testing.assert_array_equal(known.rows[:PAIRS], first.sum(1))


def test_without_noise_all_follows_exactly_but_for_values_inside_a_bin():
    rng = np.random.default_rng(7)
    x, y = rng.uniform(-4, 4, size=(3000, 5)), rng.integers(0, 2, 3000)
    known = summaries_from_counts(FIVE.counts(x, y)[None], FIVE, 0.0)
    np.testing.assert_array_equal(known.labels[0], np.bincount(y))
    for c in range(2):
        mean, spread = known.moments[0, :, c, 1], known.moments[0, :, c, 2]
        np.testing.assert_allclose(mean, x[y == c].mean(0), atol=0.05)
        np.testing.assert_allclose(spread, x[y == c].std(0, ddof=1), atol=0.05)


def test_counts_are_what_they_came_as_but_where_no_value_can_be():
    kinds = Layout(tuple("ab"), (None, (0.0, 1.0)), -np.ones(2), np.ones(2), 8, 3, missing=(False, True))
    counts = np.full((1, 2, kinds.cells, 3), -2)
    counts[0, :, :2, 0], counts[0, :, :2, 1] = MIN_NOISY_ROWS, 8
    counts[0, 0, -1, 0] = 1000  # missing, where nothing may be
    counts[0, 1, 3:8, 0] = 1000  # a category that there is not
    counts[0, 1, -1, 0] = 10
    known = summaries_from_counts(counts, kinds, 1.5)
    there = np.zeros(known.noise.shape, bool)
    there[0, 0, :8, :3] = there[0, 1, :3, :3] = there[0, 1, -1, :3] = True
    np.testing.assert_array_equal(known.noise, 1.5**2 * there)
    np.testing.assert_array_equal(known.counts[..., :3], np.where(there[..., :3], counts, 0))
    assert not known.counts[..., 3].any()
    np.testing.assert_allclose(known.labels[0], known.counts[0, :, :, :3].sum(1).mean(0))
    assert (known.labels < 0).any()
    shown = clip_negative(known)
    assert (shown.counts >= 0).all()
    assert (shown.labels >= 0).all()
    assert np.isnan(known.moments[0, :, 1:]).all(), "of fewer rows than noise would leave in doubt"
    other = -2  # rows with a third value, by the noise
    expected = [2 * MIN_NOISY_ROWS + other, (3 * MIN_NOISY_ROWS + 3 * other) / (2 * MIN_NOISY_ROWS + other)]
    np.testing.assert_allclose(known.moments[0, 1, 0, :2], expected)


@pytest.mark.parametrize("rows", [(1500, 20_000), (3000, 3000)])
def test_classes_that_are_rare_raise_no_false_alarm_under_noise(rows):
    """Ten classes, of which the smaller client has some thirty rows of the rarest: as many as noise makes more or fewer."""
    layout = Layout(tuple("ab"), (None,) * 2, np.full(2, -4.0), np.full(2, 4.0), 8, 10, missing=(False,) * 2)
    size = sigma(counts_sensitivity(2), rho(2, 1e-5))
    rng = np.random.default_rng(1)
    shares = np.arange(1, 11) / 55
    truth = np.stack(
        [
            layout.counts(rng.normal(size=(count, 2)), rng.choice(10, count, p=shares))
            for count in np.repeat(rows, PAIRS).tolist()
        ]
    )
    counts = add_noise(truth.astype(np.int64), size, rng)
    known = with_effective_rows(summaries_from_counts(counts, layout, size), layout)
    found = [diagnose_pairs(known, layout, np.array([at]), np.array([at + PAIRS])) for at in range(PAIRS)]
    alarms = sum(bool(pair.verdicts.types.any()) for pair in found)
    assert stats.binomtest(alarms, PAIRS, 0.03, alternative="greater").pvalue > 1e-3
    low = sum(pair.chance[0] < 0.05 for pair in found)
    assert stats.binomtest(low, PAIRS, 0.05, alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize("rows", [0, 1, 5, 40])
def test_a_client_of_few_rows_under_much_noise_has_no_moments_and_raises_no_warning(rows):
    """Noise makes counts, and so rows and variances, negative: in twenty draws some of each sign."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(rows, 5)), rng.integers(0, 2, rows)
    counts = np.stack([add_noise(FIVE.counts(x, y).astype(np.int64), 30.0, rng) for _ in range(20)])
    known = with_effective_rows(summaries_from_counts(counts, FIVE, 30.0), FIVE)
    in_bins = known.counts[:, :, : FIVE.bins].sum(2)
    assert (in_bins < 0).any()
    assert np.isnan(known.moments[in_bins < MIN_NOISY_ROWS]).all()
    assert (known.moments[..., 2][in_bins >= MIN_NOISY_ROWS] >= 0).any()
