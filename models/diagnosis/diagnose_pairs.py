"""Results for all pairs of clients, computed in batches: verdicts, alignment, and reasons for undetermined pairs."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from scipy.special import chdtri

from models.diagnosis.chi_square import effect_size, p_value
from models.diagnosis.client_summaries.client_summary import (
    LEAST_ROWS,
    Layout,
    Summaries,
    concatenate_summaries,
    divide_or_zero,
    leave_one_out,
)
from models.diagnosis.client_summaries.common_cells import in_common_cells
from models.diagnosis.guarded_tests import ALPHA, LEAST_EFFECT, Evidence, count_evidence, effective_size, priors
from models.diagnosis.merged_tables import Pairs, build_pairs, impute_labels, impute_rows, max_unreported
from models.diagnosis.name_shift_types import LIKELY, MIN_ROWS, Verdicts, classify_pairs, restrict_to
from models.diagnosis.wald_tests import ROWS, mean_and_spread, scaled_at_prior, standardize

from .shift_words import Reason

_MIN_SD = 0.1  # of a class, in deviations of all rows: pixels that never vary carry no information


@dataclass(frozen=True, eq=False)
class Alignment:
    """The checks of AlignmentChecks on pairs; `lossy` if a feature is a projection that carries less than the row does."""

    pairs: Pairs
    lossy: bool = False

    def transforms(self, indices: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return whether class means and deviations agree once each client's feature is scaled: (indices,) bool.

        The scale is that of the mixture under one prior for both. Gains are positive: a negative one equals two
        classes that changed names. Categories have no scale, since their codes are positions. features: (indices,
        features) bool, the features that have to agree.
        """
        scaled, compared = self._scaled(indices)
        statistic = np.where(compared, mean_and_spread(np.moveaxis(scaled, -3, -2)), 0.0).sum(-1)
        classes = compared.sum(-1)
        dof = np.maximum(2 * classes - 2, 0)
        size = effective_size(np.where(compared[:, :, None], scaled[..., ROWS], 0.0).sum(-1))
        result = (statistic, dof)
        differ = (p_value(result) * self.pairs.counts.shape[1] < ALPHA) & (effect_size(result, size) >= LEAST_EFFECT)
        return (~differ & (classes > 1) & self.pairs.numeric | ~features).all(-1)

    def broken(self, indices: np.ndarray) -> np.ndarray | None:
        """Return the relative decrease of the distance of classes under the best renaming, in [0, 1]: (indices,)."""
        if not self.lossy:
            return None
        from scipy.optimize import linear_sum_assignment

        scaled, compared = self._scaled(indices)
        shares = np.zeros(len(indices))
        for index in range(len(indices)):
            shared = np.flatnonzero(compared[index].all(0))
            if len(shared) < 2:
                continue
            cost = _overlap_cost(scaled[index, :, 0][:, shared], scaled[index, :, 1][:, shared])
            current, best_cost = np.trace(cost), cost[linear_sum_assignment(cost)].sum()
            shares[index] = (current - best_cost) / current if current > 0 else 0.0
        return shares

    def _scaled(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return class moments in deviations of the mixture, (indices, features, 2, classes, 5), and compared classes."""
        moments = standardize(self.pairs.moments[indices])[..., :-1, :]
        compared: np.ndarray = np.all(moments[..., ROWS] >= LEAST_ROWS, axis=-2)
        prior = priors(self.pairs.labels[indices], compared)[0]
        return scaled_at_prior(np.where(compared[:, :, None, :, None], moments, 0.0), prior), compared


def _overlap_cost(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cost 1 - overlap of normals, (classes, classes), summed over features; (features, classes, 5) each."""
    mean, other_mean = first[:, :, None, 1], second[:, None, :, 1]
    sd, other_sd = np.maximum(first[:, :, None, 2], _MIN_SD), np.maximum(second[:, None, :, 2], _MIN_SD)
    total_variance = sd**2 + other_sd**2
    overlap = np.sqrt(2 * sd * other_sd / total_variance) * np.exp(-((mean - other_mean) ** 2) / (4 * total_variance))
    return (1 - overlap).sum(0)


REASONS: tuple[Reason, ...] = ("rows", "unreported", "apart", "rough", "constant")
"""Too few rows; a client that may report nothing of its rows; no class reported by both; no class with the rows that
the verdict needs; no feature that varies within such a class.
"""


def reports_rows(pairs: Pairs) -> np.ndarray:
    """Return whether each client reports more than its number of rows: (pairs, 2) bool."""
    with_moments = np.isfinite(pairs.moments[..., ROWS]).any((1, 3))
    return with_moments | _rows_with_value(pairs).any((1, 3))


def _rows_with_value(pairs: Pairs) -> np.ndarray:
    """Return the rows counted with a value, of features that may have no moments: (pairs, features, 2, columns)."""
    return pairs.counts[..., :-1, :].sum(-2) * (pairs.noise is None)


def undetermined_reason(pairs: Pairs, min_rows: int = LEAST_ROWS) -> np.ndarray:
    """Return the reason why a pair is undetermined, the first of REASONS that holds or else the last: (pairs,) indices.

    min_rows: rows of a class that the verdict needs on both sides.
    """
    rows = np.maximum(np.nan_to_num(pairs.moments[..., :-1, ROWS]), _rows_with_value(pairs)[..., :-1]).min(2)
    max_rows = rows.max((1, 2), initial=0)
    reasons = [
        (pairs.rows < MIN_ROWS).any(-1),
        ~reports_rows(pairs).all(-1),
        max_rows < LEAST_ROWS,
        max_rows < min_rows,
    ]
    return np.select(reasons, range(len(reasons)), len(reasons))


_BATCH_BYTES = 2**27  # bytes of one table of a batch of pairs, which are fitted with the same number of sweeps
_PART_BYTES = 2**24  # bytes of one table of a part of a batch; about ten are in memory


DISCOVERIES = 0.05
"""Share of false discoveries among the pairs that are reported to differ (Benjamini and Hochberg 1995)."""


@dataclass(frozen=True, eq=False)
class Findings:
    """Results of pairs, in the order requested, (pairs,) or (pairs, features).

    Attributes:
        chance: The p-value over all hypotheses of the pair: P(Y) and P(X | Y), or P(X) if no class is compared.
        labels, moved: Whether P(Y), and P(X) of any feature, differ; margins also differ under other types of shift. Inputs
            also count as moved if a feature shift is named from P(X | Y) alone.
        parts: φ of the verdict by feature: of odds ratios under concept shift, otherwise of P(X) under one prior; the
            larger of both if feature and concept shift are named.
        inputs: φ of P(X) under one prior, for every pair.
        odds: φ of the odds ratios by feature.
        rules: The same, by which a rule is named; where there are pseudo-rows, given all other features. Without them a
            feature whose inputs moved counts at most as much as the best of the others, since it may only be correlated with
            one.
        overlap: The share of rows in the same bins, of the worst feature; NaN without counts.
        tells: (pairs, 2) bool, whether a client reported more than its number of rows.
        why: An index in REASONS, of what prevents a verdict.
    """

    first: np.ndarray
    second: np.ndarray
    rows: np.ndarray
    verdicts: Verdicts
    chance: np.ndarray
    labels: np.ndarray
    moved: np.ndarray
    parts: np.ndarray
    inputs: np.ndarray
    odds: np.ndarray
    rules: np.ndarray
    overlap: np.ndarray
    tells: np.ndarray
    why: np.ndarray


def rule_features(findings: Findings, pair: int) -> list[int]:
    """Return the features by which the changed rule of a pair is named, the likeliest first; empty without an effect.

    The largest effect must exceed that of chance over all features: another threshold of the rule changes none of them.
    Further ones explain the change about as well: it is not LIKELY that the first one does and they do not.
    """
    rules = findings.rules[pair]
    likelihoods = rules**2 * effective_size(findings.rows[pair]) / 2
    order = np.argsort(-rules, kind="stable").tolist()
    if not order or 2 * likelihoods[order[0]] < chdtri(1, DISCOVERIES / len(order)) - 1:
        return []
    return [i for i in order if rules[i] >= LEAST_EFFECT and likelihoods[order[0]] - likelihoods[i] < LIKELY]


MOST_PRODUCTS = 8
"""Products of two features that a model of a second look has as inputs."""


def explaining_products(findings: Findings, pairs: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Return pairs of features that may act together in a common rule, the likeliest first: at most MOST_PRODUCTS.

    If two features act together and one of them moves, the odds ratios of the other change, though the rule does not.
    pairs: the indices of the pairs of clients with changed inputs and odds ratios.
    """
    odds, inputs = (np.where(part[pairs] < LEAST_EFFECT, 0.0, part[pairs]) for part in (findings.odds, findings.inputs))
    strength = odds.T @ inputs
    strength = np.triu(strength + strength.T, 1)
    order = np.argsort(-strength, axis=None, kind="stable")[:MOST_PRODUCTS]
    found = (np.unravel_index(index, strength.shape) for index in order if strength.flat[index] > 0)
    return tuple((int(one), int(other)) for one, other in found)


EvidenceFunction = Callable[[Pairs, int], Evidence]


def diagnose_pairs(
    summaries: Summaries,
    layout: Layout,
    first: np.ndarray,
    second: np.ndarray,
    lossy: bool = False,
    collect_evidence: EvidenceFunction = count_evidence,
    min_rows: int = LEAST_ROWS,
    report_progress: Callable[[int], None] | None = None,
) -> Findings:
    """Compare the pairs of clients first[i] and second[i]; `lossy` if features are projections.

    `collect_evidence` needs `min_rows` rows of a class on both sides. `report_progress` receives the number of
    finished pairs.
    """
    step = max(1, _BATCH_BYTES // max(16 * summaries.counts[0].size, 1))
    parts = []
    for start in range(0, max(len(first), 1), step):
        batch = np.stack([first[start : start + step], second[start : start + step]])
        parts += _compare_batch(summaries, layout, batch, lossy, collect_evidence, min_rows)
        if report_progress:
            report_progress(min(start + step, len(first)))
    columns = [np.concatenate(column) for column in zip(*(columns for _, columns in parts), strict=True)]
    verdicts = Verdicts(*(np.concatenate([getattr(v, f.name) for v, _ in parts]) for f in fields(Verdicts)))
    return Findings(first, second, columns[0], restrict_to(verdicts, find_differences(columns[1])), *columns[1:])


def find_differences(p_values: np.ndarray) -> np.ndarray:
    """Return which pairs differ at all, with the share of false discoveries at most DISCOVERIES."""
    from scipy.stats import false_discovery_control

    return false_discovery_control(p_values) <= DISCOVERIES if len(p_values) else np.zeros(0, bool)


def append_rest(summaries: Summaries) -> Summaries:
    """Append to the clients, for each of them, all other clients combined: (2 clients)."""
    rows = summaries.rows.sum() - summaries.rows
    together = in_common_cells(summaries)
    rest = Summaries(
        rows,
        _labels_of_others(summaries, rows),
        together.counts.sum(0) - together.counts,
        leave_one_out(summaries.moments),
        None if summaries.noise is None else summaries.noise.sum(0) - summaries.noise,
        together.counted_in,
    )
    return concatenate_summaries([summaries, rest])


def _labels_of_others(summaries: Summaries, rows: np.ndarray) -> np.ndarray:
    """Return rows of each class at all other clients, (clients, classes); NaN if none of them reports the class.

    The others that do not report it are imputed together, so that the class is as frequent as at the client, as far as
    possible. Counting 0 for them would make a class that is rare everywhere seem missing.
    """
    labels, withheld = np.nan_to_num(summaries.labels), np.isnan(summaries.labels)
    reported, num_withheld = labels.sum(0) - labels, withheld.sum(0) - withheld
    share = divide_or_zero(labels, summaries.rows[:, None])
    max_rows = max_unreported(summaries.labels, summaries.rows)
    unreported = np.maximum(rows - reported.sum(-1), 0)
    imputed = impute_rows(share * rows[:, None] - reported, max_rows.sum(0) - max_rows, unreported)
    return np.where(num_withheld < len(rows) - 1, reported + imputed, np.nan)


def group_clients(first: np.ndarray, second: np.ndarray, differ: np.ndarray, clients: int) -> list[list[int]]:
    """Group clients most of whose pairs do not differ, by average linkage; indices ascend."""
    from scipy.cluster import hierarchy

    if clients < 2:
        return [[index] for index in range(clients)]
    differences = np.zeros((clients, clients))
    differences[first, second] = differences[second, first] = differ
    cut = hierarchy.fcluster(hierarchy.linkage(differences[np.triu_indices(clients, 1)], "average"), 0.5, "distance")
    return sorted(np.flatnonzero(cut == group).tolist() for group in np.unique(cut))


def _joint_p_value(evidence: Evidence) -> np.ndarray:
    features = evidence.bins.shape[1]
    compared = np.where(evidence.tested[:, None], evidence.chances["bins_in_classes"], evidence.chances["bins"])
    p_value_of_inputs = compared.min(-1, initial=1.0) * features
    return np.minimum(2 * np.minimum(evidence.chances["labels"], p_value_of_inputs), 1.0)


_Compared = tuple[Verdicts, tuple[np.ndarray, ...]]


def _compare_batch(
    summaries: Summaries,
    layout: Layout,
    batch: np.ndarray,
    lossy: bool,
    collect_evidence: EvidenceFunction,
    min_rows: int,
) -> list[_Compared]:
    """Return what `_compare_part` returns, of parts of a batch of pairs, (2, pairs), which need less memory together.

    Results do not depend on the size of parts: a part that was fitted with fewer sweeps than another one is compared again.
    """
    labels = impute_labels(summaries.labels[batch.T], summaries.rows[batch.T])
    table_bytes = 16 * summaries.counts[0].size * batch.shape[1]
    count = max(1, min(batch.shape[1], -(-table_bytes // _PART_BYTES)))
    parts = np.array_split(np.arange(batch.shape[1]), count)  # about equal, since sums of few pairs may round otherwise
    compared: dict[int, _Compared] = {}
    sweeps, least = dict.fromkeys(range(count), 0), 1
    while waiting := [index for index in sweeps if index not in compared or 0 < sweeps[index] < least]:
        for index in waiting:
            part = parts[index]
            pairs = build_pairs(summaries, layout, *batch[:, part])._replace(labels=labels[part])
            evidence = collect_evidence(pairs, least)
            compared[index] = _compare_part(pairs, evidence, lossy, min_rows, bool(layout.targets))
            sweeps[index] = int(evidence.sweeps.max(initial=0))
            least = max(least, sweeps[index])
    return [compared[index] for index in sweeps]


def _compare_part(pairs: Pairs, evidence: Evidence, lossy: bool, min_rows: int, regression: bool) -> _Compared:
    """Return the verdicts, and the other fields of Findings."""
    verdicts = classify_pairs(evidence, pairs.rows, Alignment(pairs, lossy), regression)
    concept = verdicts.types[:, 2:]
    moved: np.ndarray = np.any(evidence.bins, axis=-1) | verdicts.types[:, 0]
    inputs = np.minimum(evidence.effects["at_mean"], evidence.effects["bins"])
    odds = evidence.effects["interaction"]
    parts = np.where(concept, np.where(verdicts.types[:, :1], np.maximum(odds, inputs), odds), inputs)
    parts = np.where(evidence.tested[:, None], parts, evidence.effects["bins"])
    cells = np.maximum(pairs.counts.sum(-1), 0)  # noisy counts may be negative
    total = cells.sum(-1, keepdims=True)
    shares = divide_or_zero(cells, total)
    overlap = np.where(total.any((1, 2, 3)), shares.min(2).sum(-1).min(-1, initial=1.0), np.nan)
    tells, why = reports_rows(pairs), undetermined_reason(pairs, min_rows)
    unmoved = inputs < LEAST_EFFECT
    best = np.where(unmoved & (odds >= LEAST_EFFECT), odds, 0.0).max(-1, initial=0.0, keepdims=True)
    by_feature = parts, inputs, odds, np.where(unmoved | (best == 0), odds, np.minimum(odds, best))
    return verdicts, (pairs.rows, _joint_p_value(evidence), evidence.labels, moved, *by_feature, overlap, tells, why)
