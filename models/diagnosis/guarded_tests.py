"""The verdict `guarded`: nested tests on the counts of two clients, for feature, label and concept shift.

A type is named by the factor that stays fixed: P(X | Y) under label shift, P(Y | X) under feature shift. If the odds
ratios of X and Y differ, the type is concept shift. Fomichev, Kholod and Kocheshkov name the types; the tests are
ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from models.diagnosis import chi_square as test
from models.diagnosis.client_summaries.client_summary import LEAST_ROWS, divide_or_zero
from models.diagnosis.compare_means import compare_means
from models.diagnosis.merged_tables import Pairs

from .shift_words import ShiftType

ALPHA, LEAST_EFFECT = 0.01, 0.1
"""The level of a hypothesis over all features, and the effect φ below which a difference is ignored."""

MAX_UNREPORTED = LEAST_EFFECT**2 / 2
"""Share of a client's rows that may be unreported without an effect: if a share h of one client's rows differs,
clients of one size have φ = √2h at most.
"""

CORRELATION = 0.25
"""The correlation that two features' evidence of label shift is taken to have."""

TYPES: tuple[ShiftType, ...] = ("feature", "label", "concept")


@dataclass(frozen=True, eq=False)
class Evidence:
    """Results of tests of pairs, (pairs,), and of their features, (pairs, features); a field names what is rejected."""

    labels: np.ndarray  # P(Y)
    bins: np.ndarray  # P(X)
    bins_in_classes: np.ndarray  # P(X | Y)
    classes_in_bins: np.ndarray  # P(Y | X)
    interaction: np.ndarray  # equal odds ratios
    at_priors: np.ndarray  # P(X), also with a common prior: the mean of both, and the uniform one
    misfit_label: np.ndarray  # (pairs,) how badly label shift alone fits
    misfit_feature: np.ndarray  # (pairs,) how badly feature shift alone fits
    chances: dict[str, np.ndarray]  # p-values by hypothesis
    effects: dict[str, np.ndarray]  # φ by hypothesis
    tested: np.ndarray  # (pairs,) whether both report a class, so that more than margins is compared
    covered: np.ndarray  # (pairs,) whether both report every class that one of them reports
    label_odds: np.ndarray  # (pairs,) log likelihood ratio of label shift to another rule; NaN if it is not computed
    sweeps: np.ndarray  # (pairs,) with how many odds ratios were fitted; 0 if they were not


def count_evidence(pairs: Pairs, least_sweeps: int = 1) -> Evidence:
    """Collect evidence from counts by chi-square tests; odds ratios, which cost most time, only for pairs that differ.

    least_sweeps: with which odds ratios are fitted.
    """
    noise = pairs.noise
    compared_classes = comparable_classes(pairs.counts, noise)
    within = pairs.counts[..., :-1] * compared_classes[:, :, None, None, :]
    noise_within = None if noise is None else noise[..., :-1] * compared_classes[:, :, None, None, :]
    mean, even = priors(pairs.labels, compared_classes)
    size_within = effective_size(within.sum((-2, -1)))
    labels, inputs, in_classes = pairs.labels, pairs.counts.sum(-1), within
    if noise is None:  # a chi-square of rare cells is too large; the variance of noisy ones is known, and is used below
        labels, inputs = test.pool_rare(labels), test.pool_rare(inputs)
        in_classes = np.moveaxis(test.pool_rare(np.moveaxis(within, -1, -3)), -3, -1)
    comparable = comparable_features(pairs.counts.sum((-2, -1)), pairs, compared_classes)
    tested = {
        "labels": SizedTest(test.pearson(labels, label_noise(noise)), effective_size(pairs.labels.sum(-1))),
        "bins": SizedTest(
            mask_test(comparable, test.pearson(inputs, None if noise is None else noise.sum(-1))),
            effective_size(pairs.counts.sum((-2, -1))),
        ),
        "bins_in_classes": SizedTest(
            test.compare_inputs_in_classes(in_classes, noise_within),
            size_within,
            None if noise is not None else test.focus_on_inputs_in_classes(within, pairs.numeric),
        ),
        "classes_in_bins": SizedTest(test.compare_classes_given_inputs(within, noise_within), size_within),
        "at_mean": SizedTest(test.compare_inputs_at_prior(within, mean, noise_within), size_within),
        "at_even": SizedTest(test.compare_inputs_at_prior(within, even, noise_within), size_within),
    }
    if pairs.by_mean is not None and pairs.by_mean.any():
        tested |= _with_means(pairs, pairs.by_mean, tested, compared_classes, (mean, even), comparable)
    features = pairs.counts.shape[1]
    differ = tested["labels"].rejected(1) | tested["bins_in_classes"].rejected(features).any(-1)
    interaction, sweeps = _compare_odds_ratios(differ, within, noise_within, pairs.numeric, size_within, least_sweeps)
    evidence = build_evidence(tested | {"interaction": interaction}, features, covered(pairs, compared_classes))
    evidence = replace(evidence, sweeps=np.where(differ, sweeps, 0))
    return evidence if noise is not None else replace(evidence, label_odds=label_log_odds(within, pairs.labels))


