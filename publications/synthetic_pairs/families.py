"""Families of pairs whose shift is known, by name: of each the rows of its table, and how one pair of a row is drawn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from publications.synthetic_pairs.adversarial_pairs import TRAPS
from publications.synthetic_pairs.fixed_pairs import (
    FIVE_BOUNDS,
    FIVE_FEATURES,
    ONE_FEATURE,
    SIX_CATEGORIES,
    SIX_FEATURES,
    SixFeatures,
)
from publications.synthetic_pairs.generators import KnownPair, Size, drawn
from publications.synthetic_pairs.random_pairs import random_pair


@dataclass(frozen=True)
class Asked:
    """A pair's row of its table; rows: of either client, or of a random pair the fewest and the most of both.

    effect: φ of what shifts, of a random pair.
    """

    row: str
    rows: Size
    effect: float = 0.0


@dataclass(frozen=True)
class Family:
    """The types of a row's pairs, by its name, and a pair number `number` of the draw with this seed."""

    truths: Mapping[str, frozenset[str]]
    draw: Callable[[Asked, int, int], KnownPair]


def _trap(asked: Asked, seed: int, number: int) -> KnownPair:
    """Seed 1 has the very draws of the published table."""
    trap, rng = TRAPS[asked.row], np.random.default_rng(1000 * seed + number)
    clients = drawn(trap.first, trap.second, rng, asked.rows, trap.noise)
    return KnownPair(clients, 2, np.zeros(clients[0][0].shape[1], np.int64), trap.truth)


def _one_feature(asked: Asked, seed: int, number: int) -> KnownPair:
    rng, kinds = _stream(ONE_FEATURE, asked, seed, number), ONE_FEATURE[asked.row]
    return KnownPair(kinds.draw(rng, asked.rows), 2, np.zeros(1, np.int64), kinds.truth)


def _five_features(asked: Asked, seed: int, number: int) -> KnownPair:
    rng, kinds = _stream(FIVE_FEATURES, asked, seed, number), FIVE_FEATURES[asked.row]
    return KnownPair(kinds.draw(rng, asked.rows), 2, np.zeros(5, np.int64), kinds.truth, bounds=FIVE_BOUNDS)


def _six_features(asked: Asked, seed: int, number: int) -> KnownPair:
    rng, (truth, second) = _stream(SIX_FEATURES, asked, seed, number), SIX_FEATURES[asked.row]
    return KnownPair((SixFeatures()(rng, asked.rows[0]), second(rng, asked.rows[1])), 3, SIX_CATEGORIES, truth)


def _random(asked: Asked, seed: int, number: int) -> KnownPair:
    rng = _stream(RANDOM, asked, seed, number)
    return random_pair(rng, RANDOM[asked.row], asked.effect, asked.rows)


def _stream(table: Mapping[str, object], asked: Asked, seed: int, number: int) -> np.random.Generator:
    """A pair's own, of which no other pair has a part."""
    row = list(table).index(asked.row)
    return np.random.default_rng([seed, *asked.rows, row, round(1000 * asked.effect), number])


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
}
