"""Whether two methods differ: closed forms, symmetries, and coverage in simulations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from models.metrics.client_metrics import METRICS_BY_NAME
from models.metrics.paired_difference import (
    ACCURACY,
    Difference,
    Stratum,
    better_method,
    difference,
    difference_over_draws,
    difference_over_partitions,
    difference_over_silos,
    difference_record,
    difference_sentence,
    holm,
    holm_intervals,
)
from models.metrics.task_metrics import TASK_METRICS

RMSE = TASK_METRICS["regression"]


def strata(differences: list[np.ndarray]) -> list[Stratum]:
    """From each client's (seeds, rows) of +1, 0, -1."""
    return [
        Stratum(d.shape[1], d.sum(1).tolist(), float((d.mean(0) ** 2).sum()), float((d**2).sum())) for d in differences
    ]


def draw(rng: np.random.Generator, sizes: list[int], seeds: int) -> list[np.ndarray]:
    return [rng.integers(-1, 2, (seeds, n)).astype(float) for n in sizes]


def test_one_seed_and_one_client_is_the_paired_t_interval():
    d = draw(np.random.default_rng(0), [40], 1)
    found = difference(strata(d))
    low, high = stats.ttest_1samp(d[0][0], 0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((d[0].mean(), low, high))
    assert found.p == pytest.approx(stats.ttest_1samp(d[0][0], 0).pvalue)


def test_one_seed_is_the_stratified_t_interval():
    """Equal weights for clients, one variance for all, as an analysis of variance has it."""
    d = draw(np.random.default_rng(1), [5, 30, 12, 1], 1)
    residuals = np.concatenate([x[0] - x[0].mean() for x in d])
    free = len(residuals) - len(d)
    error = (residuals @ residuals / free * sum(1 / x.shape[1] for x in d) / len(d) ** 2) ** 0.5
    mean = np.mean([x.mean() for x in d])
    half = stats.t.ppf(0.975, free) * error
    found = difference(strata(d))
    assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - half, mean + half))


def test_with_variances_of_their_own_a_client_with_one_row_gets_the_common_variance():
    """By hand: unequal clients, each with its own variance, and the pooled one for the client with a single row."""
    d = draw(np.random.default_rng(5), [5, 30, 1, 12], 1)
    used = [x[0] for x in d]
    spread = [float(((x - x.mean()) ** 2).sum()) for x in used]
    together = sum(spread) / sum(len(x) - 1 for x in used)
    parts = [(s / (len(x) - 1) if len(x) > 1 else together) / len(x) for s, x in zip(spread, used, strict=True)]
    parts = [part / len(d) ** 2 for part in parts]
    variance = sum(parts)
    freedom = variance**2 / sum(part**2 / max(len(x) - 1, 1) for part, x in zip(parts, used, strict=True))
    mean, half = np.mean([x.mean() for x in used]), stats.t.ppf(0.975, freedom) * variance**0.5
    found = difference(strata(d), pooled_variance=False)
    assert (found.mean, found.low, found.high) == pytest.approx((mean, max(mean - half, -1), min(mean + half, 1)))
    assert parts[2] > max(parts[0], parts[1], parts[3]), "the client with one row dominates the interval"