def label_log_odds(within: np.ndarray, labels: np.ndarray, correlation: np.ndarray | None = None) -> np.ndarray:
    """Return the log likelihood ratio of label shift, P(X | Y) equal, to another rule for equal inputs: (pairs,).

    Under label shift P(X) moves by Δ = Σ over classes of P(X | Y) times the difference of shares; under another rule
    alone it does not move. The share λ of Δ that is seen, weighted by information and over all features together, is
    normal about 1 or 0. Without `correlation`, its variance takes features to be correlated by CORRELATION, as joint
    counts are not known.

    Args:
        within: Counts of compared classes, (pairs, features, 2, bins, classes).
        labels: Rows of each class, (pairs, 2, classes + 1). If one client has no row of a class, no other rule is weighed
            against label shift, and the ratio is NaN.
        correlation: Rank correlations of features over all rows, (pairs, features, features), NaN if not reported.
    """
    rows_of_class = within.sum(-2)
    rows = rows_of_class.sum(-1)
    share = divide_or_zero(rows_of_class, rows[..., None])
    difference = share[..., 1, :] - share[..., 0, :]
    both_rows = rows_of_class.sum(-2)
    given_class = divide_or_zero(within.sum(-3), both_rows[..., None, :])
    inputs = divide_or_zero(within.sum(-1), rows[..., None])
    pooled = divide_or_zero(within.sum((-3, -1)), rows.sum(-1)[..., None])
    expected = (given_class * difference[..., None, :]).sum(-1)
    score = divide_or_zero(expected, pooled)
    information = (score * expected).sum(-1)
    seen = (score * (inputs[..., 1, :] - inputs[..., 0, :])).sum(-1)
    weight = divide_or_zero(difference**2, both_rows)[..., None, :]
    error = divide_or_zero((weight * given_class * (1 - given_class)).sum(-1), pooled).sum(-1)  # of Δ, in both sums
    total, moved = np.maximum(information - error, 0).sum(-1), (seen - error).sum(-1)
    inverse_rows = divide_or_zero(1.0, rows).sum(-1)
    variances = information * inverse_rows
    variance = (1 - CORRELATION) * variances.sum(-1) + CORRELATION * np.sqrt(variances).sum(-1) ** 2
    if correlation is not None:
        variance = _variance_of_sum(variances, _rank_correlation(score, pooled), correlation)
    lacks_a_class = ((labels.min(1) < 0.5) & (labels.max(1) >= LEAST_ROWS))[:, :-1].any(-1)
    return np.where(lacks_a_class, np.nan, divide_or_zero(total * (moved - total / 2), variance))


