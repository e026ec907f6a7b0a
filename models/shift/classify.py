"""From what tests found to the name of a shift: a tree that knows no numbers, only what was rejected.

How strong shifts are on the scales of the printed rule, beside a verdict that does not rest on them.

Whether a change of P(Y | one feature) is one of P(Y | X), or follows from the inputs: what clients' models foresee.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from models.shift import chi_square as test
from models.shift.client_summaries.client_summary import Layout, Summaries, mixture
from models.shift.fomichev_distances import Readings, distance_in_classes, of_summaries
from models.shift.fomichev_verdict import GRADES, OverFeatures, judged, judged_all
from models.shift.nested_tests import ALPHA, LEAST_EFFECT, Evidence, harmonic, kept_classes
from models.shift.pairwise_tables import all_pairs, comparable
from models.shift.wasserstein import feature_distances

FEWEST = 20
"""Rows of a client below which nothing is said."""

BROKEN = 0.2
"""Of lossy features: the share of what parts classes that another pairing of classes explains better."""


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Of pairs, (pairs,) each: types (pairs, 3) bool in the order of TYPES, none of them is no shift."""

    types: np.ndarray
    undetermined: np.ndarray  # too few rows, or too few of any class, to say anything
    transform: np.ndarray  # a gain and an offset of the inputs undo it
    margins_only: np.ndarray  # no class is told by both: only P(X) and P(Y) were compared


