"""The verdict as Fomichev, Kholod and Kocheshkov print it: a distance that is moderate or worse is a shift of its type.

The method knows no sample size and compares no P(X | Y). Distances are in models.shift.fomichev_distances.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import pdist

from models.shift.fomichev_distances import (
    Readings,
    Statistics,
    concept_distance,
    feature_distance,
    federation_grid,
    known_classes,
    label_distance,
    posteriors,
)
from models.shift.nested_tests import TYPES
from models.shift.pairwise_tables import all_pairs

GRADES = ("negligible", "moderate", "significant", "critical")


@dataclass(frozen=True)
class OverFeatures:
    """A distance of pairs, each (pairs,), over those features of which it is known; NaN and feature −1 of none."""

    largest: np.ndarray
    feature: np.ndarray
    mean: np.ndarray


@dataclass(frozen=True)
class Judged:
    """What is said of pairs; a distance that is unknown has grade −1 and is no shift."""

    features: OverFeatures  # D_X
    labels: np.ndarray  # (pairs,) D_Y
    concepts: OverFeatures  # D_{Y|X}
    grades: np.ndarray  # (pairs, 3): a place in GRADES, in the order of TYPES
    types: np.ndarray  # (pairs, 3) bool, in the order of TYPES; none of them is no shift


def judged(told: Statistics, pairs: np.ndarray, readings: Readings = Readings()) -> Judged:
    """Of pairs of clients, (pairs, 2), with memory for one feature at a time."""
    return _judged(told, pairs, readings, lambda of_feature: concept_distance(of_feature, pairs, readings)[:, 0])


def judged_all(told: Statistics, readings: Readings = Readings(grid="federation")) -> Judged:
    """Of all pairs, in the order of `all_pairs`: every client's posterior once where they have one grid."""
    pairs = np.stack(all_pairs(len(told.rows)), -1)
    if readings.grid == "pair":
        return judged(told, pairs, readings)
    return _judged(told, pairs, readings, lambda of_feature: _all_concept_distances(of_feature, pairs, readings))


def graded(distance: np.ndarray, lower_bounds: tuple[float, float, float]) -> np.ndarray:
    """A place in GRADES; a bound belongs to the grade above it. Of an unknown distance −1."""
    return np.where(np.isnan(distance), -1, np.searchsorted(lower_bounds, distance, side="right"))


def _judged(
    told: Statistics, pairs: np.ndarray, readings: Readings, concept: Callable[[Statistics], np.ndarray]
) -> Judged:
    features, concepts = _Running(len(pairs)), _Running(len(pairs))
    for place in range(told.mean.shape[1]):
        of_feature = told.of(slice(place, place + 1))
        features.add(feature_distance(of_feature, pairs, readings)[:, 0])
        concepts.add(concept(of_feature))
    by_type = {
        "feature": (_aggregate(features.over(), readings), readings.feature_grades),
        "label": (label_distance(told, pairs), readings.label_grades),
        "concept": (_aggregate(concepts.over(), readings), readings.concept_grades),
    }
    grades = np.stack([graded(*by_type[name]) for name in TYPES], -1)
    return Judged(features.over(), by_type["label"][0], concepts.over(), grades, grades >= 1)


def _aggregate(over: OverFeatures, readings: Readings) -> np.ndarray:
    return over.largest if readings.aggregate == "max" else over.mean


def _all_concept_distances(of_feature: Statistics, pairs: np.ndarray, readings: Readings) -> np.ndarray:
    grid = federation_grid(of_feature, readings.points)
    flat = posteriors(of_feature, grid, readings).reshape(len(of_feature.rows), -1)
    known = np.asarray(known_classes(of_feature, readings)[:, 0].any(-1))
    apart = pdist(flat, "cityblock") / readings.points
    return np.where(known[pairs[:, 0]] & known[pairs[:, 1]], apart, np.nan)


class _Running:
    """The largest, its place and the mean of distances that come feature by feature."""

    def __init__(self, pairs: int) -> None:
        self._largest, self._sum = np.full(pairs, -np.inf), np.zeros(pairs)
        self._feature, self._known = np.full(pairs, -1), np.zeros(pairs, np.int64)
        self._features = 0

    def add(self, distance: np.ndarray) -> None:
        """(pairs,) of the next feature; NaN is left out."""
        larger = distance > self._largest  # false of NaN
        self._largest[larger], self._feature[larger] = distance[larger], self._features
        known = ~np.isnan(distance)
        self._sum[known] += distance[known]
        self._known += known
        self._features += 1

    def over(self) -> OverFeatures:
        there = self._known > 0
        mean = np.divide(self._sum, self._known, out=np.full(self._sum.shape, np.nan), where=there)
        return OverFeatures(np.where(there, self._largest, np.nan), self._feature, mean)
