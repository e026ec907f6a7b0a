"""How strong shifts are on the scales of the printed rule, beside a verdict that does not rest on them."""

from dataclasses import dataclass

import numpy as np

from models.shift.client_summaries.client_summary import Layout, Summaries, mixture
from models.shift.fomichev.distances import Readings, distance_in_classes
from models.shift.fomichev.paper_statistics import of_summaries
from models.shift.fomichev.paper_verdict import GRADES, OverFeatures, judged, judged_all
from models.shift.optimal_transport.wasserstein import feature_distances
from models.shift.pairwise_tables import all_pairs

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
