"""The verdict as Fomichev, Kholod and Kocheshkov print it: a moderate or larger distance is a shift of its type.

The method uses no sample size and does not compare P(X | Y). Distances are in models.shift.fomichev_distances.
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
