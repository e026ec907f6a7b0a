"""Compute the least error of a conditional linear model whose statistics are noisy.

Clients of cluster k have x ~ N(0, I) and y = x·theta_k + e with e ~ N(0, noise^2); each is described by c = cov(x, y) of
its rows, and the model is y = x·W c. Then E c = theta_k and, by the Wishart's second moments,
Cov c = (|theta_k|^2 I + theta_k theta_kᵀ + noise^2 I) / (rows - 1): the best W is that of the linear regression of theta on
c. Derived for this project; `tests/publications/test_noise_floor.py` holds it against simulation.
"""

import numpy as np


def covariance_floor(thetas: np.ndarray, rows: int, noise: float, constant: bool = False) -> float:
    """Return the RMSE on new rows of the best linear model that is given cov(x, y) of `rows` rows.

    thetas: (clusters, features); with `constant` the model is given [c, 1].
    """
    second = thetas.T @ thetas / len(thetas)
    size = np.trace(second) + noise**2
    spread = (size * np.eye(len(second)) + second) / (rows - 1)
    known = second
    if constant:
        mean = thetas.mean(0)
        known = second - np.outer(mean, mean)
    missed = known - known @ np.linalg.solve(known + spread, known)
    return float(np.sqrt(noise**2 + np.trace(missed)))


def least_squares_floor(features: int, rows: int, noise: float) -> float:
    """Return the same for clients described by least squares with intercept and W = I; needs rows > features + 2."""
    return float(noise * np.sqrt((1 + 1 / rows) * (1 + features / (rows - features - 2))))
