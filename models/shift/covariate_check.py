"""Whether a change of P(Y | one feature) is one of P(Y | X), or follows from the inputs: what clients' models foresee."""

from typing import NamedTuple

import numpy as np

from models.shift import chi_square as test
from models.shift.client_summaries.client_summary import Layout, Summaries
from models.shift.nested_tests import ALPHA, LEAST_EFFECT, harmonic, kept_classes
from models.shift.pairwise_tables import comparable

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
