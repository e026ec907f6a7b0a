"""Wald tests of whether two clients differ in a feature, by its moments in every class, and their evidence.

The tests serve the verdict `moments`, if counts may not be sent, and show less of P(Y | X) than counts. Many pairs and
features are tested at once.

Moments are (..., classes, 5): of every class the rows, mean, standard deviation (divisor rows − 1), skewness and
kurtosis (divisor rows; a normal's kurtosis is 3). Those of a pair are (..., 2, classes, 5), of client A and of B, as
`standardize` returns them. Tests return the statistic and its degrees of freedom, (...); both are 0 for a hypothesis
that cannot be tested. A class is compared if both clients have it.
"""

import numpy as np

from models.diagnosis import chi_square
from models.diagnosis.chi_square import ChiSquare
from models.diagnosis.client_summaries.client_summary import mixture
from models.diagnosis.guarded_tests import (
    Evidence,
    SizedTest,
    build_evidence,
    comparable_features,
    covered,
    effective_size,
    label_noise,
    mask_test,
    priors,
)
from models.diagnosis.merged_tables import Pairs

ROWS, MEAN, SD, SKEWNESS, KURTOSIS = range(5)

_MIN_SD = 1e-3  # of the pair's deviation; values with less variation count as constant
_CONSTANT = 1e-9  # of its mean; a feature with less deviation is constant up to rounding


def standardize(moments: np.ndarray) -> np.ndarray:
    """Standardize so that all rows of both clients have mean 0 and deviation 1; classes with NaN get 0 rows."""
    cleaned = _clean(moments)
    of_both = cleaned.shape[-3] * cleaned.shape[-2]  # named, since without pairs -1 is not known
    pair = combine_classes(cleaned.reshape(*cleaned.shape[:-3], of_both, 5))[..., None, None, :]
    centre, unit = pair[..., MEAN], pair[..., SD]
    unit = np.where(unit > _CONSTANT * np.abs(centre), unit, np.maximum(np.abs(centre), 1.0))
    present = cleaned[..., ROWS] > 0
    cleaned[..., MEAN] = np.where(present, (cleaned[..., MEAN] - centre) / unit, 0.0)
    cleaned[..., SD] /= unit
    return cleaned


def combine_classes(moments: np.ndarray) -> np.ndarray:
    """Combine the moments of all classes, (..., classes, 5), to (..., 5); zeros with fewer than two rows."""
    cleaned = _clean(moments)
    combined = np.nan_to_num(mixture(np.where(cleaned[..., :1] > 0, cleaned, np.nan)))
    combined[..., ROWS] = cleaned[..., ROWS].sum(-1)
    return combined


def with_spread_in_classes(moments: np.ndarray) -> np.ndarray:
    """Apply `with_spread` in every class; moments: (..., 2, classes, 5)."""
    return np.moveaxis(with_spread(np.moveaxis(moments, -3, -2)), -2, -3)


def with_spread(moments: np.ndarray) -> np.ndarray:
    """Replace a deviation of 0 by the other client's, and the shape by a normal's; moments: (..., 2, 5).

    The logarithm of 0 is infinitely far from any other, though the clients may differ by the value of one row. The
    other client's skewness would imply that the mean cannot differ if the deviation does not.
    """
    flat = moments[..., SD] <= _MIN_SD
    adjusted = moments.copy()
    adjusted[..., SD] = np.maximum(np.where(flat, moments[..., ::-1, SD], moments[..., SD]), _MIN_SD)
    adjusted[..., SKEWNESS] = np.where(flat, 0.0, moments[..., SKEWNESS])
    adjusted[..., KURTOSIS] = np.where(flat, 3.0, moments[..., KURTOSIS])
    return adjusted