@given(st.lists(st.integers(2, 30), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_p_is_below_five_percent_exactly_where_the_interval_excludes_zero(sizes, seeds, seed):
    d = [x + 0.2 for x in draw(np.random.default_rng(seed), sizes, seeds)]
    found = difference(strata(d), bound=9)
    assert (found.p < 0.05) == found.distinguishable
    assert found.p == pytest.approx(difference(strata([-x for x in d]), bound=9).p)


def test_p_of_equal_differences_is_that_of_the_sign_test():
    assert difference(strata([np.zeros((3, 12))])).p == 1
    assert difference(strata([np.ones((1, 12))])).p == stats.binomtest(0, 12).pvalue
    assert difference(strata([np.ones((2, 1))])).p == 1, "a single row proves nothing"
    assert (difference_over_draws([0.2]).p, difference_over_draws([0.5] * 4).p) == (1, stats.binomtest(0, 4).pvalue)


@given(st.floats(-1, 1).filter(lambda v: abs(v) > 1e-3), st.integers(2, 4), st.integers(1, 3))
def test_rounding_of_equal_differences_proves_nothing(value, draws, seeds):
    equal = strata([np.full((seeds, draws), value)])
    for found in (
        difference(equal),
        difference_over_silos([equal[0]] * draws),
        difference_over_partitions([equal] * draws),
        difference_over_draws([value] * draws),
    ):
        assert not found.distinguishable
        assert found.p == 2.0 ** (1 - draws)


@pytest.mark.parametrize(("rows", "level", "excludes"), [(4, 0.95, False), (6, 0.95, True), (6, 0.999, False)])
def test_equal_differences_exclude_zero_only_where_the_sign_test_rejects(rows, level, excludes):
    found = difference(strata([np.ones((2, rows))]), level)
    assert (found.low, found.high) == ((1, 1) if excludes else (-1, 1))
    assert found.distinguishable == (found.p <= 1 - level) == excludes
    assert difference_over_draws([0.2, 0.2]) == Difference(0.2, -1.0, 1.0), "two draws, p = 0.5"
    assert not difference_over_draws([-0.2] * rows, level).distinguishable or excludes
    zero = difference(strata([np.zeros((2, rows))]), level)
    assert (zero.low, zero.high, zero.p) == (0, 0, 1)


def test_one_client_is_the_two_way_layout_by_mean_squares():
    """(MS_rows + MS_seeds - MS_both) / (seeds rows), by sums over the table itself."""
    rng = np.random.default_rng(2)
    seeds, rows = 4, 60
    d = np.sign(rng.normal(size=(1, rows)) + 0.4 * rng.normal(size=(seeds, 1)) + rng.normal(size=(seeds, rows))).round()
    by_row, by_seed, mean = d.mean(0), d.mean(1), d.mean()
    rows_square = seeds * ((by_row - mean) ** 2).sum() / (rows - 1)
    seeds_square = rows * ((by_seed - mean) ** 2).sum() / (seeds - 1)
    both = ((d - by_row[None] - by_seed[:, None] + mean) ** 2).sum() / (rows - 1) / (seeds - 1)
    variance = (rows_square + seeds_square - both) / (seeds * rows)
    parts = [(rows_square / seeds / rows, rows - 1), (seeds_square / seeds / rows, seeds - 1)]
    assert variance > max(v for v, _ in parts)
    freedom = variance**2 / sum(v**2 / f for v, f in parts)
    half = stats.t.ppf(0.975, freedom) * variance**0.5
    found = difference(strata([d]))
    assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - half, mean + half))


@pytest.mark.parametrize("seed", [0, 1, 3, 6, 8, 13])
def test_the_variance_is_never_taken_for_less_than_that_of_rows_or_that_of_seeds_alone(seed):
    """Of noise alone the estimate for both together exceeds one of them by chance, and may swallow all there is."""
    seeds, rows = 3, 12
    d = draw(np.random.default_rng(seed), [rows], seeds)[0]
    by_row, by_seed, mean = d.mean(0), d.mean(1), d.mean()
    of_rows = seeds * ((by_row - mean) ** 2).sum() / (rows - 1) / (seeds * rows)
    of_seeds = rows * ((by_seed - mean) ** 2).sum() / (seeds - 1) / (seeds * rows)
    both = ((d - by_row - by_seed[:, None] + mean) ** 2).sum() / (rows - 1) / (seeds - 1) / (seeds * rows)
    floor = max(of_rows, of_seeds)
    assert of_rows + of_seeds - both < floor
    freedom = floor**2 / (of_rows**2 / (rows - 1) + of_seeds**2 / (seeds - 1))
    half = stats.t.ppf(0.975, freedom) * floor**0.5
    found = difference(strata([d]))
    assert (found.low, found.high) == pytest.approx((max(mean - half, -1), min(mean + half, 1)))


