"""The verdict on shift from rejected hypotheses, effect sizes, and the check of inputs as an explanation.

The verdict `fomichev` is the one that Fomichev, Kholod and Kocheshkov print: a moderate or larger distance is a shift of
its type. It uses no number of rows and does not compare P(X | Y).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from scipy.spatial.distance import pdist

from models.diagnosis import chi_square as test
from models.diagnosis.client_summaries.client_summary import Layout, Summaries, divide_or_zero, mixture
from models.diagnosis.client_summaries.common_cells import (
    counts_of_pairs,
    in_cells_of_pairs,
    in_classes_of_pairs,
)
from models.diagnosis.fomichev_distances import (
    Readings,
    Statistics,
    concept_distance,
    distance_in_classes,
    feature_distance,
    federation_grid,
    known_classes,
    label_distance,
    posteriors,
    statistics_from_summaries,
)
from models.diagnosis.guarded_tests import TYPES, Evidence, SizedTest, comparable_classes, effective_size
from models.diagnosis.merged_tables import all_pairs, merge_cells

from .shift_words import Grade

GRADES: tuple[Grade, ...] = ("negligible", "moderate", "significant", "critical")

MIN_ROWS = 20
"""Rows of a client below which the verdict is undetermined."""

LIKELY = float(np.log(4))
"""The log likelihood ratio from which one explanation of a pair counts as likelier than another. At four to one no more
than 5 % of label shifts count as another rule, however much features tell of the class: one minus Φ of √(2 log 4).
"""

SURE = float(np.log(10))
"""The log likelihood ratio from which label shift is named without the alternative of another threshold: no more than 2 % of
other thresholds are then called label shift alone.
"""

MIN_RELABELED = 0.2
"""The least share of class separation, explained by another pairing of classes, for concept shift of lossy features."""


@dataclass(frozen=True)
class OverFeatures:
    """A distance of pairs over the features where it is defined, (pairs,) each; NaN and feature −1 without any."""

    largest: np.ndarray
    feature: np.ndarray
    mean: np.ndarray

    def aggregate(self, readings: Readings) -> np.ndarray:
        """Return the largest or the mean, as `readings` chooses."""
        return self.largest if readings.aggregate == "max" else self.mean


@dataclass(frozen=True)
class PublishedVerdict:
    """The published verdict of pairs; an undefined distance has grade −1 and is no shift."""

    features: OverFeatures  # D_X
    labels: np.ndarray  # (pairs,) D_Y
    concepts: OverFeatures  # D_{Y|X}
    grades: np.ndarray  # (pairs, 3): an index in GRADES, in the order of TYPES
    types: np.ndarray  # (pairs, 3) bool, in the order of TYPES; none of them is no shift


def judge_pairs(statistics: Statistics, pairs: np.ndarray, readings: Readings = Readings()) -> PublishedVerdict:
    """Judge pairs of clients, (pairs, 2), with memory for one feature at a time."""
    return _judged(statistics, pairs, readings, lambda of_feature: concept_distance(of_feature, pairs, readings)[:, 0])


def judge_all_pairs(statistics: Statistics, readings: Readings = Readings(grid="federation")) -> PublishedVerdict:
    """Judge all pairs, in the order of `all_pairs`; with a common grid each client's posterior is computed once."""
    pairs = np.stack(all_pairs(len(statistics.rows)), -1)
    if readings.grid == "pair":
        return judge_pairs(statistics, pairs, readings)
    return _judged(statistics, pairs, readings, lambda of_feature: _all_concept_distances(of_feature, pairs, readings))


def grade_distances(distances: np.ndarray, lower_bounds: tuple[float, float, float]) -> np.ndarray:
    """Return an index in GRADES, −1 for an undefined distance; a bound belongs to the grade above it."""
    return np.where(np.isnan(distances), -1, np.searchsorted(lower_bounds, distances, side="right"))


def _judged(
    statistics: Statistics, pairs: np.ndarray, readings: Readings, concept: Callable[[Statistics], np.ndarray]
) -> PublishedVerdict:
    features, concepts = _RunningAggregate(len(pairs)), _RunningAggregate(len(pairs))
    for index in range(statistics.mean.shape[1]):
        of_feature = statistics.select(slice(index, index + 1))
        features.add(feature_distance(of_feature, pairs, readings)[:, 0])
        concepts.add(concept(of_feature))
    by_type = {
        "feature": (features.result().aggregate(readings), readings.feature_grades),
        "label": (label_distance(statistics, pairs), readings.label_grades),
        "concept": (concepts.result().aggregate(readings), readings.concept_grades),
    }
    grades = np.stack([grade_distances(*by_type[name]) for name in TYPES], -1)
    return PublishedVerdict(features.result(), by_type["label"][0], concepts.result(), grades, grades >= 1)


