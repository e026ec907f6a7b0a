"""Clusters clients by tables of similarities or losses.

A similarity table, (clients, clients) float64, is symmetric: cosines of updates, or overlaps of correct predictions. A
loss table, (clients, clusters), contains the loss of each cluster's model on a client's rows. Clusters are sorted lists
of client indices, ordered by their first members.
"""

from typing import Literal

import numpy as np

Overlap = Literal["jaccard", "equal", "dot"]

_TINY = 1e-12  # makes an update of zeros orthogonal to every other
_CHUNK_BYTES = 2**26  # of rows unpacked to float32 for one product; counts below 2^24 are exact


def normalize_rows(updates: np.ndarray) -> np.ndarray:
    """Divide each update by its length: (clients, numbers) float64. Zero updates stay zero."""
    return updates / (np.linalg.norm(updates, axis=1, keepdims=True) + _TINY)


def cosines(updates: np.ndarray) -> np.ndarray:
    """Compute the cosine similarity of all pairs of updates (clients, numbers)."""
    unit = normalize_rows(updates)
    return unit @ unit.T


def count_both_correct(bits: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
    """Count the rows that both clients of a pair predict correctly: (clients, others) float64, whole numbers.

    Args:
        bits: (clients, bytes) uint8, eight rows a byte as numpy.packbits packs them, the last byte padded with
            zeros.
        other: The other clients' bits, by default the same clients. Memory does not grow with the rows.
    """
    other = bits if other is None else other
    counts = np.zeros((len(bits), len(other)))
    step = max(1, _CHUNK_BYTES // (32 * max(1, len(bits) + len(other))))
    for start in range(0, bits.shape[1], step):
        left = np.unpackbits(bits[:, start : start + step], axis=1).astype(np.float32)
        right = left if other is bits else np.unpackbits(other[:, start : start + step], axis=1).astype(np.float32)
        counts += left @ right.T
    return counts


def count_correct(bits: np.ndarray) -> np.ndarray:
    """Count the rows that each client predicts correctly: (clients,) float64."""
    return np.bitwise_count(bits).sum(1, dtype=np.int64).astype(np.float64)


def overlaps(bits: np.ndarray, rows: int, kind: Overlap, other: np.ndarray | None = None) -> np.ndarray:
    """Compute how much pairs of clients are correct on the same rows, (clients, others) in [0, 1].

    Let d be the share of rows on which both are correct, and c each client's own share of correct rows. `dot` is d, as
    printed by Liu, Lee and Julien; it is bounded by the smaller c. `equal` is 1 - c_i - c_j + 2 d, as in their code:
    the share of equal bits, where common errors count like common correct rows. `jaccard` is d / (c_i + c_j - d), and 0
    where neither client is ever correct.

    Args:
        bits: Packed bits as in `count_both_correct`.
        rows: The number of rows.
        kind: The similarity.
        other: The other clients' bits, by default the same clients.

    Raises:
        ValueError: If there are no rows.
    """
    if not rows:
        raise ValueError("correctness: got no rows, expected at least one")
    # counts are whole numbers until the single division, so equal similarities compare equal
    both, correct = count_both_correct(bits, other), count_correct(bits)[:, None]
    total = correct + (correct.T if other is None else count_correct(other)[None])
    if kind == "dot":
        return both / rows
    if kind == "equal":
        return (rows - total + 2 * both) / rows
    return _jaccard(both, total)


def _jaccard(both: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Compute the jaccard overlaps; total: the sums of both clients' counts of correct rows."""
    return np.divide(both, total - both, out=np.zeros_like(both), where=total > 0)


Linkage = Literal["single", "complete"]
Assign = Literal["complete", "greedy", "first_member"]

Clusters = list[list[int]]


def best_fit(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find each client's model with the smallest loss, the first of equals, and that loss.

    losses: (clients, ..., models). NaN losses are chosen last.
    """
    losses = np.where(np.isnan(losses), np.inf, losses)
    best = losses.argmin(-1)  # numpy guarantees the first of equals, torch does not
    return best, np.take_along_axis(losses, best[..., None], -1)[..., 0]


def cluster_by_threshold(similarity: np.ndarray, threshold: float, assign: Assign = "complete") -> Clusters:
    """Group clients whose similarity is at least the threshold.

    `complete` cuts complete linkage at the threshold; `greedy` assigns clients one after another. In both, every pair
    of a cluster reaches the threshold, and every client is in one cluster. `first_member` follows the code of Liu, Lee
    and Julien. There a client joins every cluster whose first member is more similar to it than the threshold. So
    clients may be in several clusters.
    """
    rules = {"complete": _complete, "greedy": _greedy, "first_member": _first_member}
    return sorted(rules[assign](np.asarray(similarity, np.float64), threshold))


def find_cluster(similarity: np.ndarray, clusters: Clusters, threshold: float) -> int | None:
    """Return the index of the cluster that a new client joins, or None if there is none.

    The cluster has the largest minimum similarity to the client, at least the threshold; of equal clusters the first is
    taken. similarity: (clients,), to the clients in the clusters. Other clients stay where they are.
    """
    minima = [min(similarity[member] for member in cluster) for cluster in clusters]
    best = int(np.argmax(minima)) if minima else 0
    return best if minima and minima[best] >= threshold else None


def largest_gap(similarity: np.ndarray) -> float:
    """Choose the middle of the widest gap between the sorted pairwise similarities as threshold.

    Of equal gaps the upper is taken. The threshold is 1 if there is no pair. It is 0 if all pairs are equally similar,
    so that all clients form one cluster.
    """
    values = np.unique(similarity[np.triu_indices(len(similarity), 1)])
    if len(values) < 2:
        return 0.0 if len(values) else 1.0
    gaps = np.diff(values)
    upper = len(gaps) - int(gaps[::-1].argmax())
    return float(values[upper - 1 : upper + 1].mean())


CHANCE = 0.05
"""The level of the test that precedes the widest gap between overlaps."""

_PERMUTATIONS = 199
_MOST_TESTED = 100  # clients: the time of the test grows with their square


def chance_of_groups(bits: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> float | None:
    """Return the p-value that clients of one law overlap as unequally as these (jaccard), and in two levels as clearly.

    Two tests must agree, so the larger p-value counts: the variance of the overlaps of pairs, and the share of it that lies
    between two levels. Of three clients the first one decides, since three overlaps are always nearly of two levels.

    The bits of all rows of a class are permuted among clients, each class separately. So which classes a client is good at
    is left to chance, and bits within a class keep their dependence. If clients are exchangeable and their classes
    independent, each test is exact.

    Args:
        bits: Packed bits as in `count_both_correct`, of clients with a correct row.
        labels: (rows,) int64, the class of each row.
        rng: The generator of permutations, and of the clients if there are more than `_MOST_TESTED`.

    Returns:
        None if so few clients or classes have no permutations that could make the p-value as small as `CHANCE`.
    """
    if len(bits) > _MOST_TESTED:
        bits = bits[np.sort(rng.choice(len(bits), _MOST_TESTED, replace=False))]
    classes, clients = np.unique(labels), len(bits)
    # for one permutation that leaves two groups as they are
    least = (3 if clients < 5 else clients) ** (len(classes) - 1)
    if clients < 3 or least < 1 / CHANCE:  # whole numbers, since powers of many classes are too large for a float
        return None
    correct = np.unpackbits(bits, axis=1, count=len(labels)).astype(np.float32)
    both = np.stack([correct[:, labels == code] @ correct[:, labels == code].T for code in classes]).astype(np.float64)
    pairs = np.triu_indices(clients, 1)

    def statistics(orders: np.ndarray) -> np.ndarray:
        counts = both[np.arange(len(classes))[:, None, None], orders[:, :, None], orders[:, None, :]].sum(0)
        overlap = np.sort(_jaccard(counts, np.diag(counts)[:, None] + np.diag(counts))[pairs])
        return np.array([overlap.var(), _share_of_two_levels(overlap) if clients > 3 else 1.0])

    unpermuted = np.tile(np.arange(clients), (len(classes), 1))
    observed, as_large = statistics(unpermuted), np.zeros(2)
    for _ in range(_PERMUTATIONS):
        as_large += statistics(rng.permuted(unpermuted, axis=1)) >= observed
    chances = (1 + as_large) / (1 + _PERMUTATIONS)
    return float(chances.max() if clients > 3 else chances[0])


def _share_of_two_levels(ordered: np.ndarray) -> float:
    """Return the share of the variance of ordered values that lies between the two parts of their best division."""
    lower = np.arange(1, len(ordered))
    sums, upper = np.cumsum(ordered)[:-1], len(ordered) - lower
    apart = (ordered.sum() - sums) / upper - sums / lower
    total = len(ordered) * ordered.var()
    return float((lower * upper / len(ordered) * apart**2).max() / total) if total else 0.0


_DECIMALS, _MARGIN = 12, 1e-9  # between equal values the distance falls by just the mean step, which is no elbow


def elbow(values: np.ndarray) -> float:
    """Return the value at the elbow of sorted values, as Kneedle finds it from the largest on (Satopää et al. 2011).

    The distance below the line from the smallest to the largest value has local maxima. The elbow is the first after
    which it falls by more than the mean step (a sensitivity of 1), or below zero after a minimum; else the global one.
    """
    values = np.sort(values)
    if values[0] == values[-1]:
        return float(values[0])
    step = 1 / (len(values) - 1)
    gap = (np.linspace(0, 1, len(values)) - (values - values[0]) / (values[-1] - values[0])).round(_DECIMALS)[::-1]
    before, after = np.append(gap[0], gap[:-1]), np.append(gap[1:], gap[-1])
    highest, lowest = (gap >= before) & (gap >= after), (gap <= before) & (gap <= after)
    found, threshold = 0, 0.0
    for index in range(len(values) - 1):
        if highest[index]:
            found, threshold = index, gap[index] - step
        if lowest[index]:
            threshold = 0.0
        if gap[index + 1] < threshold - _MARGIN:
            return float(values[-1 - found])
    return float(values[gap[::-1].argmax()])


def cluster_by_density(points: np.ndarray, scale: float = 1.0) -> Clusters:
    """Cluster points (points, numbers) as DBSCAN does with two points a neighbourhood; a lone point is a cluster.

    The radius is `scale` times the elbow of the distances to the nearest neighbour. Two points are in one cluster if
    steps of at most the radius lead from one to the other.
    """
    from scipy.sparse.csgraph import connected_components  # slow to import
    from scipy.spatial.distance import pdist, squareform

    if len(points) < 2:
        return [[index] for index in range(len(points))]
    distances = squareform(pdist(np.asarray(points, np.float64)))
    radius = scale * elbow((distances + np.diag(np.full(len(points), np.inf))).min(1))
    _, labels = connected_components(distances <= radius, directed=False)
    return sorted(np.flatnonzero(labels == label).tolist() for label in np.unique(labels))


def bipartition(alpha: np.ndarray, linkage: Linkage = "single") -> tuple[list[int], list[int]]:
    """Split clients into two sorted lists of indices, the one with index 0 first.

    `single` joins the most similar pairs until two parts remain, which minimises the largest similarity across the
    parts (algorithm 1 of the paper). `complete`, used by the authors' code, is a heuristic for this.

    Args:
        alpha: Similarities (clients, clients), symmetric, of two clients or more.
        linkage: The linkage.
    """
    from scipy.cluster import hierarchy  # imported here, because it is slow and many clusters never split
    from scipy.spatial.distance import squareform

    distances = 1 - alpha.astype(np.float64)
    np.fill_diagonal(distances, 0)
    tree = hierarchy.linkage(squareform(distances, checks=False), linkage)
    # the last join, because fcluster gives one part where distances tie
    root = hierarchy.to_tree(tree)
    parts = sorted(sorted(branch.pre_order()) for branch in (root.get_left(), root.get_right()))
    return parts[0], parts[1]


def across_clusters(alpha: np.ndarray, first: list[int], second: list[int]) -> float:
    """Return the largest similarity of a pair across the two parts."""
    return float(alpha[np.ix_(first, second)].max())


def _complete(similarity: np.ndarray, threshold: float) -> Clusters:
    """Cut complete linkage. The clients' order only matters where pairs are exactly as similar."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    if len(similarity) < 2:
        return [[client] for client in range(len(similarity))]
    # ranks instead of 1 - similarity: linkage only compares, and ranks lose no digits
    values, rank = np.unique(similarity, return_inverse=True)
    distances = (len(values) - 1 - rank).reshape(similarity.shape).astype(np.float64)
    np.fill_diagonal(distances, 0)
    allowed = len(values) - 1 - int(np.searchsorted(values, threshold))
    tree = hierarchy.linkage(squareform(distances, checks=False), "complete")
    labels = hierarchy.fcluster(tree, allowed, "distance") if allowed >= 0 else np.arange(len(similarity))
    return [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]


def _greedy(similarity: np.ndarray, threshold: float) -> Clusters:
    clusters: Clusters = []
    for client in range(len(similarity)):
        cluster = find_cluster(similarity[client], clusters, threshold)
        if cluster is None:
            clusters.append([client])
        else:
            clusters[cluster].append(client)
    return clusters


def _first_member(similarity: np.ndarray, threshold: float) -> Clusters:
    clusters: Clusters = []
    for client in range(len(similarity)):
        matching = [cluster for cluster in clusters if similarity[client, cluster[0]] > threshold]
        for cluster in matching:
            cluster.append(client)
        if not matching:
            clusters.append([client])
    return clusters
