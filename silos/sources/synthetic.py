"""The source `synthetic`: clusters of clients whose laws are known."""

import numpy as np

from silos.dataset import Rows, numbered
from silos.io.free_memory import must_fit
from silos.partitioners.data_rng import DataStreams, data_stream
from silos.sources.source_params import Synthetic

_BESIDE = 12  # a row's label and names, in numbers


def synthetic(source: Synthetic, seed: int) -> Rows:
    """Rows (x, y) with x ~ N(0, I) and coefficients theta of the client's cluster; clients in order of cluster.

    Linear: y = x·theta + e with e ~ N(0, noise^2), a regression. Logistic: y = 1 where x·theta > 0, free of noise.
    Section 5 of the conditional-statistics paper; theta, training and test rows come from streams of their own, so
    that a client with more rows has the same first ones.
    """
    numbers = (
        source.clusters * source.clients_per_cluster * (source.rows + source.test_rows) * (source.features + _BESIDE)
    )
    must_fit(
        8 * numbers + 8 * source.clusters * source.features,
        f"params.yaml: data.source: {source.clusters:,} clusters * {source.clients_per_cluster:,} clients * "
        f"({source.rows:,} + {source.test_rows:,}) rows * {source.features:,} features",
        "lower one of them",
    )
    each, count = source.rows + source.test_rows, source.clusters * source.clients_per_cluster
    linear = source.task == "linear"
    x = np.empty((count, each, source.features), np.float32)
    y = np.empty((count, each), np.float32 if linear else np.int64)
    for cluster, theta in enumerate(coefficients(source, seed)):
        mine = slice(cluster * source.clients_per_cluster, (cluster + 1) * source.clients_per_cluster)
        error = _draw(source, seed, cluster, x[mine])
        product = _product(x[mine], theta)
        y[mine] = product + source.noise * error if error is not None else product > 0
    marks = np.repeat(["train", "test"], [source.rows, source.test_rows])
    domains = np.array([f"cluster{cluster}" for cluster in range(source.clusters)])
    return Rows(
        x=x.reshape(-1, source.features),
        y=y.reshape(-1),
        classes=[] if linear else ["0", "1"],
        client=np.repeat([numbered(index, count) for index in range(count)], each),
        domain=np.repeat(domains, source.clients_per_cluster * each),
        split=np.tile(marks, count) if source.test_rows else None,
        task="regression" if linear else "classification",
    )


def coefficients(source: Synthetic, seed: int) -> np.ndarray:
    """theta of each cluster, uniform in [-10, 10]: (clusters, features) float64; it does not depend on the rest."""
    return np.stack(
        [data_stream(seed, "synthetic", "theta", k).uniform(-10, 10, source.features) for k in range(source.clusters)]
    )


def _draw(source: Synthetic, seed: int, cluster: int, x: np.ndarray) -> np.ndarray | None:
    """Fills x (clients, rows, features) of one cluster; the noise of its targets, (clients, rows) float64, where linear."""
    streams, parts = DataStreams(), (("train", slice(source.rows)), ("test", slice(source.rows, None)))
    error = np.empty(x.shape[:2]) if source.task == "linear" else None
    for index in range(len(x)):
        for part, at in parts:
            drawn = x[index, at]
            drawn[:] = streams.begin(seed, "synthetic", part, cluster, index).standard_normal(drawn.shape)
            if error is not None:
                noise = streams.begin(seed, "synthetic", "noise", part, cluster, index)
                error[index, at] = noise.standard_normal(len(drawn))
    return error


def _product(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """x·theta, (clients, rows) float64; term by term, since a BLAS adds in an order of its own on each machine."""
    total = np.zeros(x.shape[:2])
    for feature, weight in enumerate(theta):
        total += x[..., feature].astype(np.float64) * weight
    return total