def _all_concept_distances(of_feature: Statistics, pairs: np.ndarray, readings: Readings) -> np.ndarray:
    grid = federation_grid(of_feature, readings.points)
    flat = posteriors(of_feature, grid, readings).reshape(len(of_feature.rows), -1)
    defined = np.asarray(known_classes(of_feature, readings)[:, 0].any(-1))
    distances = pdist(flat, "cityblock") / readings.points
    return np.where(defined[pairs[:, 0]] & defined[pairs[:, 1]], distances, np.nan)


class _RunningAggregate:
    """The largest distance, its feature and the mean, over distances added feature by feature."""

    def __init__(self, pairs: int) -> None:
        self._largest, self._sum = np.full(pairs, -np.inf), np.zeros(pairs)
        self._feature, self._count = np.full(pairs, -1), np.zeros(pairs, np.int64)
        self._features = 0

    def add(self, distance: np.ndarray) -> None:
        """Add the distances of the next feature, (pairs,); NaN are left out."""
        larger = distance > self._largest  # false of NaN
        self._largest[larger], self._feature[larger] = distance[larger], self._features
        defined = ~np.isnan(distance)
        self._sum[defined] += distance[defined]
        self._count += defined
        self._features += 1

    def result(self) -> OverFeatures:
        defined = self._count > 0
        mean = np.divide(self._sum, self._count, out=np.full(self._sum.shape, np.nan), where=defined)
        return OverFeatures(np.where(defined, self._largest, np.nan), self._feature, mean)


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Verdicts of pairs, (pairs,) each; types: (pairs, 3) bool in the order of TYPES, all false without shift."""

    types: np.ndarray
    undetermined: np.ndarray  # too few rows, or only margins were compared and agree
    transform: np.ndarray  # a gain and an offset of the inputs explain the difference
    margins_only: np.ndarray  # no class is reported by both: only P(X) and P(Y) were compared
    label_or_concept: np.ndarray  # label shift is named, and another rule for the same inputs is possible


class AlignmentChecks(Protocol):
    """Checks of pairs whose odds ratios differ, computed only for the pairs at `indices`."""

    def transforms(self, indices: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return whether a gain and an offset of inputs explain all differing features, (indices,) bool.

        features: (indices, features) bool, the features that differ.
        """
        ...

    def broken(self, indices: np.ndarray) -> np.ndarray | None:
        """Return the share of class separation that another pairing explains, (indices,); None without lossy features."""
        ...


def classify_pairs(
    evidence: Evidence, rows: np.ndarray, alignment: AlignmentChecks, regression: bool = False
) -> Verdicts:
    """Classify the shift of pairs; rows: (pairs, 2).

    If P(X) does not differ while P(Y) does, another threshold of the rule explains the pair as label shift does, which
    moves P(X) a little: the more likely one is named, and label shift unless the other is LIKELY. Label shift that is
    not SURE is hedged, and so is that with feature shift: it moves log odds given the inputs as another threshold does.

    In a regression classes are groups of targets. If all targets move by an amount, odds ratios and P(X) do not
    change: this is a shift of P(Y | X) alone.
    """
    undetermined: np.ndarray = np.any(rows < MIN_ROWS, axis=-1)
    undetermined |= ~evidence.tested & ~evidence.labels & ~evidence.bins.any(-1)  # only margins, which do not differ
    concept = evidence.interaction.any(-1)
    none = ~evidence.labels & ~evidence.bins_in_classes.any(-1) & (evidence.tested | ~evidence.bins.any(-1))
    label = evidence.labels & ~evidence.bins_in_classes.any(-1)
    feature = (evidence.bins & ~evidence.classes_in_bins).any(-1) & ~concept & evidence.tested
    # a change of the share of a class that one client lacks does not show in P(Y | X)
    feature &= evidence.covered | ~evidence.labels
    both, label_fits = label & feature, evidence.misfit_label <= evidence.misfit_feature
    label, feature = label & (~both | label_fits), feature & (~both | ~label_fits)
    inputs_differ: np.ndarray = np.any(evidence.bins, axis=-1)
    rule = label & ~inputs_differ & (evidence.label_odds < -LIKELY)
    label_or_concept = label & ~rule & ~inputs_differ & (evidence.label_odds < SURE)
    simple = none | label | feature
    mixed, moved = ~simple & ~concept, evidence.at_priors.any(-1)
    last = ~simple & concept
    # another rule moves P(Y) as well: inputs that label shift would move, and that did not move, show that it is all
    only_rule = last & ~inputs_differ & (evidence.label_odds < LIKELY) & (not regression)
    rule_differs = evidence.classes_in_bins.any(-1) | (evidence.labels & ~np.isnan(evidence.label_odds))
    rule_differs |= evidence.label_odds < -LIKELY  # the tests of P(X) and of P(Y | X) alone may both be too weak
    rule |= mixed & ~inputs_differ & rule_differs & ~(evidence.label_odds >= LIKELY)
    targets_moved = rule & regression & evidence.labels
    types = np.stack(
        [
            feature | (mixed & ~rule) | (last & moved),
            (label & ~rule) | (~simple & evidence.labels & ~rule & ~only_rule) | targets_moved,
            last | rule,
        ],
        -1,
    )
    transform = np.zeros(len(types), bool)
    indices = np.flatnonzero(last & moved & ~undetermined)
    if len(indices):
        transform[indices] = alignment.transforms(indices, evidence.interaction[indices])
        types[indices, 2] &= ~transform[indices]
        share = alignment.broken(indices)
        if share is not None:
            types[indices, 2] &= share > MIN_RELABELED
    types[none | undetermined] = False
    # P(X) moves in any way under feature shift, so that nothing tells whether labels or a threshold moved with it
    label_or_concept |= types[:, 0] & ~types[:, 2] & ~np.isnan(evidence.label_odds) & (not regression)
    label_or_concept &= types[:, 1]
    return Verdicts(types, undetermined, transform & ~none, ~evidence.tested & ~undetermined, label_or_concept)


