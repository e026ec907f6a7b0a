"""What clients sent of a feature's values in every class, as moments, and what follows from it; many features at once.

Moments are (..., classes, 5): of every class the rows, mean, standard deviation (its divisor is rows − 1), skewness and
kurtosis (their divisor is rows; a normal's kurtosis is 3). Those of a pair are (..., 2, classes, 5), of client A and of B.

Wald tests of whether two clients differ in a feature, by its moments in every class; many pairs and features at once.

The tests take moments of pairs, (..., 2, classes, 5), as `class_moments.standard` answers them, and answer the statistic and
its degrees of freedom, (...); a hypothesis that cannot be tested has 0 of both. A class is compared where both have it.

The evidence of `guarded` where counts may not be sent: its hypotheses tested by moments, which say less of P(Y | X).
"""

import numpy as np

from models.shift import chi_square
from models.shift.chi_square import Tested
from models.shift.client_summaries.client_summary import mixture
from models.shift.nested_tests import (
    Evidence,
    SizedTest,
    all_known,
    covered,
    harmonic,
    noise_of_labels,
    only,
    priors,
    tested_shift,
)
from models.shift.pairwise_tables import Pairs

ROWS, MEAN, SD, SKEWNESS, KURTOSIS = range(5)

_LEAST_SD = 1e-3  # of the pair's: values that differ less are one value
_CONSTANT = 1e-9  # of its mean: a feature with less spread is one value and rounding


def standard(moments: np.ndarray) -> np.ndarray:
    """In units in which all rows of both clients have mean 0 and standard deviation 1; classes with NaN have 0 rows."""
    told = _told(moments)
    both = overall(told.reshape(*told.shape[:-3], -1, 5))[..., None, None, :]
    centre, unit = both[..., MEAN], both[..., SD]
    unit = np.where(unit > _CONSTANT * np.abs(centre), unit, np.maximum(np.abs(centre), 1.0))
    there = told[..., ROWS] > 0
    told[..., MEAN] = np.where(there, (told[..., MEAN] - centre) / unit, 0.0)
    told[..., SD] /= unit
    return told


def overall(moments: np.ndarray) -> np.ndarray:
    """Moments of all classes together, (..., 5), from those of every class, (..., classes, 5); zeros without two rows."""
    told = _told(moments)
    whole = np.nan_to_num(mixture(np.where(told[..., :1] > 0, told, np.nan)))
    whole[..., ROWS] = told[..., ROWS].sum(-1)
    return whole


def with_spread_in_classes(moments: np.ndarray) -> np.ndarray:
    """The same in every class; moments: (..., 2, classes, 5)."""
    return np.moveaxis(with_spread(np.moveaxis(moments, -3, -2)), -2, -3)


def with_spread(moments: np.ndarray) -> np.ndarray:
    """Where the values of one client are one, with the other's spread and a normal's shape; moments: (..., 2, 5).

    The logarithm of no spread is infinitely far from any other, though all that differs may be the value of one row. The
    other's skewness would say that the mean cannot differ where the spread does not.
    """
    flat = moments[..., SD] <= _LEAST_SD
    changed = moments.copy()
    changed[..., SD] = np.maximum(np.where(flat, moments[..., ::-1, SD], moments[..., SD]), _LEAST_SD)
    changed[..., SKEWNESS] = np.where(flat, 0.0, moments[..., SKEWNESS])
    changed[..., KURTOSIS] = np.where(flat, 3.0, moments[..., KURTOSIS])
    return changed


