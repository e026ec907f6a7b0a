"""The source `synthetic`: clusters of clients whose laws are known."""

import numpy as np

from silos.machine.free_memory import must_fit
from silos.rows import Rows, numbered
from silos.schemes.named_draws import stream
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
    thetas = coefficients(source, seed)
    count = source.clusters * source.clients_per_cluster
    x, y, client, domain, split = [], [], [], [], []
    for cluster, theta in enumerate(thetas):
        for index in range(source.clients_per_cluster):
            name = numbered(cluster * source.clients_per_cluster + index, count)
            for part, rows in (("train", source.rows), ("test", source.test_rows)):
                drawn = stream(seed, "synthetic", part, cluster, index).standard_normal((rows, source.features))
                x.append(drawn.astype(np.float32))
                product = _product(x[-1], theta)
                if source.task == "linear":
                    error = stream(seed, "synthetic", "noise", part, cluster, index).standard_normal(rows)
                    y.append((product + source.noise * error).astype(np.float32))
                else:
                    y.append((product > 0).astype(np.int64))
                client += [name] * rows
                domain += [f"cluster{cluster}"] * rows
                split += [part] * rows
    linear = source.task == "linear"
    return Rows(
        x=np.concatenate(x),
        y=np.concatenate(y),
        classes=[] if linear else ["0", "1"],
        client=np.array(client),
        domain=np.array(domain),
        split=np.array(split) if source.test_rows else None,
        task="regression" if linear else "classification",
    )


def coefficients(source: Synthetic, seed: int) -> np.ndarray:
    """theta of each cluster, uniform in [-10, 10]: (clusters, features) float64; it does not depend on the rest."""
    return np.stack(
        [stream(seed, "synthetic", "theta", k).uniform(-10, 10, source.features) for k in range(source.clusters)]
    )


def _product(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """x·theta, (rows,) float64; term by term, since a BLAS adds in an order of its own on each machine."""
    total = np.zeros(len(x))
    for feature, weight in enumerate(theta):
        total += x[:, feature].astype(np.float64) * weight
    return total
