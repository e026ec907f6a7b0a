"""The source `synthetic`: clusters of clients with known distributions."""

import numpy as np

from silos.dataset import DataStreams, Rows, data_stream, default_client_name
from silos.io.memory_and_disk import must_fit
from silos.sources.source_params import Synthetic

_EXTRA = 12  # the memory of a row's label and names, in numbers of 8 bytes


def synthetic(source: Synthetic, seed: int) -> Rows:
    """Draw rows (x, y), with x ~ N(0, I) and coefficients theta for each cluster; clients are in cluster order.

    Linear: y = x·theta + e with e ~ N(0, noise^2), a regression. Logistic: y = 1 if x·theta > 0, without noise. Section
    5 of the conditional-statistics paper. theta, training rows and test rows have separate random streams, so that a
    client with more rows has the same first rows.
    """
    rows_per_client, count = source.rows + source.test_rows, source.clusters * source.clients_per_cluster
    size = count * rows_per_client * (source.features + _EXTRA)
    must_fit(
        8 * size + 8 * source.clusters * source.features,
        f"params.yaml: data.source: got {source.clusters:,} clusters * {source.clients_per_cluster:,} clients * "
        f"({source.rows:,} + {source.test_rows:,}) rows * {source.features:,} features",
        "Lower one of them",
    )
    linear = source.task == "linear"
    x = np.empty((count, rows_per_client, source.features), np.float32)
    y = np.empty((count, rows_per_client), np.float32 if linear else np.int64)
    for cluster, theta in enumerate(coefficients(source, seed)):
        members = slice(cluster * source.clients_per_cluster, (cluster + 1) * source.clients_per_cluster)
        error = _draw(source, seed, cluster, x[members])
        product = _product(x[members], theta)
        y[members] = product + source.noise * error if error is not None else product > 0
    splits = np.repeat(["train", "test"], [source.rows, source.test_rows])
    domains = np.array([f"cluster{cluster}" for cluster in range(source.clusters)])
    return Rows(
        x=x.reshape(-1, source.features),
        y=y.reshape(-1),
        classes=[] if linear else ["0", "1"],
        client=np.repeat([default_client_name(index, count) for index in range(count)], rows_per_client),
        domain=np.repeat(domains, source.clients_per_cluster * rows_per_client),
        split=np.tile(splits, count) if source.test_rows else None,
        task="regression" if linear else "classification",
    )


def coefficients(source: Synthetic, seed: int) -> np.ndarray:
    """Draw theta of each cluster, uniform in [-10, 10]: (clusters, features) float64, whatever the other settings."""
    return np.stack(
        [data_stream(seed, "synthetic", "theta", k).uniform(-10, 10, source.features) for k in range(source.clusters)]
    )


def _draw(source: Synthetic, seed: int, cluster: int, x: np.ndarray) -> np.ndarray | None:
    """Fill x (clients, rows, features) of one cluster; return its noise, (clients, rows) float64, if linear."""
    streams, splits = DataStreams(), (("train", slice(source.rows)), ("test", slice(source.rows, None)))
    error = np.empty(x.shape[:2]) if source.task == "linear" else None
    for index in range(len(x)):
        for split, span in splits:
            rows = x[index, span]
            rows[:] = streams.begin(seed, "synthetic", split, cluster, index).standard_normal(rows.shape)
            if error is not None:
                noise = streams.begin(seed, "synthetic", "noise", split, cluster, index)
                error[index, span] = noise.standard_normal(len(rows))
    return error


def _product(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Compute x·theta, (clients, rows) float64, term by term, since the order of a BLAS depends on the machine."""
    total = np.zeros(x.shape[:2])
    for feature, weight in enumerate(theta):
        total += x[..., feature].astype(np.float64) * weight
    return total