def at_prior(moments: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of both clients, (..., 2), if they had these classes; 0 and 1 without a class."""
    weight = prior[..., None, :]
    mean = (weight * moments[..., MEAN]).sum(-1)
    variance = (weight * (moments[..., SD] ** 2 + (moments[..., MEAN] - mean[..., None]) ** 2)).sum(-1)
    return mean, np.where(variance > 0, variance, 1.0)


def scaled_at_prior(moments: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """With every client in units of its own: its mean is 0 and its standard deviation 1 if it had these classes."""
    scaled = with_spread_in_classes(moments)
    mean, variance = at_prior(scaled, prior)
    scaled[..., MEAN] = (scaled[..., MEAN] - mean[..., None]) / np.sqrt(variance)[..., None]
    scaled[..., SD] /= np.sqrt(variance)[..., None]
    return scaled


def _told(moments: np.ndarray) -> np.ndarray:
    """Zeros for a class whose rows, mean or standard deviation are not there; a normal's shape for one without shape."""
    there = np.isfinite(moments[..., :SKEWNESS]).all(-1, keepdims=True)
    shaped = np.isfinite(moments[..., SKEWNESS:]).all(-1, keepdims=True)
    shape = np.where(shaped, moments[..., SKEWNESS:], [0.0, 3.0])
    return np.where(there, np.concatenate([moments[..., :SKEWNESS], shape], -1), 0.0)


_LEAST_DETERMINANT = 1e-3  # of the product of two variances
_LEAST_KURTOSIS = 1.2
_RIDGE = 1e-12  # added to a diagonal of ones


def mean_and_spread(moments: np.ndarray) -> np.ndarray:
    """The statistic, of 2 degrees of freedom, of equal mean and equal log standard deviation; moments: (..., 2, 5).

    It holds whatever the distribution, as both vary by the skewness and kurtosis that were sent.
    """
    estimate, covariance = _law(with_spread(moments))
    return _wald(estimate[..., 0, :] - estimate[..., 1, :], covariance.sum(-3))


def of_values(moments: np.ndarray) -> Tested:
    """P(X) is equal, as far as its mean and spread say."""
    whole = overall(moments)
    there = (whole[..., ROWS] > 1).all(-1)
    return np.where(there, mean_and_spread(whole), 0.0), np.where(there, 2, 0)


def of_values_in_classes(moments: np.ndarray) -> Tested:
    """P(X | Y) is equal, as far as means and spreads say: the sum over classes."""
    there = _there(moments)
    statistic = mean_and_spread(np.moveaxis(moments, -3, -2))
    return np.where(there, statistic, 0.0).sum(-1), 2 * there.sum(-1)


def of_classes_at_values(moments: np.ndarray) -> Tested:
    """P(Y | X) is equal, as far as the quadratic logits of normal classes say."""
    logits, covariance = _logits(moments)
    return _alike(logits[..., 0, :, :] - logits[..., 1, :, :], covariance.sum(-4), _there(moments))


def homogeneous(moments: np.ndarray) -> Tested:
    """X and Y depend on each other alike: the logits differ by a number at most, which a prior explains."""
    logits, covariance = _logits(moments)
    apart = logits[..., 0, :, 1:] - logits[..., 1, :, 1:]
    return _alike(apart, covariance[..., 1:, 1:].sum(-4), _there(moments))


def of_values_at_prior(moments: np.ndarray, prior: np.ndarray) -> Tested:
    """P(X) would be equal, as far as its mean and spread say, if both clients had these classes.

    prior: (..., classes), 0 for a class that one of them lacks, else of sum 1.
    """
    there = prior.sum(-1) > 0
    moments = with_spread_in_classes(moments)
    mean, variance = at_prior(moments, prior)
    weight = np.broadcast_to(prior[..., None, :], moments.shape[:-1])
    per_mean = 2 * weight * (moments[..., MEAN] - mean[..., None]) / variance[..., None]
    per_log = 2 * weight * moments[..., SD] ** 2 / variance[..., None]
    slopes = _matrix([[weight, np.zeros_like(weight)], [per_mean, per_log]])
    covariance = _carried(slopes, _law(moments)[1]).sum((-4, -3))
    estimate = np.stack([mean, np.log(variance)], -1)
    covariance = np.where(there[..., None, None], covariance, np.eye(2))
    statistic = _wald(estimate[..., 0, :] - estimate[..., 1, :], covariance)
    return np.where(there, statistic, 0.0), np.where(there, 2, 0)


def _there(moments: np.ndarray) -> np.ndarray:
    return np.all(moments[..., ROWS] > 0, axis=-2)


def _law(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and log standard deviation, (..., 2), and the covariance of these estimates, (..., 2, 2)."""
    rows, sd = np.maximum(moments[..., ROWS], 2), moments[..., SD]
    of_log = (np.maximum(moments[..., KURTOSIS], _LEAST_KURTOSIS) - 1) / (4 * (rows - 1))
    of_both = moments[..., SKEWNESS] * sd / (2 * rows)
    covariance = _invertible(_matrix([[sd**2 / rows, of_both], [of_both, of_log]]))
    return np.stack([moments[..., MEAN], np.log(sd)], -1), covariance


def _invertible(covariance: np.ndarray) -> np.ndarray:
    """With the off-diagonal made so small that the determinant is at least that share of the diagonal's product."""
    most = np.sqrt((1 - _LEAST_DETERMINANT) * covariance[..., 0, 0] * covariance[..., 1, 1])
    of_both = np.clip(covariance[..., 0, 1], -most, most)
    return _matrix([[covariance[..., 0, 0], of_both], [of_both, covariance[..., 1, 1]]])


def _wald(apart: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """The statistic of (..., 2) being 0."""
    bounded = _invertible(covariance)
    first, both, second = bounded[..., 0, 0], bounded[..., 0, 1], bounded[..., 1, 1]
    squares = second * apart[..., 0] ** 2 - 2 * both * apart[..., 0] * apart[..., 1] + first * apart[..., 1] ** 2
    return squares / (first * second - both**2)


def _logits(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log P(class) N(x; mean, sd²), up to a number, as coefficients of 1, x, x², (..., 3), and their covariance."""
    moments = with_spread_in_classes(moments)
    rows, mean = np.maximum(moments[..., ROWS], 2), moments[..., MEAN]
    estimate, covariance = _law(moments)
    log, over = estimate[..., 1], np.exp(-2 * estimate[..., 1])
    none = np.zeros_like(mean)
    slopes = _matrix([[-mean * over, mean**2 * over - 1], [over, -2 * mean * over], [none, over]])
    coefficients = [np.log(rows) - log - mean**2 * over / 2, mean * over, -over / 2]
    carried = _carried(slopes, covariance)
    carried[..., 0, 0] += 1 / rows
    return np.stack(coefficients, -1), carried


def _alike(apart: np.ndarray, covariance: np.ndarray, there: np.ndarray) -> Tested:
    """Whether all classes differ by the same vector; apart: (..., classes, k), covariance: (..., classes, k, k).

    The least over that vector of the sum of Wald statistics: it equals the Wald statistic of all contrasts to one class.
    """
    precision = _inverse(covariance) * there[..., None, None]
    total = precision.sum(-3)
    total = np.where(np.any(there, axis=-1)[..., None, None], total, np.eye(total.shape[-1]))
    common = _inverse(total) @ (precision @ apart[..., None]).sum(-3)
    left = apart[..., None] - common[..., None, :, :]
    statistic = (np.swapaxes(left, -1, -2) @ precision @ left)[..., 0, 0].sum(-1)
    free = apart.shape[-1] * np.maximum(there.sum(-1) - 1, 0)
    return np.where(free > 0, statistic, 0.0), free


def _inverse(positive: np.ndarray) -> np.ndarray:
    """By way of a diagonal of ones, as coefficients of 1, x and x² are of different size; never singular."""
    unit = np.sqrt(np.diagonal(positive, axis1=-2, axis2=-1))
    scale = unit[..., :, None] * unit[..., None, :]
    return np.linalg.inv(positive / scale + _RIDGE * np.eye(positive.shape[-1])) / scale


def _carried(slopes: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    return slopes @ covariance @ np.swapaxes(slopes, -1, -2)


def _matrix(rows: list[list[np.ndarray]]) -> np.ndarray:
    return np.stack([np.stack(row, -1) for row in rows], -2)


LEAST_ROWS = 100
"""Of a class on both sides for it to be compared within, or of all rows where no class has so many: with fewer, skewness
and kurtosis are too rough for a Wald test."""


def moment_evidence(pairs: Pairs) -> Evidence:
    """Of moments, `class_moments` says which; the column behind the classes, of several together, counts for P(X) only."""
    told = standard(pairs.moments)
    kept: np.ndarray = np.all(told[..., :-1, ROWS] >= LEAST_ROWS, axis=-2)
    within = np.where(kept[..., None, :, None], told[..., :-1, :], 0.0)
    inner = harmonic(within[..., ROWS].sum(-1))
    rows = told[..., ROWS].sum(-1)
    of_all = rows.max(1, keepdims=True, initial=0)  # a feature tells of fewer where values are missing
    compared: np.ndarray = np.any(kept, axis=(1, 2))
    known = all_known(of_all, pairs, kept) & ((rows >= LEAST_ROWS).all(-1) | compared[:, None])
    mean, even = priors(pairs.labels, kept)
    tested = {
        "bins": SizedTest(only(known, of_values(told)), harmonic(rows)),
        "bins_in_classes": SizedTest(of_values_in_classes(within), inner),
        "classes_in_bins": SizedTest(of_classes_at_values(within), inner),
        "interaction": SizedTest(homogeneous(within), inner),
        "at_mean": SizedTest(of_values_at_prior(within, mean), inner),
        "at_even": SizedTest(of_values_at_prior(within, even), inner),
        "labels": SizedTest(
            chi_square.pearson(pairs.labels, noise_of_labels(pairs.noise)), harmonic(pairs.labels.sum(-1))
        ),
    }
    return tested_shift(tested, pairs.moments.shape[1], covered(pairs, kept))
