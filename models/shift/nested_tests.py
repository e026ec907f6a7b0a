"""The guarded verdict: which of feature, label and concept shift parts two clients, by nested tests on their counts.

Types are named by the factorisation that stays fixed: P(X | Y) under label shift, P(Y | X) under feature shift; where the
odds ratios of X and Y differ it is concept shift. Fomichev, Kholod and Kocheshkov name the types; the tests are ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.shift import chi_square as test
from models.shift.client_summaries.client_summary import LEAST_ROWS
from models.shift.pairwise_tables import Pairs

ALPHA, LEAST_EFFECT = 0.01, 0.1
"""Of a hypothesis over all features; φ, the effect below which a difference is none."""

HIDDEN = LEAST_EFFECT**2 / 2
"""Share of a client's rows, not told of, that makes no effect: clients of one size that differ in a share h of one's rows
have φ = √2h at most."""

TYPES = ("feature", "label", "concept")


@dataclass(frozen=True, eq=False)
class Evidence:
    """What was found of pairs, (pairs,), and of their features, (pairs, features); a name stands for what is rejected."""

    labels: np.ndarray  # P(Y)
    bins: np.ndarray  # P(X)
    bins_in_classes: np.ndarray  # P(X | Y)
    classes_in_bins: np.ndarray  # P(Y | X)
    interaction: np.ndarray  # equal odds ratios
    at_priors: np.ndarray  # P(X), also with one prior for both, of their mean and the uniform one
    misfit_label: np.ndarray  # (pairs,) how badly label shift alone fits
    misfit_feature: np.ndarray  # (pairs,) how badly feature shift alone fits
    chances: dict[str, np.ndarray]  # hypothesis to its probabilities
    effects: dict[str, np.ndarray]  # hypothesis to φ
    tested: np.ndarray  # (pairs,) whether a class is told by both, so that more than margins is compared
    covered: np.ndarray  # (pairs,) whether every class that one of them tells is told by both


def evidence(pairs: Pairs) -> Evidence:
    """Of counts, by chi-square tests. Odds ratios, which take most of the time, are looked at only of pairs that differ."""
    noise = pairs.noise
    kept = kept_classes(pairs.counts, noise)
    within = pairs.counts[..., :-1] * kept[:, :, None, None, :]
    inside = None if noise is None else noise[..., :-1] * kept[:, :, None, None, :]
    mean, even = priors(pairs.labels, kept)
    inner = _per_pair(within)
    known = all_known(pairs.counts.sum((-2, -1)), pairs, kept)
    tested = {
        "labels": SizedTest(test.pearson(pairs.labels, noise_of_labels(noise)), harmonic(pairs.labels.sum(-1))),
        "bins": SizedTest(only(known, test.of_bins(pairs.counts, noise)), _per_pair(pairs.counts)),
        "bins_in_classes": SizedTest(test.of_bins_in_classes(within, inside), inner),
        "classes_in_bins": SizedTest(test.of_classes_in_bins(within, inside), inner),
        "at_mean": SizedTest(test.of_bins_at_prior(within, mean, inside), inner),
        "at_even": SizedTest(test.of_bins_at_prior(within, even, inside), inner),
    }
    features = pairs.counts.shape[1]
    differ = tested["labels"].rejected(1) | tested["bins_in_classes"].rejected(features).any(-1)
    interaction = SizedTest(_where(differ, within, inside), inner)
    return tested_shift(tested | {"interaction": interaction}, features, covered(pairs, kept))


class SizedTest(NamedTuple):
    """A test of pairs, or of features of pairs, and n_A n_B / (n_A + n_B) of the rows that it saw."""

    tested: test.Tested
    size: np.ndarray

    def rejected(self, hypotheses: int) -> np.ndarray:
        """Whether it is improbable, one of so many, and the effect is not small."""
        return (test.chance(self.tested) * hypotheses < ALPHA) & (test.effect(*self) >= LEAST_EFFECT)


def tested_shift(tested: Mapping[str, SizedTest], features: int, covered: np.ndarray) -> Evidence:
    """What tests say, by the names of Evidence's fields, and of `at_mean` and `at_even`, P(X) at two priors."""
    rejected = {name: one.rejected(1 if name == "labels" else features) for name, one in tested.items()}
    return Evidence(
        rejected["labels"],
        rejected["bins"],
        rejected["bins_in_classes"],
        rejected["classes_in_bins"],
        rejected["interaction"],
        rejected["bins"] & rejected["at_mean"] & rejected["at_even"],
        _misfit(tested["bins_in_classes"].tested),
        _misfit(tested["classes_in_bins"].tested),
        {name: test.chance(one.tested) for name, one in tested.items()},
        {name: test.effect(*one) for name, one in tested.items()},
        np.any(tested["bins_in_classes"].tested[1] > 0, axis=-1),
        covered,
    )