def at_prior(moments: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of both clients, (..., 2), with class shares `prior`; 0 and 1 without a class."""
    weight = prior[..., None, :]
    mean = (weight * moments[..., MEAN]).sum(-1)
    variance = (weight * (moments[..., SD] ** 2 + (moments[..., MEAN] - mean[..., None]) ** 2)).sum(-1)
    return mean, np.where(variance > 0, variance, 1.0)


def scaled_at_prior(moments: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Scale each client to mean 0 and deviation 1 with class shares `prior`."""
    scaled = with_spread_in_classes(moments)
    mean, variance = at_prior(scaled, prior)
    scaled[..., MEAN] = (scaled[..., MEAN] - mean[..., None]) / np.sqrt(variance)[..., None]
    scaled[..., SD] /= np.sqrt(variance)[..., None]
    return scaled


def _clean(moments: np.ndarray) -> np.ndarray:
    """Set a class without rows, mean or deviation to zeros, and a missing shape to a normal's."""
    present = np.isfinite(moments[..., :SKEWNESS]).all(-1, keepdims=True)
    shaped = np.isfinite(moments[..., SKEWNESS:]).all(-1, keepdims=True)
    shape = np.where(shaped, moments[..., SKEWNESS:], [0.0, 3.0])
    return np.where(present, np.concatenate([moments[..., :SKEWNESS], shape], -1), 0.0)


_MIN_DETERMINANT = 1e-3  # of the product of two variances
_MIN_KURTOSIS = 1.2
_RIDGE = 1e-12  # added to a diagonal of ones


def mean_and_spread(moments: np.ndarray) -> np.ndarray:
    """Return the statistic, with 2 degrees of freedom, of equal mean and log deviation; moments: (..., 2, 5).

    It holds for any distribution, since reported skewness and kurtosis give the variance of both.
    """
    estimate, covariance = _estimates(with_spread(moments))
    return _wald(estimate[..., 0, :] - estimate[..., 1, :], covariance.sum(-3))


def compare_inputs(moments: np.ndarray) -> ChiSquare:
    """Test whether P(X) is equal, by mean and deviation."""
    combined = combine_classes(moments)
    testable = (combined[..., ROWS] > 1).all(-1)
    return np.where(testable, mean_and_spread(combined), 0.0), np.where(testable, 2, 0)


def compare_inputs_in_classes(moments: np.ndarray) -> ChiSquare:
    """Test whether P(X | Y) is equal, by means and deviations: the sum over classes."""
    present = _present(moments)
    statistic = mean_and_spread(np.moveaxis(moments, -3, -2))
    return np.where(present, statistic, 0.0).sum(-1), 2 * present.sum(-1)


def compare_classes_given_inputs(moments: np.ndarray) -> ChiSquare:
    """Test whether P(Y | X) is equal, by the quadratic logits of normal classes."""
    logits, covariance = _logits(moments)
    return _equal_up_to_shift(logits[..., 0, :, :] - logits[..., 1, :, :], covariance.sum(-4), _present(moments))


def compare_odds_ratios(moments: np.ndarray) -> ChiSquare:
    """Test whether X and Y depend on each other equally: the logits differ by constants, which a prior explains."""
    logits, covariance = _logits(moments)
    differences = logits[..., 0, :, 1:] - logits[..., 1, :, 1:]
    return _equal_up_to_shift(differences, covariance[..., 1:, 1:].sum(-4), _present(moments))


def compare_inputs_at_prior(moments: np.ndarray, prior: np.ndarray) -> ChiSquare:
    """Test whether P(X) would be equal, by mean and deviation, if both clients had class shares `prior`.

    prior: (..., classes), 0 for a class that one client lacks, of sum 1 or all 0.
    """
    testable = prior.sum(-1) > 0
    moments = with_spread_in_classes(moments)
    mean, variance = at_prior(moments, prior)
    weight = np.broadcast_to(prior[..., None, :], moments.shape[:-1])
    per_mean = 2 * weight * (moments[..., MEAN] - mean[..., None]) / variance[..., None]
    per_log = 2 * weight * moments[..., SD] ** 2 / variance[..., None]
    slopes = _matrix([[weight, np.zeros_like(weight)], [per_mean, per_log]])
    covariance = _propagate(slopes, _estimates(moments)[1]).sum((-4, -3))
    estimate = np.stack([mean, np.log(variance)], -1)
    covariance = np.where(testable[..., None, None], covariance, np.eye(2))
    statistic = _wald(estimate[..., 0, :] - estimate[..., 1, :], covariance)
    return np.where(testable, statistic, 0.0), np.where(testable, 2, 0)


def _present(moments: np.ndarray) -> np.ndarray:
    return np.all(moments[..., ROWS] > 0, axis=-2)


def _estimates(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and log deviation, (..., 2), and the covariance of these estimates, (..., 2, 2)."""
    rows, sd = np.maximum(moments[..., ROWS], 2), moments[..., SD]
    variance_of_log = (np.maximum(moments[..., KURTOSIS], _MIN_KURTOSIS) - 1) / (4 * (rows - 1))
    cross = moments[..., SKEWNESS] * sd / (2 * rows)
    covariance = _invertible(_matrix([[sd**2 / rows, cross], [cross, variance_of_log]]))
    return np.stack([moments[..., MEAN], np.log(sd)], -1), covariance


def _invertible(covariance: np.ndarray) -> np.ndarray:
    """Reduce the off-diagonal until the determinant is at least _MIN_DETERMINANT of the diagonal's product."""
    limit = np.sqrt((1 - _MIN_DETERMINANT) * covariance[..., 0, 0] * covariance[..., 1, 1])
    off_diagonal = np.clip(covariance[..., 0, 1], -limit, limit)
    return _matrix([[covariance[..., 0, 0], off_diagonal], [off_diagonal, covariance[..., 1, 1]]])


def _wald(delta: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the Wald statistic of (..., 2) being 0."""
    bounded = _invertible(covariance)
    first, cross, second = bounded[..., 0, 0], bounded[..., 0, 1], bounded[..., 1, 1]
    squares = second * delta[..., 0] ** 2 - 2 * cross * delta[..., 0] * delta[..., 1] + first * delta[..., 1] ** 2
    return squares / (first * second - cross**2)


def _logits(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients of 1, x and x², (..., 3), and their covariance.

    They are those of log P(class) N(x; mean, sd²), up to a constant.
    """
    moments = with_spread_in_classes(moments)
    rows, mean = np.maximum(moments[..., ROWS], 2), moments[..., MEAN]
    estimate, covariance = _estimates(moments)
    log, precision = estimate[..., 1], np.exp(-2 * estimate[..., 1])
    zeros = np.zeros_like(mean)
    slopes = _matrix(
        [[-mean * precision, mean**2 * precision - 1], [precision, -2 * mean * precision], [zeros, precision]]
    )
    coefficients = [np.log(rows) - log - mean**2 * precision / 2, mean * precision, -precision / 2]
    propagated = _propagate(slopes, covariance)
    propagated[..., 0, 0] += 1 / rows
    return np.stack(coefficients, -1), propagated


def _equal_up_to_shift(differences: np.ndarray, covariance: np.ndarray, present: np.ndarray) -> ChiSquare:
    """Test whether all classes differ by one vector; differences: (..., classes, k), covariance: (..., classes, k, k).

    The statistic is the least sum of Wald statistics over that vector, equal to the Wald statistic of all contrasts to
    one class.
    """
    precision = _inverse(covariance) * present[..., None, None]
    total = precision.sum(-3)
    total = np.where(np.any(present, axis=-1)[..., None, None], total, np.eye(total.shape[-1]))
    common = _inverse(total) @ (precision @ differences[..., None]).sum(-3)
    residual = differences[..., None] - common[..., None, :, :]
    statistic = (np.swapaxes(residual, -1, -2) @ precision @ residual)[..., 0, 0].sum(-1)
    dof = differences.shape[-1] * np.maximum(present.sum(-1) - 1, 0)
    return np.where(dof > 0, statistic, 0.0), dof


def _inverse(positive: np.ndarray) -> np.ndarray:
    """Invert after scaling the diagonal to ones, as coefficients differ in size; a ridge prevents singularity."""
    unit = np.sqrt(np.diagonal(positive, axis1=-2, axis2=-1))
    scale = unit[..., :, None] * unit[..., None, :]
    return np.linalg.inv(positive / scale + _RIDGE * np.eye(positive.shape[-1])) / scale


def _propagate(slopes: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    return slopes @ covariance @ np.swapaxes(slopes, -1, -2)


def _matrix(rows: list[list[np.ndarray]]) -> np.ndarray:
    return np.stack([np.stack(row, -1) for row in rows], -2)


LEAST_WALD_ROWS = 100
"""Rows a class needs on both sides, or all rows if no class has them; fewer are too rough for a Wald test."""


def moment_evidence(pairs: Pairs, least_sweeps: int = 1) -> Evidence:
    """Collect evidence from moments, without sweeps; the pooled column after the classes counts for P(X) only."""
    moments = standardize(pairs.moments)
    classes: np.ndarray = np.all(moments[..., :-1, ROWS] >= LEAST_WALD_ROWS, axis=-2)
    within = np.where(classes[..., None, :, None], moments[..., :-1, :], 0.0)
    size_within = effective_size(within[..., ROWS].sum(-1))
    rows = moments[..., ROWS].sum(-1)
    max_rows = rows.max(1, keepdims=True, initial=0)  # features with missing values have fewer rows
    compared: np.ndarray = np.any(classes, axis=(1, 2))
    usable = comparable_features(max_rows, pairs, classes) & ((rows >= LEAST_WALD_ROWS).all(-1) | compared[:, None])
    mean, even = priors(pairs.labels, classes)
    tested = {
        "bins": SizedTest(mask_test(usable, compare_inputs(moments)), effective_size(rows)),
        "bins_in_classes": SizedTest(compare_inputs_in_classes(within), size_within),
        "classes_in_bins": SizedTest(compare_classes_given_inputs(within), size_within),
        "interaction": SizedTest(compare_odds_ratios(within), size_within),
        "at_mean": SizedTest(compare_inputs_at_prior(within, mean), size_within),
        "at_even": SizedTest(compare_inputs_at_prior(within, even), size_within),
        "labels": SizedTest(
            chi_square.pearson(pairs.labels, label_noise(pairs.noise)), effective_size(pairs.labels.sum(-1))
        ),
    }
    return build_evidence(tested, pairs.moments.shape[1], covered(pairs, classes))