def restrict_to(verdicts: Verdicts, differ: np.ndarray) -> Verdicts:
    """Restrict the verdicts of jointly tested pairs to those that differ at all, (pairs,) bool."""
    return replace(
        verdicts,
        types=verdicts.types & differ[:, None],
        transform=verdicts.transform & differ,
        label_or_concept=verdicts.label_or_concept & differ,
    )


@dataclass(frozen=True, eq=False)
class EffectSizes:
    """Effect sizes of pairs, NaN if undefined.

    distances: (pairs, 3), D_X, D_Y and D_{Y|X} of the worst feature; grades: (pairs, 3), an index in GRADES or -1;
    types: (pairs, 3) bool, the published verdict. Not in the paper are in_classes: (pairs,) D_{X|Y} of the worst
    feature, and wasserstein: (pairs,) the largest 2-Wasserstein distance of a feature's normals, in deviations of all
    clients' rows.
    """

    distances: np.ndarray
    grades: np.ndarray
    types: np.ndarray
    in_classes: np.ndarray
    wasserstein: np.ndarray


def effect_sizes(
    summaries: Summaries, layout: Layout, readings: Readings, selected: np.ndarray | None = None
) -> EffectSizes:
    """Compute the effect sizes of all pairs, or of `selected`, (pairs, 2) indices.

    Reports have one range of a feature for all clients, so the grids of a pair and of all clients are equal.
    """
    statistics = statistics_from_summaries(summaries, layout)
    verdict = judge_all_pairs(statistics, readings) if selected is None else judge_pairs(statistics, selected, readings)
    pairs = np.stack(all_pairs(len(summaries.rows)), 1) if selected is None else selected
    in_classes = np.full((len(pairs), 1), np.nan)
    if summaries.counts.shape[2]:
        in_classes = _distances_in_classes(summaries, pairs)
    inputs, rules = verdict.features.aggregate(readings), verdict.concepts.aggregate(readings)
    distances = np.stack([inputs, verdict.labels, rules], 1)
    wasserstein = _largest(_normal_distances(summaries, pairs))
    return EffectSizes(distances, verdict.grades, verdict.types, _largest(in_classes), wasserstein)


def _distances_in_classes(summaries: Summaries, pairs: np.ndarray) -> np.ndarray:
    """Return D_{X|Y} in the cells that the clients of each pair have alike: (pairs, features)."""
    if summaries.counted_in is None:
        return distance_in_classes(summaries.counts[..., :-1], pairs)
    parts = [np.zeros((0, summaries.counts.shape[1]))]
    for start in range(0, len(pairs), _BATCH):
        both = counts_of_pairs(summaries, pairs[start : start + _BATCH])[..., :-1]
        ends = np.arange(2 * len(both)).reshape(-1, 2)
        parts.append(distance_in_classes(both.reshape(-1, *both.shape[2:]), ends))
    return np.concatenate(parts)


def _largest(by_feature: np.ndarray) -> np.ndarray:
    """Return the largest value over features, NaN if it is undefined for all: (pairs,)."""
    defined = ~np.isnan(by_feature)
    largest = np.where(defined, by_feature, -np.inf).max(-1, initial=-np.inf)
    return np.where(defined.any(-1), largest, np.nan)


