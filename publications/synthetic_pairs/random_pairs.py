"""Draw pairs of random laws for the third truth table: any kinds of features, and shifts of a given population effect.

The first law is random. Up to three steps make the second law from it, in this order:

- feature: one to three features are shifted until P(X_r) differs by φ; P(Y | X) stays the same function.
- concept: one or two features on which the class depends get other weights, until the odds ratios of class and feature
  differ by φ for the feature with the least difference. P(X) stays, and intercepts are set such that P(Y) stays.
- label: rows are kept with a probability by class, so that P(X | Y) stays, until P(Y) differs by φ from that of the first
  law and from that before this step.

Each step has the effect φ if it is taken alone. A law in which a step cannot reach φ is discarded, and another is drawn.

φ measures a shift between two laws without sampling: φ² is the limit of X² over n_A n_B / (n_A + n_B) for equally many rows,
2 Σ (p − q)² / (p + q) of two distributions. It is twice the w of Cohen (1988), so that 0.3 is between a small and a medium
effect. Numbers are in ten bins with equally many rows of both laws together. Both laws are integrated over the same latent
rows, and classes are counted by their probabilities.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.optimize import brentq

from models.diagnosis.chi_square import compare_odds_ratios
from publications.synthetic_pairs.generators import KnownPair, Size
from publications.synthetic_pairs.marginals import Margin, tilted
from publications.synthetic_pairs.random_distributions import (
    CLASSES,
    FEATURES,
    KINDS,
    Effect,
    RandomLaw,
    random_effect,
    random_law,
)

BINS = 10


def of_shares(shares: np.ndarray, others: np.ndarray) -> float:
    """Return φ of two distributions, each with sum 1."""
    both = shares + others
    return float(np.sqrt(2 * np.divide((shares - others) ** 2, both, out=np.zeros_like(both), where=both > 0).sum()))


def of_values(x: np.ndarray, other: np.ndarray, categories: int) -> float:
    """Return φ of P(X) of one feature.

    Args:
        x: (rows,) of the first law.
        other: (rows,) of the second law.
        categories: K of codes from 1 on, and 0 of numbers.
    """
    bins = binned(np.concatenate([x, other]), categories)
    counts = [np.bincount(part, minlength=categories or BINS) / len(part) for part in (bins[: len(x)], bins[len(x) :])]
    return of_shares(*counts)


def of_dependence(bins: np.ndarray, chances: np.ndarray, others: np.ndarray) -> float:
    """Return φ of the odds ratios of a feature and the class, for laws with the same P(X).

    Args:
        bins: (rows,) from 0 on.
        chances: (rows, classes) P(Y | X) of the first law.
        others: (rows, classes) P(Y | X) of the second law.
    """
    inside = (bins == np.arange(bins.max() + 1)[:, None]) / len(bins)
    statistic, _ = compare_odds_ratios(np.stack([inside @ chances, inside @ others]))
    return float(np.sqrt(2 * statistic))


def binned(x: np.ndarray, categories: int) -> np.ndarray:
    """Return the bin of each row, or its category: (rows,) from 0 on."""
    if categories:
        return x.astype(np.int64) - 1
    return np.searchsorted(np.quantile(x, np.arange(1, BINS) / BINS), x, side="right")


MOST_MOVED, MOST_REWEIGHTED = 3, 2

_POOL = 5000  # latent rows over which a law is integrated
_FARTHER = (0.5, 1.0, 2.0, 4.0)  # strengths; 4 is e⁴ times as wide


class OutOfReachError(Exception):
    """No strength has the wanted effect."""


def random_pair(rng: np.random.Generator, truth: frozenset[str], effect: float, size: Size) -> KnownPair:
    """Draw a pair of clients.

    Args:
        rng: The random stream.
        truth: The true types.
        effect: φ of each step.
        size: The fewest and the most rows of a client, drawn uniformly on a log scale.
    """
    kind = str(rng.choice(KINDS))
    while True:
        first = random_law(rng, kind)
        try:
            second, shifted = shifted_law(rng, first, truth, effect)
        except OutOfReachError:
            continue
        break
    rows = np.exp(rng.uniform(np.log(size[0]), np.log(size[1] + 1), 2)).astype(int)
    clients = first(rng, int(rows[0])), second(rng, int(rows[1]))
    categories = np.array([margin.categories for margin in first.margins])
    return KnownPair(clients, len(first.intercepts), categories, truth, shifted, _about(kind, first, rows, shifted))


def shifted_law(
    rng: np.random.Generator, first: RandomLaw, truth: frozenset[str], effect: float
) -> tuple[RandomLaw, tuple[int, ...]]:
    """Draw a law that differs from the first by these types.

    Args:
        rng: The random stream.
        first: The first law.
        truth: The true types.
        effect: φ of each step.

    Returns:
        The law, and the indices of the features that carry the shift.

    Raises:
        OutOfReachError: If a step cannot reach the effect.
    """
    latent = first.latent(rng, _POOL)
    x = first.features(latent)
    shares = first.chances(x).mean(0)
    second, carriers = first, set[int]()
    if "feature" in truth:
        moved = _some(rng, list(range(len(first.margins))), MOST_MOVED)
        second, carriers = _moved(rng, first, latent, moved, effect), {*moved}
    if "concept" in truth:
        reweighted = _some(rng, sorted(first.effects), MOST_REWEIGHTED)
        effects = _reweighted(rng, first, x, reweighted, effect)
        second = replace(second, effects=effects).with_shares(second.features(latent), shares)
        carriers |= {*reweighted}
    if "label" in truth:
        second = _thinned(rng, second, shares, second.chances(second.features(latent)).mean(0), effect)
    return second, tuple(sorted(carriers))


def _moved(rng: np.random.Generator, law: RandomLaw, latent: np.ndarray, places: list[int], effect: float) -> RandomLaw:
    margins = list(law.margins)
    for at in places:
        family = law.margins[at].direction(rng)
        margins[at] = family(_reached(partial(_of_margin, law.margins[at], family, latent[:, at]), effect))
    return replace(law, margins=tuple(margins))


def _of_margin(margin: Margin, family: Callable[[float], Margin], latent: np.ndarray, strength: float) -> float:
    return of_values(margin.values(latent), family(strength).values(latent), margin.categories)


def _reweighted(
    rng: np.random.Generator, law: RandomLaw, x: np.ndarray, places: list[int], effect: float
) -> dict[int, Effect]:
    spread = 1.5 / np.sqrt(len(law.effects))
    others = {at: random_effect(rng, law.margins[at], len(law.intercepts), spread).weights for at in places}
    chances = law.chances(x)
    bins = [binned(x[:, at], law.margins[at].categories) for at in places]

    def effects(strength: float) -> dict[int, Effect]:
        old = {at: law.effects[at] for at in places}
        new = {at: replace(old[at], weights=(1 - strength) * old[at].weights + strength * others[at]) for at in places}
        return {**law.effects, **new}

    def least(strength: float) -> float:
        other = replace(law, effects=effects(strength)).with_shares(x, chances.mean(0)).chances(x)
        return min(of_dependence(of_one, chances, other) for of_one in bins)

    return effects(_reached(least, effect))


def _thinned(
    rng: np.random.Generator, law: RandomLaw, first: np.ndarray, before: np.ndarray, effect: float
) -> RandomLaw:
    """Drop rows by class; first and before are P(Y) of the first law and of this one, (classes,)."""
    pull = rng.normal(size=len(first))

    def shares(strength: float) -> np.ndarray:
        return np.array(tilted(before, strength * pull))

    strength = _reached(lambda s: min(of_shares(first, shares(s)), of_shares(before, shares(s))), effect)
    keeps = shares(strength) / before
    return replace(law, keeps=keeps / keeps.max())


def _reached(effect: Callable[[float], float], wanted: float) -> float:
    """Return the least strength with the wanted effect; OutOfReachError if none up to the largest has it."""
    for far in _FARTHER:
        if effect(far) >= wanted:
            return float(brentq(lambda strength: effect(strength) - wanted, 0.0, far, xtol=0.002))
    raise OutOfReachError


def _some(rng: np.random.Generator, places: list[int], most: int) -> list[int]:
    """Draw one to `most` of these places."""
    count = rng.integers(1, min(most, len(places)) + 1)
    return [int(at) for at in rng.choice(places, count, replace=False)]


def _about(kind: str, law: RandomLaw, rows: np.ndarray, shifted: tuple[int, ...]) -> tuple[str, ...]:
    """Return the properties by which a table may count pairs."""
    features, classes = len(law.margins), len(law.intercepts)
    properties = [kind, f"{_part(features, FEATURES)} features", f"{_part(classes, CLASSES)} classes"]
    properties.append(f"{_part(int(rows.min()), (50, 158), (159, 499), (500, 1580), (1581, 5000))} rows of the smaller")
    if shifted:
        informative = len({*shifted} & law.effects.keys())
        properties.append(f"{len(shifted)} shifted, of which {'none' if not informative else 'some'} tells the class")
    return tuple(properties)


def _part(value: int, *parts: tuple[int, int]) -> str:
    if len(parts) == 1:
        (low, high), middle = parts[0], sum(parts[0]) // 2
        parts = (low, middle), (middle + 1, high)
    low, high = next(part for part in parts if part[0] <= value <= part[1])
    return f"{low} to {high}"