def test_methods_that_are_right_on_other_rows_in_each_seed_are_not_told_apart_for_certain():
    """Rows and seeds that differ by next to nothing beside their noise leave a variance below zero, and no proof."""
    board = np.indices((2, 12)).sum(0) % 2 * 2.0 - 1
    board[:, :3] = 1
    found = difference(strata([board]))
    assert found.mean == 0.25
    assert found.low < 0 < found.high


def test_identical_methods_differ_by_nothing_for_certain():
    for seeds in (1, 3):
        found = difference(strata([np.zeros((seeds, 20)), np.zeros((seeds, 1))]))
        assert found == Difference(0.0, 0.0, 0.0)
        assert not found.distinguishable


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_swapping_the_methods_flips_the_sign(sizes, seeds, seed):
    d = draw(np.random.default_rng(seed), sizes, seeds)
    one, other = difference(strata(d)), difference(strata([-x for x in d]))
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low))
    assert -1 <= one.low <= one.mean <= one.high <= 1


@given(st.randoms(use_true_random=False))
def test_the_order_of_clients_and_of_seeds_does_not_matter(random):
    d = draw(np.random.default_rng(3), [8, 20, 5], 4)
    seeds = random.sample(range(4), 4)
    moved = [x[seeds] for x in random.sample(d, 3)]
    one, other = difference(strata(d)), difference(strata(moved))
    assert (one.mean, one.low, one.high) == pytest.approx((other.mean, other.low, other.high))


def test_a_client_without_rows_does_not_count():
    d = draw(np.random.default_rng(4), [8, 20], 3)
    empty = Stratum(0, [0.0, 0.0, 0.0], 0.0, 0.0)
    assert difference([*strata(d), empty]) == difference(strata(d))
    with pytest.raises(ValueError, match="clients: got no rows in this split"):
        difference([empty])


def test_the_mean_counts_every_client_once():
    found = difference(strata([np.ones((2, 100)), np.zeros((2, 1)), -np.ones((2, 1))]))
    assert found.mean == pytest.approx(0)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_single_row_a_client_proves_nothing(seeds):
    found = difference(strata([np.ones((seeds, 1)), np.ones((seeds, 1))]))
    assert found == Difference(1.0, -1.0, 1.0)
    assert not found.distinguishable


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 10])
@pytest.mark.parametrize("sizes", [[50] * 9, [5, 10, 20, 40, 80, 160]])
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.2])
def test_the_interval_covers_the_true_difference_about_95_times_in_100(spread, sizes, seeds):
    """Two methods are right where a normal score is positive: rows, seeds, seeds by clients and noise add up in it."""
    rng, gap, repeats, covered = np.random.default_rng(1), 0.2, 600, 0
    scale = (1.25 + spread**2 * 1.25 + 0.25) ** 0.5
    true = stats.norm.cdf((0.9 + gap) / scale) - stats.norm.cdf(0.9 / scale)
    for _ in range(repeats):
        of_seed = rng.normal(0, spread, (2, seeds, 1))
        tables = []
        for rows in sizes:
            row, own = rng.normal(size=rows), 0.5 * rng.normal(size=rows)
            shift = of_seed + rng.normal(0, spread / 2, (2, seeds, 1))
            noise = rng.normal(0, 0.5, (2, seeds, rows))
            first = 0.9 + gap + row + own + shift[0] + noise[0] > 0
            second = 0.9 + row - own + shift[1] + noise[1] > 0
            tables.append(first.astype(float) - second)
        found = difference(strata(tables))
        covered += found.low <= true <= found.high
    assert 0.915 <= covered / repeats <= 0.985


def test_more_seeds_and_more_rows_make_it_narrower():
    rng = np.random.default_rng(5)
    widths = [
        (f := difference(strata(draw(rng, [n] * 3, seeds)))).high - f.low for seeds, n in ((3, 50), (3, 500), (12, 500))
    ]
    assert widths[0] > widths[1] > widths[2]


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (Difference(0.004, -0.003, 0.011), "fedprox − fedavg +0.4 points, −0.3 to +1.1: not distinguishable"),
        (Difference(0.0214, 0.005, 0.04), "fedprox − fedavg +2.1 points, +0.5 to +4.0: fedprox is better"),
        (Difference(-0.05, -0.07, -0.03), "fedprox − fedavg −5.0 points, −7.0 to −3.0: fedavg is better"),
        (Difference(0.0, 0.0, 0.0), "fedprox − fedavg 0.0 points, 0.0 to 0.0: not distinguishable"),
        (Difference(-0.0001, -1.0, 1.0), "fedprox − fedavg 0.0 points, −100.0 to +100.0: not distinguishable"),
    ],
)
def test_the_sentence_of_a_difference(found, sentence):
    assert difference_sentence("fedprox", "fedavg", found) == sentence


