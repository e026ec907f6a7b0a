"""What clients sent of a feature's values in every class, as moments, and what follows from it; many features at once.

Moments are (..., classes, 5): of every class the rows, mean, standard deviation (its divisor is rows − 1), skewness and
kurtosis (their divisor is rows; a normal's kurtosis is 3). Those of a pair are (..., 2, classes, 5), of client A and of B.
"""

import numpy as np

from models.shift.client_summaries.client_summary import mixture

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
