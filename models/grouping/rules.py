"""Rules that make groups of a table of evidence; who made the table is nothing to them.

A table of likeness, (clients, clients), is from models.grouping.likeness; a table of fit, (clients, groups), says how badly
each group's model does on a client's rows. Groups are lists of places, each sorted, in the order of their first places.
"""

from typing import Literal

import numpy as np

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


def grouped(likeness: np.ndarray, threshold: float, assign: Assign = "complete") -> Groups:
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


def across(alpha: np.ndarray, first: list[int], second: list[int]) -> float:
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
