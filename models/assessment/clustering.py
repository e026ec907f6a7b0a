"""Two parts of a set of clients, by how alike their updates are (Sattler et al. 2019)."""

from typing import Literal

import numpy as np

Linkage = Literal["single", "complete"]

_TINY = 1e-12  # an update of zeros is like no other


def directions(updates: np.ndarray) -> np.ndarray:
    """Each update divided by its length: (clients, numbers) float64; zeros stay zeros."""
    return updates / (np.linalg.norm(updates, axis=1, keepdims=True) + _TINY)


def similarities(updates: np.ndarray) -> np.ndarray:
    """Cosines of all pairs, (clients, clients), for updates (clients, numbers)."""
    unit = directions(updates)
    return unit @ unit.T


def bipartition(alpha: np.ndarray, linkage: Linkage = "single") -> tuple[list[int], list[int]]:
    """Both parts as sorted places, the one with place 0 first; alpha: (clients, clients), symmetric, 2 clients or more.

    `single` joins pairs from the most alike on until two parts remain, which makes the largest similarity across them as
    small as it can be (algorithm 1 of the paper). `complete`, which the authors' code takes, is a heuristic for that.
    """
    from scipy.cluster import hierarchy  # here: a cluster that never splits need not wait for it
    from scipy.spatial.distance import squareform

    distances = 1 - alpha.astype(np.float64)
    np.fill_diagonal(distances, 0)
    joined = hierarchy.linkage(squareform(distances, checks=False), linkage)
    # the last join rather than fcluster, which gives one part where distances tie
    last = hierarchy.to_tree(joined)
    parts = sorted(sorted(branch.pre_order()) for branch in (last.get_left(), last.get_right()))
    return parts[0], parts[1]


def across(alpha: np.ndarray, first: list[int], second: list[int]) -> float:
    """The largest similarity of a pair that was parted."""
    return float(alpha[np.ix_(first, second)].max())
