"""Tests of whether two clients differ in a feature by its means alone: Welch's, where they have few cells in common.

Two clients that merged cells may have one or two left that both count apart, most likely if the feature has moved far. If
nearly all their rows are in one, counts show no difference. Means of every class are reported without cells.

Few values of a skewed feature have a low mean and a low deviation at once, and alike clients would seem to differ. So each
client's deviation counts as at least that of both. A t of ν degrees of freedom is turned into a normal one (Wallace
1959), whose square takes the place of a chi-square.
"""

from typing import NamedTuple

import numpy as np

from models.diagnosis.chi_square import ChiSquare
from models.diagnosis.client_summaries.client_summary import divide_or_zero, mixture

_CONSTANT = 1e-9  # of the mean; a deviation below is rounding


class MeanTests(NamedTuple):
    """Tests of pairs' features by means: of P(X), P(X | Y), and P(X) at two priors."""

    inputs: ChiSquare
    in_classes: ChiSquare
    at_mean: ChiSquare
    at_even: ChiSquare


def compare_means(
    moments: np.ndarray, counted: np.ndarray, compared: np.ndarray, priors: tuple[np.ndarray, np.ndarray]
) -> MeanTests:
    """Test equal means of all rows, of each class (the sum over classes), and at both priors.

    Args:
        moments: As in `Pairs`: (..., 2, classes + 1, 5).
        counted: The columns that a client counts, (..., 2, classes + 1) bool: P(X) is of their rows.
        compared: The classes that are compared, (..., classes) bool.
        priors: Two shares of the compared classes, (..., classes) each.
    """
    of_all = mixture(np.where(counted[..., None], moments, np.nan))
    mean, error, dof = _means(of_all, -1)
    inputs = _welch(mean[..., 0] - mean[..., 1], error, dof)
    mean, error, dof = _means(np.where(compared[..., None, :, None], moments[..., :-1, :], np.nan), -2)
    difference = mean[..., 0, :] - mean[..., 1, :]
    error, dof = (np.moveaxis(part, -2, -1) for part in (error, dof))
    statistic, tested = _welch(difference, error, dof)

    def at(prior: np.ndarray) -> ChiSquare:
        weighted = prior[..., None] ** 2 * error
        together = (*weighted.shape[:-2], -1)
        return _welch((prior * difference).sum(-1), weighted.reshape(together), dof.reshape(together))

    return MeanTests(inputs, (statistic.sum(-1), tested.sum(-1)), at(priors[0]), at(priors[1]))


def _means(moments: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, the variances of these, and their degrees of freedom: (...), from (..., 5); 0 of what is unknown.

    axis: of the two clients, in the results.
    """
    rows, mean, deviation = np.moveaxis(moments[..., :3], -1, 0)
    known = np.isfinite(moments[..., :3]).all(-1) & (rows > 1)
    rows, mean, deviation = (np.where(known, part, 0.0) for part in (rows, mean, deviation))
    variance, dof = np.where(deviation > _CONSTANT * np.abs(mean), deviation, 0.0) ** 2, np.maximum(rows - 1, 0.0)
    both = tuple(part.sum(axis, keepdims=True) for part in (variance * dof, dof))
    return mean, divide_or_zero(np.maximum(variance, divide_or_zero(*both)), rows), dof


def _welch(difference: np.ndarray, error: np.ndarray, dof: np.ndarray) -> ChiSquare:
    """Test a difference of means, (...), by the variances of its parts and their degrees of freedom: (..., parts)."""
    variance = error.sum(-1)
    tested = variance > 0
    of_all = divide_or_zero(variance**2, divide_or_zero(error**2, dof).sum(-1))
    square = divide_or_zero(difference**2, variance)
    normal = ((8 * of_all + 1) / (8 * of_all + 3)) ** 2 * of_all * np.log1p(divide_or_zero(square, of_all))
    return np.where(tested, normal, 0.0), tested.astype(np.int64)