@pytest.mark.parametrize(
    ("found", "sentence", "winner"),
    [
        (Difference(-93.54, -121.2, -65.72), "−93.5 in rmse, −121 to −65.7: pooled is better", "pooled"),
        (
            Difference(0.0123, 0.01, 0.02),
            "+0.0123 in rmse, +0.0100 to +0.0200: fedavg is better",
            "fedavg",
        ),
        (Difference(0.0, -3.0, 45231.0), "0 in rmse, −3.00 to +45231: not distinguishable", None),
        (Difference(2.0, -np.inf, np.inf), "+2.00 in rmse, −∞ to +∞: not distinguishable", None),
    ],
)
def test_less_squared_error_is_better(found, sentence, winner):
    assert difference_sentence("pooled", "fedavg", found, RMSE) == f"pooled − fedavg {sentence}"
    assert better_method("pooled", "fedavg", found, RMSE) == winner


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_prediction_that_is_not_finite_leaves_nothing_to_tell(broken):
    found = difference(strata([np.array([[1.0, 2.0]]), np.array([[broken, 0.0]])]), bound=np.inf, pooled_variance=False)
    assert np.isnan([found.mean, found.low, found.high]).all()
    assert better_method("pooled", "fedavg", found, RMSE) is None
    assert difference_sentence("pooled", "fedavg", found, RMSE) == (
        "pooled − fedavg: not distinguishable, since predictions of one of them are not finite"
    )


def test_with_a_variance_for_each_client_one_seed_is_welchs_interval():
    """Two clients: the mean of two independent means, as scipy's t interval without equal variances has it."""
    rng = np.random.default_rng(0)
    d = [5 * rng.normal(size=(1, 9)), rng.normal(size=(1, 40))]
    welch = stats.ttest_ind(d[0][0], -d[1][0], equal_var=False).confidence_interval(0.95)
    found = difference(strata(d), bound=np.inf, pooled_variance=False)
    assert (found.low, found.high) == pytest.approx((welch.low / 2, welch.high / 2))


@pytest.mark.parametrize("seeds", [1, 3])
def test_numbers_on_a_single_row_a_client_prove_nothing(seeds):
    found = difference(strata([np.full((seeds, 1), 7.5), np.ones((seeds, 1))]), bound=np.inf, pooled_variance=False)
    assert found == Difference(4.25, -np.inf, np.inf)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 10])
@pytest.mark.parametrize(
    ("sizes", "scales"),
    [
        ([50] * 9, [1] * 9),
        ([5, 10, 20, 40, 80, 160], [3, 2.5, 2, 1.5, 1, 0.5]),
        ([5, 10, 20, 40, 80, 160], [0.5, 1, 1.5, 2, 2.5, 3]),
    ],
)
def test_the_interval_of_squared_errors_covers_also_where_clients_differ_in_scale(sizes, scales, seeds):
    """Errors add up from rows, seeds, seeds by clients and noise; one variance for all would cover 45 to 100 %."""
    rng, gap, spread, repeats, covered = np.random.default_rng(1), 0.3, 0.1, 400, 0
    true = np.mean([(scale * gap) ** 2 for scale in scales])
    for _ in range(repeats):
        of_seed = rng.normal(0, spread, (2, seeds, 1))
        tables = []
        for rows, scale in zip(sizes, scales, strict=True):
            row, own = rng.normal(size=rows), 0.5 * rng.normal(size=rows)
            shift = of_seed + rng.normal(0, spread / 2, (2, seeds, 1))
            noise = rng.normal(0, 0.5, (2, seeds, rows))
            first, second = gap + row + own + shift[0] + noise[0], row - own + shift[1] + noise[1]
            tables.append(scale**2 * (first**2 - second**2))
        found = difference(strata(tables), bound=np.inf, pooled_variance=False)
        covered += found.low <= true <= found.high
    assert 0.915 <= covered / repeats <= 0.99