def _where(differ: np.ndarray, within: np.ndarray, noise: np.ndarray | None) -> test.Tested:
    """Of odds ratios; of pairs that do not differ nothing is tested."""
    statistic, free = np.zeros(within.shape[:2]), np.zeros(within.shape[:2], np.int64)
    if differ.any():
        statistic[differ], free[differ] = test.homogeneous(within[differ], None if noise is None else noise[differ])
    return statistic, free


def covered(pairs: Pairs, kept: np.ndarray) -> np.ndarray:
    """Whether no class is compared in its share alone: (pairs,); kept: (pairs, features, classes)."""
    noise = noise_of_labels(pairs.noise)
    there = (pairs.labels >= _least(noise))[..., :-1].any(-2)
    return ~np.any(there & ~kept.any(1), axis=-1)


def all_known(told: np.ndarray, pairs: Pairs, kept: np.ndarray) -> np.ndarray:
    """Of which features P(X) may be compared: (pairs, features) bool; told: rows that each tells of, (pairs, features, 2).

    Of all where a class is kept, (pairs, features, classes). Where none is, what one does not tell of may be of the very
    class that the other tells, and alike clients would seem to differ: so both must tell of all but HIDDEN. Under noise they
    do.
    """
    if pairs.noise is not None:
        return np.ones(told.shape[:2], bool)
    compared: np.ndarray = np.any(kept, axis=(1, 2))
    return (told >= (1 - HIDDEN) * pairs.rows[:, None]).all(-1) | compared[:, None]


def only(there: np.ndarray, tested: test.Tested) -> test.Tested:
    """The test where it may be made; elsewhere nothing is tested."""
    statistic, free = tested
    return np.where(there, statistic, 0.0), np.where(there, free, 0)


def noise_of_labels(noise: np.ndarray | None) -> np.ndarray | None:
    """Of labels, which are the mean over features of what each tells of them: (pairs, 2, classes + 1)."""
    return None if noise is None else noise.sum((1, 3)) / noise.shape[1] ** 2


def harmonic(rows: np.ndarray) -> np.ndarray:
    """n_A n_B / (n_A + n_B) of (..., 2)."""
    total = rows.sum(-1)
    return np.divide(rows.prod(-1), total, out=np.zeros(total.shape), where=total > 0)


def kept_classes(counts: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
    """Which classes both have enough rows of, by feature: (pairs, features, classes) bool; both as `Pairs` has them."""
    least = _least(None if noise is None else noise.sum(-2))
    return (counts.sum(-2) >= least)[..., :-1].all(2)


def priors(labels: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of both clients' shares of kept classes, and equal shares of these: (pairs, features, classes) each."""
    told = np.maximum(labels[..., :-1], 0.0)
    total = told.sum(-1, keepdims=True)
    own = np.divide(told, total, out=np.zeros_like(told), where=total > 0)
    mean = own.mean(-2)[:, None] * kept
    whole = mean.sum(-1, keepdims=True)
    mean = np.divide(mean, whole, out=np.zeros_like(mean), where=whole > 0)
    return mean, kept / np.maximum(kept.sum(-1, keepdims=True), 1)


def _least(noise: np.ndarray | None) -> int | np.ndarray:
    """Rows of a class for it to be there, which noise of this variance does not amount to."""
    return LEAST_ROWS if noise is None else np.maximum(LEAST_ROWS, test.AUDIBLE * np.sqrt(noise))


def _per_pair(counts: np.ndarray) -> np.ndarray:
    return harmonic(counts.sum((-2, -1)))


def _misfit(tested: test.Tested) -> np.ndarray:
    """The largest of a pair's features, in standard deviations of the statistic."""
    statistic, free = tested
    return (np.where(free > 0, (statistic - free) / np.sqrt(2 * np.maximum(free, 1)), 0.0)).max(-1, initial=0.0)
