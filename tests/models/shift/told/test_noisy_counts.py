"""From noisy counts the server knows what it would of true ones, and its tests know the noise: the reference's table."""

import numpy as np
import pytest
from scipy import stats

from models.shift import guarded
from models.shift.findings import findings
from models.shift.known.generators import Normals, drawn
from models.shift.told.noise import counts_sensitivity, noisy, rho, sigma
from models.shift.told.noisy_counts import FEWEST, as_precise, from_noisy, noise_share
from models.shift.told.summaries import Layout

PAIRS = 100
FIVE = Layout(tuple("abcde"), (None,) * 5, np.full(5, -4.0), np.full(5, 4.0), 8, 2, missing=(False,) * 5)


def told(law, rows, epsilon, seed, layout=FIVE, pairs=PAIRS):
    """Noisy counts of pairs, the first clients before the second: (2 pairs, features, cells, classes), and sigma."""
    size = sigma(counts_sensitivity(len(layout.names)), rho(epsilon, 1e-5))
    rng, found = np.random.default_rng(seed), ([], [])
    for _ in range(pairs):
        for side, (x, y) in zip(
            found, drawn(Normals(), law, rng, (rows, rows), lambda r, n: r.normal(size=(n, 4))), strict=True
        ):
            side.append(layout.counts(x, y))
    truth = np.stack([*found[0], *found[1]])
    return noisy({"counts": truth.astype(np.int64)}, {"counts": size}, lambda _: rng)["counts"], size


def named(law, rows, epsilon, seed=0, corrected=True) -> list[frozenset[str]]:
    """What each pair is said to differ by, looked at alone as the reference did."""
    counts, size = told(law, rows, epsilon, seed)
    known = as_precise(from_noisy(counts, FIVE), FIVE, size if corrected else 0.0)

    def look(pairs):
        return guarded.evidence(pairs, noise_share(pairs.rows, FIVE, size) if corrected else 0.0)

    answers = []
    for at in range(PAIRS):
        (types,) = findings(known, FIVE, np.array([at]), np.array([at + PAIRS]), look=look).verdicts.types
        answers.append(frozenset(name for name, there in zip(guarded.TYPES, types, strict=True) if there))
    return answers


def not_fewer(right: int, of_thirty: int) -> bool:
    """Whether so many of PAIRS are no fewer than the reference's share of 30 pairs, as far as both samples can tell."""
    table = [[right, PAIRS - right], [of_thirty, 30 - of_thirty]]
    return right / PAIRS >= of_thirty / 30 or stats.fisher_exact(table)[1] > 0.01


@pytest.mark.parametrize(
    ("law", "rows", "epsilon", "types", "of_thirty"),
    [
        (Normals(), 2000, 1, set(), 22),
        (Normals(), 2000, 4, set(), 28),
        (Normals(), 20_000, 1, set(), 30),
        (Normals(positive=0.75), 2000, 1, {"label"}, 23),
        (Normals(means=(0.0, 2.0)), 2000, 1, {"feature"}, 30),
        (Normals(means=(1.0, -1.0)), 2000, 1, {"concept"}, 29),
    ],
    ids=["none", "none, epsilon 4", "none, 20,000 rows", "label", "feature", "concept"],
)
def test_pairs_are_named_as_often_as_the_reference_measured(law, rows, epsilon, types, of_thirty):
    assert not_fewer(sum(found == types for found in named(law, rows, epsilon)), of_thirty)


def test_without_the_correction_noise_is_taken_for_shift():
    """2 of 30 in the reference."""
    right = sum(not found for found in named(Normals(), 2000, 1, corrected=False))
    assert right <= 0.3 * PAIRS