def test_over_draws_is_the_one_sample_t_interval():
    d = [0.3, -0.1, 0.2, 0.25]
    found = difference_over_draws(d)
    expected = stats.ttest_1samp(d, 0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(d), expected.low, expected.high))
    assert found.p == pytest.approx(stats.ttest_1samp(d, 0).pvalue)


def test_one_draw_tells_nothing_of_others_and_a_diverged_one_nothing_at_all():
    assert difference_over_draws([0.2]) == Difference(0.2, -1.0, 1.0)
    assert np.isnan(difference_over_draws([0.2, np.nan]).mean)
    with pytest.raises(ValueError, match="draws: got none, expected at least one"):
        difference_over_draws([])


def test_units_of_one_row_are_rows_and_copies_are_one_draw():
    rng = np.random.default_rng(0)
    d = rng.integers(-1, 2, (3, 40)).astype(float)
    plain, alone = (difference([Stratum.from_differences(d, unit)]) for unit in (None, np.arange(40)))
    copied = difference([Stratum.from_differences(np.repeat(d, 8, 1), np.repeat(np.arange(40), 8))])
    for found in (alone, copied):
        assert (found.mean, found.low, found.high) == pytest.approx((plain.mean, plain.low, plain.high))


def test_the_mean_stays_that_of_rows_where_units_differ_in_size():
    rng, unit = np.random.default_rng(0), np.repeat(np.arange(12), np.arange(1, 13))
    d = rng.normal(size=(3, len(unit)))
    assert difference([Stratum.from_differences(d, unit)], bound=9).mean == pytest.approx(d.mean())
    one = difference([Stratum.from_differences(np.ones((3, 5)), np.zeros(5, int))])
    assert (one.low, one.high) == (-1, 1)


@pytest.mark.slow
def test_the_interval_covers_the_true_difference_where_rows_are_of_units():
    rng, repeats, covered, by_row = np.random.default_rng(2), 400, 0, 0
    for _ in range(repeats):
        of_client, plain = [], []
        for units in (30, 60):
            unit = np.repeat(np.arange(units), rng.integers(2, 15, units))
            d = 0.1 + rng.normal(0, 0.3, units)[unit] + rng.normal(0, 0.3, (3, len(unit)))
            of_client.append(Stratum.from_differences(d, unit))
            plain.append(Stratum.from_differences(d))
        found, naive = (difference(s, bound=9) for s in (of_client, plain))
        covered += found.low <= 0.1 <= found.high
        by_row += naive.low <= 0.1 <= naive.high
    assert 0.915 <= covered / repeats <= 0.985
    assert by_row / repeats < 0.8


def test_over_silos_with_one_seed_is_the_t_interval_of_the_silos_means():
    d = [x + 0.1 for x in draw(np.random.default_rng(7), [5, 30, 12, 8, 50, 9, 20, 14, 6], 1)]
    found = difference_over_silos(strata(d), bound=9)
    expected = stats.ttest_1samp([x.mean() for x in d], 0)
    low, high = expected.confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean([x.mean() for x in d]), low, high))
    assert found.p == pytest.approx(expected.pvalue)


def test_over_silos_is_the_two_way_layout_of_silos_and_seeds():
    rng = np.random.default_rng(8)
    table = 0.1 + rng.normal(0, 0.2, (12, 1)) + rng.normal(0, 0.1, 4) + rng.normal(0, 0.05, (12, 4))
    d = [np.repeat(means[:, None], rows, 1) for means, rows in zip(table, range(3, 15), strict=True)]
    silos, seeds = table.shape
    of_silos, of_seeds = table.mean(1).var(ddof=1) / silos, table.mean(0).var(ddof=1) / seeds
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    variance = of_silos + of_seeds - (rest**2).sum() / (silos - 1) / (seeds - 1) / silos / seeds
    freedom = variance**2 / (of_silos**2 / (silos - 1) + of_seeds**2 / (seeds - 1))
    half = stats.t.ppf(0.975, freedom) * variance**0.5
    found = difference_over_silos(strata(d), bound=9)
    mean = table.mean()
    assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - half, mean + half))


