"""Clusters of clients from tables of evidence.

A table of likeness, (clients, clients) float64, is symmetric: cosines of updates, or shared correctness. A table of fit,
(clients, clusters), says how badly each cluster's model does on a client's rows. Clusters are lists of indices, each
sorted, in the order of their first members.
"""

from typing import Literal

import numpy as np

Overlap = Literal["jaccard", "equal", "dot"]

_TINY = 1e-12  # an update of zeros is like no other
_BYTES_AT_ONCE = 2**26  # of rows unpacked to float32; one product serves so many, and counts below 2^24 are exact


def normalize_rows(updates: np.ndarray) -> np.ndarray:
    """Each update divided by its length: (clients, numbers) float64; zeros stay zeros."""
    return updates / (np.linalg.norm(updates, axis=1, keepdims=True) + _TINY)


def cosines(updates: np.ndarray) -> np.ndarray:
    """Of all pairs of updates (clients, numbers)."""
    unit = normalize_rows(updates)
    return unit @ unit.T


def both_right(bits: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
    """On how many rows both of a pair are right: (clients, others) float64, whole numbers.

    bits: (clients, bytes) uint8, eight rows a byte as numpy packs them, the last filled up with zeros; `other` likewise,
    or the same clients. Memory does not grow with the rows.
    """
    other = bits if other is None else other
    counts = np.zeros((len(bits), len(other)))
    step = max(1, _BYTES_AT_ONCE // (32 * max(1, len(bits) + len(other))))
    for at in range(0, bits.shape[1], step):
        left = np.unpackbits(bits[:, at : at + step], axis=1).astype(np.float32)
        right = left if other is bits else np.unpackbits(other[:, at : at + step], axis=1).astype(np.float32)
        counts += left @ right.T
    return counts


def right_counts(bits: np.ndarray) -> np.ndarray:
    """On how many rows each is right: (clients,) float64."""
    return np.bitwise_count(bits).sum(1, dtype=np.int64).astype(np.float64)


def overlaps(bits: np.ndarray, rows: int, kind: Overlap, other: np.ndarray | None = None) -> np.ndarray:
    """How much pairs are right on the same of `rows` rows, (clients, others) in [0, 1]; `bits` as for `both_right`.

    With d the share of rows on which both are right, and c each one's own share of right rows: `dot` is d, as Liu, Lee and
    Julien print it, bounded by the smaller c; `equal` is 1 - c_i - c_j + 2 d, as their code has it, the share of equal
    bits, for which common errors are as good as common knowledge; `jaccard` is d / (c_i + c_j - d), and 0 where neither is
    ever right. ValueError without rows.
    """
    if not rows:
        raise ValueError("there are no rows to be right on")
    # whole numbers up to the one division: equals are equal
    d, c = both_right(bits, other), right_counts(bits)[:, None]
    each = c + (c.T if other is None else right_counts(other)[None])
    if kind == "dot":
        return d / rows
    if kind == "equal":
        return (rows - each + 2 * d) / rows
    return np.divide(d, each - d, out=np.zeros_like(d), where=each > 0)


Linkage = Literal["single", "complete"]
Assign = Literal["complete", "greedy", "first_member"]

Groups = list[list[int]]


def best_fit(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each client the model with the smallest loss, the first of equals, and that loss; losses: (clients, ..., models).

    A loss that is no number is the last choice.
    """
    losses = np.where(np.isnan(losses), np.inf, losses)
    best = losses.argmin(-1)  # numpy promises the first of equals, torch does not
    return best, np.take_along_axis(losses, best[..., None], -1)[..., 0]


def cluster_by_threshold(likeness: np.ndarray, threshold: float, assign: Assign = "complete") -> Groups:
    """Groups of clients that are at least as alike as the threshold.

    `complete` cuts complete linkage there, and `greedy` takes clients one after another: in both every pair of a group is
    as alike, and every client is in one group. `first_member` is what the code of Liu, Lee and Julien does: a client joins
    every group with whose first member it is more alike than the threshold, so that it may be in several.
    """
    rules = {"complete": _complete, "greedy": _greedy, "first_member": _first_member}
    return sorted(rules[assign](np.asarray(likeness, np.float64), threshold))


def joined(likeness: np.ndarray, groups: Groups, threshold: float) -> int | None:
    """The group that a newcomer is let into; None if there is none: that with the largest least likeness to its members.

    likeness: (clients,) to those in the groups. Of equal groups the first. Nobody else moves.
    """
    least = [min(likeness[member] for member in group) for group in groups]
    best = int(np.argmax(least)) if least else 0
    return best if least and least[best] >= threshold else None


def largest_gap(likeness: np.ndarray) -> float:
    """A threshold: the middle of the widest gap between the pairs' values in order, of equal gaps the upper.

    1 if there is no pair, and 0 where all pairs are equally alike: then everybody is together, on any rows.
    """
    values = np.unique(likeness[np.triu_indices(len(likeness), 1)])
    if len(values) < 2:
        return 0.0 if len(values) else 1.0
    gaps = np.diff(values)
    upper = len(gaps) - int(gaps[::-1].argmax())
    return float(values[upper - 1 : upper + 1].mean())


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


def across_clusters(alpha: np.ndarray, first: list[int], second: list[int]) -> float:
    """The largest similarity of a pair that was parted."""
    return float(alpha[np.ix_(first, second)].max())


def _complete(likeness: np.ndarray, threshold: float) -> Groups:
    """The clients' order decides nothing, but where pairs are exactly as alike."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    if len(likeness) < 2:
        return [[place] for place in range(len(likeness))]
    # ranks in place of 1 - likeness: linkage asks only which is larger, and nothing is lost in the subtraction
    values, rank = np.unique(likeness, return_inverse=True)
    distances = (len(values) - 1 - rank).reshape(likeness.shape).astype(np.float64)
    np.fill_diagonal(distances, 0)
    allowed = len(values) - 1 - int(np.searchsorted(values, threshold))
    tree = hierarchy.linkage(squareform(distances, checks=False), "complete")
    labels = hierarchy.fcluster(tree, allowed, "distance") if allowed >= 0 else np.arange(len(likeness))
    return [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]


def _greedy(likeness: np.ndarray, threshold: float) -> Groups:
    groups: Groups = []
    for place in range(len(likeness)):
        at = joined(likeness[place], groups, threshold)
        if at is None:
            groups.append([place])
        else:
            groups[at].append(place)
    return groups


def _first_member(likeness: np.ndarray, threshold: float) -> Groups:
    groups: Groups = []
    for place in range(len(likeness)):
        mine = [group for group in groups if likeness[place, group[0]] > threshold]
        for group in mine:
            group.append(place)
        if not mine:
            groups.append([place])
    return groups
