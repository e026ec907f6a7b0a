"""Pairs of clients that the printed rule of Fomichev, Kholod and Kocheshkov falls for, most of them; two classes.

publications/pages/shift-types.yaml says what each is about, and what was published of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from publications.synthetic_pairs.generators import Bump, Law, Logistic, Noise, Normals, with_outlier


@dataclass(frozen=True)
class Trap:
    """A pair of laws, the types by which they truly differ, and further features of both."""

    first: Law
    second: Law
    truth: frozenset[str]
    noise: Noise | None = None


def _trap(first: Law, second: Law, truth: str, noise: Noise | None = None) -> Trap:
    return Trap(first, second, frozenset(truth.split("+")) - {"none"}, noise)


def _normal(features: int) -> Noise:
    return lambda rng, rows: rng.normal(size=(rows, features))


def _heavy_tailed(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.standard_t(3, (rows, 1))


def _skewed(rng: np.random.Generator, rows: int) -> np.ndarray:
    return np.exp(0.8 * rng.normal(size=(rows, 1)))


TRAPS: Mapping[str, Trap] = {
    "T0": _trap(Normals(), Normals(), "none"),
    "T1": _trap(Logistic(), Logistic(mean=0.5), "feature"),
    "T2": _trap(Logistic(), Logistic(mean=1), "feature"),
    "T3": _trap(Logistic(), Logistic(mean=2), "feature"),
    "T4": _trap(Logistic(), Logistic(mean=5), "feature"),
    "T5": _trap(Logistic(), Logistic(sd=2), "feature"),
    "T6": _trap(Bump(), Bump(mean=1), "feature"),
    "T7": _trap(Normals(), Normals(0.7), "label"),
    "T7b": _trap(Normals(), Normals(0.8), "label"),
    "T7c": _trap(Normals(), Normals(0.95), "label"),
    "T8": _trap(Normals(0.1), Normals(0.9), "label"),
    "T9": _trap(Normals(), with_outlier(Normals()), "none"),
    "T10": _trap(Normals(), with_outlier(Normals(0.8)), "label"),
    "T11a": _trap(Normals(), Normals(0.8), "label", _normal(1)),
    "T11b": _trap(Normals(), Normals(0.8), "label", _normal(9)),
    "T12": _trap(Normals(), Normals(means=(1.0, -1.0)), "concept"),
    "T13": _trap(Logistic(), Logistic(slope=0.5), "concept"),
    "T14": _trap(Logistic(), Logistic(slope=0), "concept"),
    "T15": _trap(Logistic(), Logistic(intercept=-2), "concept"),
    "T16": _trap(Normals(), Normals(means=(-0.5, 0.5)), "concept"),
    "T17": _trap(Normals(), Normals(means=(0.0, 2.0)), "feature"),
    "T18": _trap(Normals(), Normals(), "none", _heavy_tailed),
    "T19": _trap(Normals(), Normals(), "none", _skewed),
}