def test_over_partitions_that_share_no_rows_one_seed_is_the_t_interval_of_their_means():
    rng = np.random.default_rng(9)
    partitions = [[x + shift for x in draw(rng, [20, 30], 1)] for shift in rng.normal(0, 0.2, 5)]
    means = [np.mean([x.mean() for x in d]) for d in partitions]
    found = difference_over_partitions([strata(d) for d in partitions], bound=9)
    expected = stats.ttest_1samp(means, 0)
    low, high = expected.confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(means), low, high))
    assert found.p == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("shared", [0.25, 1.0])
def test_rows_that_partitions_share_add_their_variance_once(shared):
    """By hand, of one client: the variance of rows within a partition does not fall with more partitions."""
    rng = np.random.default_rng(10)
    partitions = [rng.normal(0.1 + shift, 1, (1, 40)) for shift in rng.normal(0, 0.2, 5)]
    means = np.array([d.mean() for d in partitions])
    between, within = means.var(ddof=1) / 5, shared * np.mean([d.var(ddof=1) / 40 for d in partitions])
    freedom = (between + within) ** 2 / (between**2 / 4 + within**2 / (5 * 39))
    half = stats.t.ppf(0.975, freedom) * (between + within) ** 0.5
    found = difference_over_partitions([strata([d]) for d in partitions], shared, bound=9)
    assert (found.low, found.high) == pytest.approx((means.mean() - half, means.mean() + half))


def test_one_partition_says_nothing_of_others_and_a_diverged_one_nothing_at_all():
    one = strata(draw(np.random.default_rng(11), [20, 30], 3))
    assert difference_over_partitions([one]) == Difference.unknown(difference(one).mean, 1.0)
    broken = strata([np.full((3, 20), np.nan)])
    assert np.isnan(difference_over_partitions([one, broken], bound=np.inf).mean)
    assert np.isnan(difference_over_silos([*one, *broken], bound=np.inf).mean)


@given(st.lists(st.floats(-0.3, 0.3), min_size=2, max_size=6), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_corrected_intervals_exclude_zero_exactly_where_holm_rejects(shifts, seeds, seed):
    rng = np.random.default_rng(seed)
    plain = [difference(strata([x + shift for x in draw(rng, [9, 20], seeds)]), bound=9) for shift in shifts]
    adjusted, found = holm([d.p for d in plain]), holm_intervals(plain)
    assert [d.distinguishable for d in found] == [p <= 0.05 for p in adjusted]
    assert [d.p for d in found] == adjusted
    for one, wide in zip(plain, found, strict=True):
        assert wide.mean == one.mean
        assert wide.low <= one.low <= one.high <= wide.high


def test_each_step_of_holm_has_its_own_level():
    """Two of four are rejected: their intervals have 1 - 0.05/4 and 1 - 0.05/3, the others both 1 - 0.05/2."""
    plain = [Difference.of_student(mean, 1.0, 9, 2 * stats.t.sf(mean, 9)) for mean in (0.5, 4.0, 1.0, 6.0)]
    found = holm_intervals(plain)
    halves = [stats.t.ppf(1 - 0.05 / tests / 2, 9) for tests in (2, 3, 2, 4)]
    assert [d.high - d.mean for d in found] == pytest.approx(halves)
    assert [d.distinguishable for d in found] == [False, True, False, True]


def test_of_one_method_nothing_is_corrected_and_of_diverged_ones_nothing_is_known():
    one, nan = difference(strata(draw(np.random.default_rng(12), [20], 3))), Difference(np.nan, np.nan, np.nan)
    assert holm_intervals([one]) == [one]
    assert holm_intervals([one, nan])[0] == one
    assert np.isnan(holm_intervals([one, nan])[1].mean)
    alone = Difference.unknown(0.4, 1.0)
    assert holm_intervals([one, alone])[1] == alone
    few = difference(strata([np.ones((1, 4))]))
    assert holm_intervals([few, few])[0] == Difference(1.0, -1.0, 1.0), "four equal rows reject nothing (sign test)"


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.7, 0.6]) == [1, 1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from([0.01, 0.05, 0.2]))
def test_holm_rejects_what_stepping_down_rejects(p, level):
    """Holm's procedure: compare the smallest with level / m, the next with level / (m - 1), and stop at a failure."""
    rejected = set()
    for passed, index in enumerate(np.argsort(p, kind="stable")):
        if (len(p) - passed) * p[index] > level:
            break
        rejected.add(int(index))
    assert {index for index, value in enumerate(holm(p)) if value <= level} == rejected