class SecondLook(Protocol):
    """What is looked at where odds ratios differ; all are of pairs, (pairs,), and asked for those places only."""

    def transforms(self, places: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Whether a gain and an offset of the inputs explain the features that differ, (places, features) bool."""
        ...

    def broken(self, places: np.ndarray) -> np.ndarray | None:
        """The share of what parts classes that another pairing explains, (places,); None where features lose nothing."""
        ...


def classify_pairs(found: Evidence, rows: np.ndarray, look: SecondLook, numbers: bool = False) -> Verdicts:
    """rows: (pairs, 2); numbers: classes are groups of targets.

    Targets that all move by an amount leave odds ratios as they are, and P(X): what changed is P(Y | X), and no other.
    """
    undetermined: np.ndarray = np.any(rows < FEWEST, axis=-1)
    undetermined |= (
        ~found.tested & ~found.labels & ~found.bins.any(-1)
    )  # little was compared, and there nothing was seen
    concept = found.interaction.any(-1)
    none = ~found.labels & ~found.bins_in_classes.any(-1) & (found.tested | ~found.bins.any(-1))
    label = found.labels & ~found.bins_in_classes.any(-1)
    feature = (found.bins & ~found.classes_in_bins).any(-1) & ~concept & found.tested
    feature &= (
        found.covered | ~found.labels
    )  # what moved the share of a class that one lacks cannot be seen in P(Y | X)
    both, label_fits = label & feature, found.misfit_label <= found.misfit_feature
    label, feature = label & (~both | label_fits), feature & (~both | ~label_fits)
    simple = none | label | feature
    mixed, moved = ~simple & ~concept, found.at_priors.any(-1)
    last = ~simple & concept
    shifted = mixed & ~found.bins.any(-1) & found.classes_in_bins.any(-1) & numbers
    types = np.stack(
        [feature | (mixed & ~shifted) | (last & moved), label | (~simple & found.labels), last | shifted], -1
    )
    transform = np.zeros(len(types), bool)
    places = np.flatnonzero(last & moved & ~undetermined)
    if len(places):
        transform[places] = look.transforms(places, found.interaction[places])
        types[places, 2] &= ~transform[places]
        share = look.broken(places)
        if share is not None:
            types[places, 2] &= share > BROKEN
    types[none | undetermined] = False
    return Verdicts(types, undetermined, transform & ~none, ~found.tested & ~undetermined)


def among(named: Verdicts, differ: np.ndarray) -> Verdicts:
    """Where many pairs were looked at together, and only these are said to differ at all: (pairs,) bool."""
    return replace(named, types=named.types & differ[:, None], transform=named.transform & differ)


__all__ = ["GRADES", "EffectSizes", "effect_sizes"]


@dataclass(frozen=True, eq=False)
class EffectSizes:
    """Of pairs in order, NaN where unknown: distances, (pairs, 3), D_X, D_Y and D_{Y|X} of the worst feature.

    grades: (pairs, 3), a place in GRADES or -1; types: (pairs, 3) bool, what the printed rule says; in_classes: (pairs,)
    D_{X|Y} of the worst feature, and wasserstein: (pairs,) the largest 2-Wasserstein distance of a feature's normals, in
    deviations of all clients' rows; both are not in the paper.
    """

    distances: np.ndarray
    grades: np.ndarray
    types: np.ndarray
    in_classes: np.ndarray
    wasserstein: np.ndarray


def effect_sizes(told: Summaries, layout: Layout, readings: Readings, of: np.ndarray | None = None) -> EffectSizes:
    """Of all pairs, or of these, (pairs, 2) places.

    What clients tell has one range of a feature for all, so that the grid of a pair and of all clients are one.
    """
    known = of_summaries(told, layout)
    found = judged_all(known, readings) if of is None else judged(known, of, readings)
    pairs = np.stack(all_pairs(len(told.rows)), 1) if of is None else of
    apart = (
        distance_in_classes(told.counts[..., :-1], pairs) if told.counts.shape[2] else np.full((len(pairs), 1), np.nan)
    )
    distances = np.stack([_over(found.features, readings), found.labels, _over(found.concepts, readings)], 1)
    return EffectSizes(distances, found.grades, found.types, _largest(apart), _largest(_normals_apart(told, pairs)))


def _over(distance: OverFeatures, readings: Readings) -> np.ndarray:
    return distance.largest if readings.aggregate == "max" else distance.mean


def _largest(by_feature: np.ndarray) -> np.ndarray:
    """Over features, NaN where it is known of none: (pairs,)."""
    known = ~np.isnan(by_feature)
    most = np.where(known, by_feature, -np.inf).max(-1, initial=-np.inf)
    return np.where(known.any(-1), most, np.nan)


def _normals_apart(told: Summaries, pairs: np.ndarray) -> np.ndarray:
    """(pairs, features), in deviations of all clients' rows together."""
    own = mixture(told.moments)
    unit = mixture(np.moveaxis(own, 0, -2))[..., 2]
    first, second = pairs.T
    apart = feature_distances(own[first, :, 1], own[first, :, 2], own[second, :, 1], own[second, :, 2])
    return np.divide(apart, unit, out=np.zeros_like(apart), where=unit > 0)


_AT_ONCE = 64  # pairs
_LEAST = 0.5  # rows that are foreseen in a cell: none would forbid those that are there


class CovariateCheck(NamedTuple):
    """Of pairs, (pairs,) bool: both clients' models foresee how odds ratios differ; and how labels do."""

    rules: np.ndarray
    labels: np.ndarray

    def left(self, types: np.ndarray) -> np.ndarray:
        """Those of the types of these pairs, (pairs, 3) bool in the order of TYPES, that nothing explains."""
        return types & ~np.stack([np.zeros_like(self.rules), self.labels, self.rules], -1)


def check_covariates(
    told: Summaries, layout: Layout, foreseen: np.ndarray, first: np.ndarray, second: np.ndarray
) -> CovariateCheck:
    """Of the pairs of places first[i] and second[i], whose odds ratios differ in some feature.

    foreseen: (clients, models, features, cells, classes) rows that each client's models foresee of each client's rows, both
    in the order of what is told; zeros where a model says nothing. The tests are those of equal odds ratios, and of equal
    P(Y | X), but what they hold the counts against is what the models foresee, with the same margins. A pair is explained
    where no feature whose odds ratios differ is off what either model foresees, if both foresee every class that is
    compared.
    """
    rules, labels = np.zeros(len(first), bool), np.zeros(len(first), bool)
    for start in range(0, len(first), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        rules[part], labels[part] = _of(told, layout, foreseen, np.stack([first[part], second[part]], 1))
    return CovariateCheck(rules, labels)


def _of(told: Summaries, layout: Layout, foreseen: np.ndarray, both: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    counts, by_first, by_second = _comparable(told, layout, foreseen, both)
    kept = kept_classes(counts)
    known = ((by_first.sum(-2) > 0) & (by_second.sum(-2) > 0)).all(2)
    within = counts[..., :-1] * kept[:, :, None, None]
    size = harmonic(within.sum((-2, -1)))
    free, free_inside = test.homogeneous(within)[1], test.of_classes_in_bins(within)[1]

    def apart(expected: np.ndarray, free: np.ndarray) -> np.ndarray:
        there = expected > 0
        squares = np.divide((within - expected) ** 2, expected, out=np.zeros_like(within), where=there)
        tested = (np.where(free > 0, squares.sum((-3, -2, -1)), 0.0), free)
        return (test.chance(tested) * within.shape[1] < ALPHA) & (test.effect(tested, size) >= LEAST_EFFECT)

    differ = apart(test.fitted(within), free)
    rules: np.ndarray = np.any(differ, axis=-1) & ~np.any(kept & ~known, axis=(-1, -2))
    labels = np.ones(len(both), bool)
    for foretold in (by_first, by_second):
        start = np.maximum(foretold, _LEAST)
        rules &= ~(differ & apart(test.fitted(within, start), free)).any(-1)
        labels &= ~apart(test.fitted(within, start, summed=(-1, -3)), free_inside).any(-1)
    return rules, rules & labels


def _comparable(told: Summaries, layout: Layout, foreseen: np.ndarray, both: np.ndarray) -> list[np.ndarray]:
    """What is told and what the models of the first and of the second foresee, each (pairs, features, 2, cells, ...)."""
    counts = told.counts[both]
    models = [np.stack([foreseen[both[:, at], both[:, of]] for at in (0, 1)], 1) for of in (0, 1)]
    columns = counts.shape[-1]
    table = np.moveaxis(np.concatenate([counts, *models], -1), 1, 2)
    joined = comparable(table, layout, deciding=slice(columns))
    return [joined[..., :columns], *np.split(joined[..., columns:], 2, -1)]
