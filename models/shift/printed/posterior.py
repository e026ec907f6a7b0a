"""The posterior that class-conditional normal densities give by Bayes' rule, in logarithms; many at once."""

import numpy as np

_LEAST_SD = 1e-3  # of the feature's standard deviation


def posterior(at: np.ndarray, mean: np.ndarray, sd: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """P(Y | X = x) at points: (..., points, classes), each of sum 1.

    at: (..., points); mean, sd, prior: (..., classes), sd positive. A class with prior 0, or without a mean, has 0
    everywhere. Where no class has a density that a number can hold it is the prior of the others; without any class all 0.
    """
    there = (prior > 0) & np.isfinite(mean)
    level = np.log(prior, out=np.full(there.shape, -np.inf), where=there) - np.log(sd)
    apart = at[..., None] - np.where(there, mean, 0.0)[..., None, :]
    with np.errstate(over="ignore"):
        apart /= sd[..., None, :]
        apart *= apart
    logs = level[..., None, :] - apart / 2
    largest = logs.max(-1, keepdims=True)
    densities = np.exp(logs - np.where(np.isfinite(largest), largest, 0.0))
    total = densities.sum(-1, keepdims=True)
    held = np.where(there, prior, 0.0)
    share = held / np.maximum(held.sum(-1, keepdims=True), np.finfo(float).tiny)
    out = np.broadcast_to(share[..., None, :], densities.shape).copy()
    return np.divide(densities, total, out=out, where=total > 0)


def usable_sd(class_sd: np.ndarray, present: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Standard deviations that a density can have, (..., classes), of a client's own classes.

    class_sd: (..., classes), NaN where unknown; present: the rows behind each; sd: (...) of the feature over all classes.
    A class of one row has that of the others about their own means, pooled. None is below a thousandth of the feature's,
    or 1 where the feature is constant: then all classes have one mean, and the posterior is the prior whatever it is.
    """
    known = np.isfinite(class_sd) & (present > 1)
    free = np.where(known, present - 1.0, 0.0)
    squares = (free * np.where(known, class_sd, 0.0) ** 2).sum(-1)
    within = np.sqrt(squares / np.maximum(free.sum(-1), 1))
    least = np.where(sd > 0, _LEAST_SD * sd, 1.0)
    return np.maximum(np.where(known, class_sd, within[..., None]), least[..., None])
