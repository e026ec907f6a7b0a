"""Define families of pairs with a known shift: the rows of a family's table, and how one pair of a row is drawn.

The traps are pairs for which the printed rule of Fomichev, Kholod and Kocheshkov mostly fails.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from publications.synthetic_pairs.clinical_pairs import CLINICAL, clinical_pair
from publications.synthetic_pairs.fixed_pairs import (
    FIVE_BOUNDS,
    FIVE_FEATURES,
    ONE_FEATURE,
    SIX_CATEGORIES,
    SIX_FEATURES,
    SixFeatures,
)
from publications.synthetic_pairs.generators import (
    Bump,
    KnownPair,
    Law,
    Logistic,
    Noise,
    Normals,
    Size,
    drawn,
    with_outlier,
)
from publications.synthetic_pairs.random_pairs import random_pair


@dataclass(frozen=True)
class TrapLaws:
    """A pair of laws for which the printed rule mostly fails: their true types, and further features of both."""

    first: Law
    second: Law
    truth: frozenset[str]
    noise: Noise | None = None


def _laws(first: Law, second: Law, truth: str, noise: Noise | None = None) -> TrapLaws:
    return TrapLaws(first, second, frozenset(truth.split("+")) - {"none"}, noise)


def _normal(features: int) -> Noise:
    return lambda rng, rows: rng.normal(size=(rows, features))


def _heavy_tailed(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.standard_t(3, (rows, 1))


def _skewed(rng: np.random.Generator, rows: int) -> np.ndarray:
    return np.exp(0.8 * rng.normal(size=(rows, 1)))


TRAPS: Mapping[str, TrapLaws] = {
    "T0": _laws(Normals(), Normals(), "none"),
    "T1": _laws(Logistic(), Logistic(mean=0.5), "feature"),
    "T2": _laws(Logistic(), Logistic(mean=1), "feature"),
    "T3": _laws(Logistic(), Logistic(mean=2), "feature"),
    "T4": _laws(Logistic(), Logistic(mean=5), "feature"),
    "T5": _laws(Logistic(), Logistic(sd=2), "feature"),
    "T6": _laws(Bump(), Bump(mean=1), "feature"),
    "T7": _laws(Normals(), Normals(0.7), "label"),
    "T7b": _laws(Normals(), Normals(0.8), "label"),
    "T7c": _laws(Normals(), Normals(0.95), "label"),
    "T8": _laws(Normals(0.1), Normals(0.9), "label"),
    "T9": _laws(Normals(), with_outlier(Normals()), "none"),
    "T10": _laws(Normals(), with_outlier(Normals(0.8)), "label"),
    "T11a": _laws(Normals(), Normals(0.8), "label", _normal(1)),
    "T11b": _laws(Normals(), Normals(0.8), "label", _normal(9)),
    "T12": _laws(Normals(), Normals(means=(1.0, -1.0)), "concept"),
    "T13": _laws(Logistic(), Logistic(slope=0.5), "concept"),
    "T14": _laws(Logistic(), Logistic(slope=0), "concept"),
    "T15": _laws(Logistic(), Logistic(intercept=-2), "concept"),
    "T16": _laws(Normals(), Normals(means=(-0.5, 0.5)), "concept"),
    "T17": _laws(Normals(), Normals(means=(0.0, 2.0)), "feature"),
    "T18": _laws(Normals(), Normals(), "none", _heavy_tailed),
    "T19": _laws(Normals(), Normals(), "none", _skewed),
}
"""Two classes. publications/pages/shift-types.yaml describes each pair, and has what was published of it."""


@dataclass(frozen=True)
class PairRequest:
    """What a pair is drawn by.

    Attributes:
        row: The row of the family's table.
        rows: The rows of each client; of a random pair the fewest and the most rows of a client.
        effect: φ of the shift of a random pair.
        clients: More than two are a federation of alike clients.
    """

    row: str
    rows: Size
    effect: float = 0.0
    clients: int = 2


@dataclass(frozen=True)
class Family:
    """The true types by row, and a function that draws a pair by request, seed and number.

    If it has `federations`, it also draws more than two clients of a row without a type.
    """

    truths: Mapping[str, frozenset[str]]
    draw: Callable[[PairRequest, int, int], KnownPair]
    federations: bool = False


def _trap(request: PairRequest, seed: int, number: int) -> KnownPair:
    """Draw a trap; seed 1 gives the draws of the published table."""
    trap, rng = TRAPS[request.row], np.random.default_rng(1000 * seed + number)
    clients = drawn(trap.first, trap.second, rng, request.rows, trap.noise)
    return KnownPair(clients, 2, np.zeros(clients[0][0].shape[1], np.int64), trap.truth)


def _one_feature(request: PairRequest, seed: int, number: int) -> KnownPair:
    rng, kinds = _stream(ONE_FEATURE, request, seed, number), ONE_FEATURE[request.row]
    return KnownPair(kinds.draw(rng, request.rows), 2, np.zeros(1, np.int64), kinds.truth)


def _five_features(request: PairRequest, seed: int, number: int) -> KnownPair:
    rng, kinds = _stream(FIVE_FEATURES, request, seed, number), FIVE_FEATURES[request.row]
    return KnownPair(kinds.draw(rng, request.rows), 2, np.zeros(5, np.int64), kinds.truth, bounds=FIVE_BOUNDS)


def _six_features(request: PairRequest, seed: int, number: int) -> KnownPair:
    rng, (truth, second) = _stream(SIX_FEATURES, request, seed, number), SIX_FEATURES[request.row]
    return KnownPair((SixFeatures()(rng, request.rows[0]), second(rng, request.rows[1])), 3, SIX_CATEGORIES, truth)


def _random(request: PairRequest, seed: int, number: int) -> KnownPair:
    rng = _stream(RANDOM, request, seed, number)
    return random_pair(rng, RANDOM[request.row], request.effect, request.rows)


def _clinical(request: PairRequest, seed: int, number: int) -> KnownPair:
    return clinical_pair(_stream(CLINICAL, request, seed, number), request.row, request.rows, number, request.clients)


def _stream(table: Mapping[str, object], request: PairRequest, seed: int, number: int) -> np.random.Generator:
    """Return a random stream that no other pair shares."""
    row = list(table).index(request.row)
    clients = [request.clients] if request.clients > 2 else []
    return np.random.default_rng([seed, *request.rows, row, round(1000 * request.effect), number, *clients])


RANDOM: Mapping[str, frozenset[str]] = {
    name: frozenset(name.split("+")) - {"none"}
    for name in ("none", "feature", "label", "concept", "feature+label", "feature+concept", "label+concept")
}

FAMILIES: Mapping[str, Family] = {
    "traps": Family({name: trap.truth for name, trap in TRAPS.items()}, _trap),
    "one_feature": Family({name: kinds.truth for name, kinds in ONE_FEATURE.items()}, _one_feature),
    "six_features": Family({name: truth for name, (truth, _) in SIX_FEATURES.items()}, _six_features),
    "random": Family(RANDOM, _random),
    "five_features": Family({name: kinds.truth for name, kinds in FIVE_FEATURES.items()}, _five_features),
    "clinical": Family({name: kind.truth for name, kind in CLINICAL.items()}, _clinical, federations=True),
}