def _rank_correlation(score: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return the correlation of a score of cells with their ranks: (...), from (..., cells) and the cells' shares."""
    rank = np.cumsum(share, -1) - share / 2
    rank, score = (part - (part * share).sum(-1, keepdims=True) for part in (rank, score))
    spread = np.sqrt((share * rank**2).sum(-1) * (share * score**2).sum(-1))
    return divide_or_zero((share * rank * score).sum(-1), spread)


def _variance_of_sum(variances: np.ndarray, with_ranks: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """Return the variance of the sum over features of scores: (pairs,), at least that of the largest.

    Two scores have the correlation of the features' ranks, times the correlations of both scores with ranks.
    """
    between = with_ranks[:, :, None] * with_ranks[:, None] * correlation
    between = np.where(np.isfinite(between), between, CORRELATION)
    between[:, np.arange(variances.shape[1]), np.arange(variances.shape[1])] = 1.0
    deviations = np.sqrt(variances)
    total = np.einsum("pi,pij,pj->p", deviations, between, deviations)
    return np.maximum(total, variances.max(-1, initial=0.0))


class SizedTest(NamedTuple):
    """A test of pairs, or of features of pairs, and n_A n_B / (n_A + n_B) of the rows it used.

    `focused` tests the same hypothesis by single contrasts, or by means. Twice the smaller of the two p-values counts
    (Bonferroni).
    """

    tested: test.ChiSquare
    size: np.ndarray
    focused: test.Focused | None = None

    def rejected(self, num_hypotheses: int) -> np.ndarray:
        """Return whether the hypothesis, one of `num_hypotheses`, is rejected and the effect is not small."""
        return (self.p_value * num_hypotheses < ALPHA) & (self.effect >= LEAST_EFFECT)

    @property
    def is_tested(self) -> np.ndarray:
        """Return whether anything was tested."""
        tested: np.ndarray = self.tested[1] > 0
        return tested if self.focused is None else tested | (self.focused.dof > 0)

    @property
    def p_value(self) -> np.ndarray:
        """Return the p-value: twice the smaller one if single contrasts were tested, too."""
        whole = test.p_value(self.tested)
        if self.focused is None:
            return whole
        both = np.minimum(2 * np.minimum(whole, self.focused.p_value), 1.0)
        return np.where(self.focused.dof > 0, both, whole)

    @property
    def effect(self) -> np.ndarray:
        """Return φ of the test with the smaller p-value."""
        whole = test.effect_size(self.tested, self.size)
        if self.focused is None:
            return whole
        respect = test.effect_size(self.focused.result, self.size)
        return np.where(self.focused.p_value < test.p_value(self.tested), respect, whole)


def _with_means(
    pairs: Pairs,
    by_mean: np.ndarray,
    tested: Mapping[str, SizedTest],
    compared_classes: np.ndarray,
    of_classes: tuple[np.ndarray, np.ndarray],
    comparable: np.ndarray,
) -> dict[str, SizedTest]:
    """Return the tests of inputs, focused on means where cells are few: by_mean, (pairs, features) bool."""
    counted: np.ndarray = np.any(pairs.counts, axis=-2)
    inputs, *others = compare_means(pairs.moments, counted, compared_classes, of_classes)
    focused = {}
    for name, of_means in zip(_OF_INPUTS, (mask_test(comparable, inputs), *others), strict=True):
        before = tested[name].focused or _unfocused(by_mean.shape)
        by_means = test.Focused(*of_means, np.ones(by_mean.shape))
        parts = (np.where(by_mean, new, old) for new, old in zip(by_means, before, strict=True))
        focused[name] = tested[name]._replace(focused=test.Focused(*parts))
    return focused


_OF_INPUTS = ("bins", "bins_in_classes", "at_mean", "at_even")  # in the order of MeanTests


def _unfocused(shape: tuple[int, ...]) -> test.Focused:
    return test.Focused(np.zeros(shape), np.zeros(shape, np.int64), np.ones(shape))


def build_evidence(tested: Mapping[str, SizedTest], features: int, covered: np.ndarray) -> Evidence:
    """Build evidence from tests by the names of its fields, and `at_mean` and `at_even`: P(X) at two priors."""
    rejected = {name: entry.rejected(1 if name == "labels" else features) for name, entry in tested.items()}
    return Evidence(
        rejected["labels"],
        rejected["bins"],
        rejected["bins_in_classes"],
        rejected["classes_in_bins"],
        rejected["interaction"],
        rejected["bins"] & rejected["at_mean"] & rejected["at_even"],
        _misfit(tested["bins_in_classes"].tested),
        _misfit(tested["classes_in_bins"].tested),
        {name: entry.p_value for name, entry in tested.items()},
        {name: entry.effect for name, entry in tested.items()},
        np.any(tested["bins_in_classes"].is_tested, axis=-1),
        covered,
        np.full(len(covered), np.nan),
        np.zeros(len(covered), np.int64),
    )


def _compare_odds_ratios(
    differ: np.ndarray,
    within: np.ndarray,
    noise: np.ndarray | None,
    numeric: np.ndarray,
    size: np.ndarray,
    least_sweeps: int,
) -> tuple[SizedTest, int]:
    """Test odds ratios of the pairs that differ, and return the sweeps; the other pairs are not tested."""
    shape, sweeps = within.shape[:2], 0
    whole = np.zeros(shape), np.zeros(shape, np.int64)
    focused = _unfocused(shape)
    if differ.any():
        expected, sweeps = test.sweep_margins(within[differ], least_sweeps=least_sweeps)
        results = test.compare_odds_ratios(within[differ], None if noise is None else noise[differ], expected)
        for part, result in zip(whole, results, strict=True):
            part[differ] = result
        if noise is None:
            for part, result in zip(focused, test.focus_on_odds_ratios(within[differ], expected, numeric), strict=True):
                part[differ] = result
    return SizedTest(whole, size, focused), sweeps


def covered(pairs: Pairs, compared_classes: np.ndarray) -> np.ndarray:
    """Return whether no class is compared by its share alone: (pairs,); compared_classes: (pairs, features, classes)."""
    noise = label_noise(pairs.noise)
    present = (pairs.labels >= _min_rows(noise))[..., :-1].any(-2)
    return ~np.any(present & ~compared_classes.any(1), axis=-1)


def comparable_features(reported_rows: np.ndarray, pairs: Pairs, compared_classes: np.ndarray) -> np.ndarray:
    """Return the features whose P(X) may be compared: (pairs, features) bool.

    All may be if a class is compared. Otherwise unreported rows of one client may belong to the very class that the
    other reports, and equal clients would seem to differ. Both must then report all but MAX_UNREPORTED of their rows; with
    noise they do. reported_rows: (pairs, features, 2); compared_classes: (pairs, features, classes).
    """
    if pairs.noise is not None:
        return np.ones(reported_rows.shape[:2], bool)
    compared: np.ndarray = np.any(compared_classes, axis=(1, 2))
    return (reported_rows >= (1 - MAX_UNREPORTED) * pairs.rows[:, None]).all(-1) | compared[:, None]


def mask_test(mask: np.ndarray, result: test.ChiSquare) -> test.ChiSquare:
    """Restrict a test to `mask`; elsewhere nothing is tested."""
    statistic, dof = result
    return np.where(mask, statistic, 0.0), np.where(mask, dof, 0)


def label_noise(noise: np.ndarray | None) -> np.ndarray | None:
    """Return the variance of labels, the means over features of their counts: (pairs, 2, classes + 1)."""
    return None if noise is None else noise.sum((1, 3)) / noise.shape[1] ** 2


def effective_size(rows: np.ndarray) -> np.ndarray:
    """Return n_A n_B / (n_A + n_B) of (..., 2)."""
    total = rows.sum(-1)
    return np.divide(rows.prod(-1), total, out=np.zeros(total.shape), where=total > 0)


def comparable_classes(counts: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
    """Return the classes with enough rows on both sides: (pairs, features, classes) bool; arguments as in `Pairs`."""
    min_rows = _min_rows(None if noise is None else noise.sum(-2))
    return (counts.sum(-2) >= min_rows)[..., :-1].all(2)


def priors(labels: np.ndarray, compared_classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of both clients' shares of compared classes, and equal shares: (pairs, features, classes) each."""
    counts = np.maximum(labels[..., :-1], 0.0)
    total = counts.sum(-1, keepdims=True)
    shares = divide_or_zero(counts, total)
    mean = shares.mean(-2)[:, None] * compared_classes
    norm = mean.sum(-1, keepdims=True)
    mean = divide_or_zero(mean, norm)
    return mean, compared_classes / np.maximum(compared_classes.sum(-1, keepdims=True), 1)


def _min_rows(noise: np.ndarray | None) -> int | np.ndarray:
    """Return the rows that a class needs to be present: more than noise of this variance amounts to."""
    return LEAST_ROWS if noise is None else np.maximum(LEAST_ROWS, test.MIN_SIGNAL_TO_NOISE * np.sqrt(noise))


def _misfit(result: test.ChiSquare) -> np.ndarray:
    """Return the largest statistic of a pair's features, in its standard deviations."""
    statistic, dof = result
    return (np.where(dof > 0, (statistic - dof) / np.sqrt(2 * np.maximum(dof, 1)), 0.0)).max(-1, initial=0.0)
