"""Tests of whether pairs of features are correlated alike at two clients: within classes, over all rows, across classes."""

from typing import NamedTuple

import numpy as np

from models.shift import chi_square as test
from models.shift.client_summaries.feature_pairs import Correlations
from models.shift.nested_tests import ALPHA, LEAST_EFFECT, effective_size

_ALPHA = ALPHA / 4
"""The level over all pairs of features: a quarter of the other hypotheses', since correlations show differences early."""

_LIMIT = 0.999  # of a correlation, so that Fisher's z is finite


class CorrelationEvidence(NamedTuple):
    """Results for pairs of clients and pairs of features, (clients' pairs, feature pairs) each.

    differ: whether correlations within classes differ; together: whether those of all rows differ as well; by_class:
    whether the difference depends on the class; effects: φ of the difference within classes; chance: (clients'
    pairs,) p-value over all pairs of features; compared: bool.
    """

    differ: np.ndarray
    together: np.ndarray
    by_class: np.ndarray
    effects: np.ndarray
    chance: np.ndarray
    compared: np.ndarray


def compare_correlations(
    correlations: Correlations, labels: np.ndarray, first: np.ndarray, second: np.ndarray
) -> CorrelationEvidence:
    """Compare clients first[i] and second[i] by Wald tests of Fisher's z.

    labels: (clients, classes) rows of each class, NaN if not reported.
    """
    labels = np.nan_to_num(labels)
    z, weight = _difference(correlations, slice(0, -1), labels, first, second)
    rows = np.stack([labels[first], labels[second]], 1)
    squares, classes = z**2 * weight, weight > 0
    count = classes.sum(-1)
    within = (squares.sum(-1), count)
    size = effective_size((rows[:, None] * classes[:, :, None]).sum(-1))
    total_weight = weight.sum(-1)
    mean = np.divide((z * weight).sum(-1), total_weight, out=np.zeros_like(total_weight), where=total_weight > 0)
    contrast = (np.maximum(squares.sum(-1) - mean**2 * total_weight, 0.0), np.maximum(count - 1, 0))
    all_rows = labels.sum(-1, keepdims=True)
    total_difference, overall_weight = _difference(correlations, slice(-1, None), all_rows, first, second)
    overall = ((total_difference**2 * overall_weight)[..., 0], (overall_weight[..., 0] > 0).astype(np.int64))
    hypotheses = np.maximum(correlations.values.shape[1], 1)

    def rejected(result: test.ChiSquare, hypotheses: int | np.ndarray) -> np.ndarray:
        return (test.p_value(result) * hypotheses < _ALPHA) & (test.effect_size(result, size) >= LEAST_EFFECT)

    differ = rejected(within, hypotheses)
    chance = np.minimum(test.p_value(within).min(-1, initial=1.0) * hypotheses, 1.0)
    effects = test.effect_size(within, size)
    return CorrelationEvidence(
        differ, differ & rejected(overall, 1), differ & rejected(contrast, 1), effects, chance, count > 0
    )


def _difference(
    correlations: Correlations, columns: slice, rows: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return differences of z and their inverse variances, (pairs, feature pairs, columns); 0 if not compared.

    The variance of both clients is pooled, since each is large by chance where its correlation is. It is at least that
    of independent features, which also holds for few rows of heavy tails. rows: (clients, columns).
    """
    r = np.clip(correlations.values[..., columns], -_LIMIT, _LIMIT)
    z, scaled = np.arctanh(r), correlations.variances[..., columns] / (1 - r**2) ** 2 * rows[:, None]
    own_rows, other_rows = (np.maximum(rows[clients][:, None], 4.0) for clients in (first, second))
    pooled = (scaled[first] * own_rows + scaled[second] * other_rows) / (own_rows + other_rows)
    total = np.maximum(pooled, 1.0) * (1 / (own_rows - 3) + 1 / (other_rows - 3))
    difference = z[first] - z[second]
    compared = np.isfinite(difference) & np.isfinite(total)
    return np.where(compared, difference, 0.0), np.where(compared, 1 / total, 0.0)