def test_a_test_without_a_value_does_not_count_for_holm():
    first, missing, second = holm([0.02, math.nan, 0.03])
    assert (first, second) == (0.04, 0.04)
    assert math.isnan(missing)


def test_holms_family_error_is_at_most_five_percent():
    rng = np.random.default_rng(0)
    errors = [min(holm(rng.uniform(size=9).tolist())) <= 0.05 for _ in range(4000)]
    assert np.mean(errors) < 0.06


@pytest.mark.parametrize(
    ("d", "p"),
    [
        ([[0] * 20] * 4 + [[1, 1]], 1 / 2),
        ([[1]] * 3 + [[0]] * 10 + [[0, 0]], 1 / 4),
        ([[1]] * 3 + [[-1, -1]], 1.0),
        ([[1] * 9, [-1, -1]], 1.0),  # the mean of the clients is 0
        ([[1] * 9, [1, 1], [-1, -1]], 2 * (1 + 13 + 78) / 2**13),
        ([[1] * 9, [-1, -1], [-1, -1]], 1.0),  # most draws are above zero, and the mean of the clients is below
    ],
)
def test_draws_without_spread_are_counted_by_sign_and_equal_outcomes_count_for_neither(d, p):
    found = difference([Stratum.from_differences(np.array([rows], float)) for rows in d])
    assert found.p == pytest.approx(p)
    assert found.distinguishable == (p <= 0.05)
    assert (found.low, found.high) == ((found.mean, found.mean) if p <= 0.05 else (-1, 1))


@pytest.mark.parametrize(
    ("mean", "metrics", "matters", "better", "said"),
    [
        (0.004, ACCURACY, 0.005, None, "certain, but smaller than what matters (0.5 points)"),
        (-0.004, ACCURACY, 0.005, None, "certain, but smaller than what matters (0.5 points)"),
        (0.005, ACCURACY, 0.005, "a", "a is better"),
        (-0.006, ACCURACY, 0.005, "b", "b is better"),
        (0.004, ACCURACY, 0.0, "a", "a is better"),
        (-2.0, RMSE, 2.816, None, "certain, but smaller than what matters (2.82 in rmse)"),
        (-3.0, RMSE, 2.816, "a", "a is better"),
    ],
)
def test_a_certain_difference_names_a_winner_only_if_it_matters(mean, metrics, matters, better, said):
    measured = Difference(mean, *sorted((0.5 * mean, 1.5 * mean)))
    record = difference_record("a", "b", measured, metrics, matters)
    assert (record["better"], record["sentence"].rpartition(": ")[2]) == (better, said)


def test_half_a_point_matters_and_of_errors_a_hundredth_of_the_reference():
    found = {name: metric.least_that_matters(-20.0) for name, metric in METRICS_BY_NAME.items()}
    shares = dict.fromkeys(("accuracy", "auc", "macro_f1", "balanced_accuracy", "r2"), 0.005)
    assert {name: value for name, value in found.items() if name not in shares} == dict.fromkeys(
        ("rmse", "log_loss", "brier", "mae"), pytest.approx(0.2)
    )
    assert {name: found[name] for name in shares} == shares
    assert [RMSE.least_that_matters(value) for value in (None, math.inf)] == [0.0, 0.0]