def _normal_distances(summaries: Summaries, pairs: np.ndarray) -> np.ndarray:
    """Return 2-Wasserstein distances ((m - m')² + (s - s')²)^½ of normals, (pairs, features), in deviations of all rows.

    They are lower bounds for any distributions with these moments (Gelbrich 1990).
    """
    own = mixture(summaries.moments)
    unit = mixture(np.moveaxis(own, 0, -2))[..., 2]
    first, second = pairs.T
    distances = np.hypot(own[first, :, 1] - own[second, :, 1], own[first, :, 2] - own[second, :, 2])
    return divide_or_zero(distances, unit)


_BATCH = 64  # pairs
_MIN_PREDICTED = 0.5  # rows of a cell: 0 would exclude rows that are present


class CovariateCheck(NamedTuple):
    """Whether both clients' models predict the difference of odds ratios (`rules`) and of labels: (pairs,) bool."""

    rules: np.ndarray
    labels: np.ndarray

    def unexplained(self, types: np.ndarray) -> np.ndarray:
        """Return the types of these pairs, (pairs, 3) bool in the order of TYPES, that the models do not explain."""
        return types & ~np.stack([np.zeros_like(self.rules), self.labels, self.rules], -1)


def check_covariates(
    summaries: Summaries, layout: Layout, predicted: np.ndarray, first: np.ndarray, second: np.ndarray
) -> CovariateCheck:
    """Check pairs, clients first[i] and second[i], whose odds ratios differ in some feature.

    The tests are those of equal odds ratios, by single contrasts if no whole table differs, and of equal P(Y | X), against
    the models' predictions fitted to the same margins. A pair is explained if no feature with differing odds ratios
    deviates from the predictions of either model. Both models must predict every compared class. predicted: (clients,
    models, features, cells, classes) rows that each client's models predict for each client, in the order of `summaries`;
    0 without a prediction.
    """
    rules, labels = np.zeros(len(first), bool), np.zeros(len(first), bool)
    for start in range(0, len(first), _BATCH):
        part = slice(start, start + _BATCH)
        rules[part], labels[part] = _check_batch(summaries, layout, predicted, np.stack([first[part], second[part]], 1))
    return CovariateCheck(rules, labels)


def _check_batch(
    summaries: Summaries, layout: Layout, predicted: np.ndarray, pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    counts, by_first, by_second = _comparable(summaries, layout, predicted, pairs)
    compared_classes = comparable_classes(counts)
    predicted_classes = ((by_first.sum(-2) > 0) & (by_second.sum(-2) > 0)).all(2)
    within = counts[..., :-1] * compared_classes[:, :, None, None]
    size = effective_size(within.sum((-2, -1)))
    dof, dof_in_bins = test.compare_odds_ratios(within)[1], test.compare_classes_given_inputs(within)[1]

    def rejected(expected: np.ndarray, dof: np.ndarray, focused: test.Focused | None = None) -> np.ndarray:
        possible = expected > 0
        squares = np.divide((within - expected) ** 2, expected, out=np.zeros_like(within), where=possible)
        result = (np.where(dof > 0, squares.sum((-3, -2, -1)), 0.0), dof)
        return SizedTest(result, size, focused).rejected(within.shape[1])

    def rejected_rule(expected: np.ndarray) -> np.ndarray:
        contrasts = rejected(expected, dof, test.focus_on_odds_ratios(within, expected, layout.numeric))
        return np.where(by_contrasts, contrasts, rejected(expected, dof))

    equal = test.fit_margins(within)
    by_contrasts = ~rejected(equal, dof).any(-1, keepdims=True)  # of pairs whose whole tables do not differ
    differ = rejected_rule(equal)
    rules: np.ndarray = np.any(differ, axis=-1) & ~np.any(compared_classes & ~predicted_classes, axis=(-1, -2))
    labels = np.ones(len(pairs), bool)
    for predicted_rows in (by_first, by_second):
        start = np.maximum(predicted_rows, _MIN_PREDICTED)
        rules &= ~(differ & rejected_rule(test.fit_margins(within, start))).any(-1)
        labels &= ~rejected(test.fit_margins(within, start, margin_axes=(-1, -3)), dof_in_bins).any(-1)
    return rules, rules & labels


def _comparable(summaries: Summaries, layout: Layout, predicted: np.ndarray, pairs: np.ndarray) -> list[np.ndarray]:
    """Return reported counts, and predictions of either client's models: (pairs, features, 2, cells, ...) each."""
    counts = in_classes_of_pairs(summaries, pairs)
    models = [np.stack([predicted[pairs[:, client], pairs[:, model]] for client in (0, 1)], 1) for model in (0, 1)]
    columns = counts.shape[-1]
    table = np.moveaxis(in_cells_of_pairs(np.concatenate([counts, *models], -1), summaries, pairs), 1, 2)
    merged = merge_cells(table, layout, counted=slice(columns))
    return [merged[..., :columns], *np.split(merged[..., columns:], 2, -1)]