def test_of_two_sizes_pairs_that_are_alike_are_named_less_often_than_by_the_noise_of_their_mean():
    """Most of the noise is the smaller side's; what is left is named for cells that are smaller than the noise."""
    (small, size), (large, _) = told(Normals(), 1500, 1, 3), told(Normals(), 20_000, 1, 4)
    known = from_noisy(np.concatenate([small[:PAIRS], large[:PAIRS]]), FIVE)
    places = np.arange(PAIRS)

    def alarms(share):
        def look(pairs):
            return guarded.evidence(pairs, share(pairs.rows))

        one_by_one = [findings(known, FIVE, places[[at]], places[[at]] + PAIRS, look=look) for at in places]
        return sum(bool(found.verdicts.types.any()) for found in one_by_one)

    of_mean = alarms(lambda rows: size**2 * 16 / rows.mean(-1))
    assert alarms(lambda rows: noise_share(rows, FIVE, size)) < of_mean - 0.2 * PAIRS


@pytest.mark.parametrize("epsilon", [1, 4])
def test_moments_of_bins_with_noise_vary_as_those_of_so_many_rows_would(epsilon):
    """Of all pairs' first clients, which are drawn alike: a mean's variance is the deviation's over the rows, or less."""
    counts, size = told(Normals(), 2000, epsilon, 8)
    known = as_precise(from_noisy(counts, FIVE), FIVE, size)
    rows, mean, spread, _, kurtosis = np.moveaxis(known.moments[:, :, :2], -1, 0)
    assert (rows < 1000).all()
    expected = (spread**2 / rows).mean(0)
    assert (mean.var(0) < 2 * expected).all()
    of_spread = ((kurtosis - 1) / (4 * rows)).mean(0)
    assert (np.log(spread).var(0) < 2 * of_spread).all()
    assert (np.log(spread).var(0) > of_spread / 5).all()


def test_labels_and_rows_follow_from_counts_within_the_noise_of_a_mean_over_features():
    counts, size = told(Normals(positive=0.7), 2000, 4, 6)
    known = from_noisy(counts, FIVE)
    expected = size * np.sqrt(8 / 5)  # eight cells of a feature, and five features
    first = known.labels[:PAIRS]
    assert np.abs(first.sum(1) - 2000).max() < 6 * expected * np.sqrt(2)
    assert (first.sum(1) - 2000).std() == pytest.approx(expected * np.sqrt(2), rel=0.4)
    np.testing.assert_array_equal(known.rows[:PAIRS], first.sum(1))


def test_without_noise_all_follows_exactly_but_for_values_inside_a_bin():
    rng = np.random.default_rng(7)
    x, y = rng.uniform(-4, 4, size=(3000, 5)), rng.integers(0, 2, 3000)
    known = from_noisy(FIVE.counts(x, y)[None], FIVE)
    np.testing.assert_array_equal(known.labels[0], np.bincount(y))
    for c in range(2):
        mean, spread = known.moments[0, :, c, 1], known.moments[0, :, c, 2]
        np.testing.assert_allclose(mean, x[y == c].mean(0), atol=0.05)
        np.testing.assert_allclose(spread, x[y == c].std(0, ddof=1), atol=0.05)


def test_a_class_of_few_noisy_rows_is_absent_and_cells_that_no_value_is_in_are_none():
    kinds = Layout(tuple("ab"), (None, (0.0, 1.0)), -np.ones(2), np.ones(2), 8, 3, missing=(False, True))
    counts = np.full((1, 2, kinds.cells, 3), -2)
    counts[0, :, :2, 0], counts[0, :, :2, 1] = FEWEST, 8
    counts[0, 0, -1, 0] = 1000  # missing, where nothing may be
    counts[0, 1, 3:8, 0] = 1000  # a category that there is not
    counts[0, 1, -1, 0] = 10
    known = from_noisy(counts, kinds)
    assert np.isnan(known.labels[0]).tolist() == [False, True, True]
    assert not known.counts[..., 1:].any()
    assert known.counts[0, 0, -1, 0] == known.counts[0, 1, 3, 0] == 0
    assert known.counts[0, 1, -1, 0] == 10
    assert (known.counts >= 0).all()
    assert np.isnan(known.moments[0, :, 1:]).all()
    np.testing.assert_allclose(known.moments[0, 1, 0, :2], [2 * FEWEST, 1.5])
