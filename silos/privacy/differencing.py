"""Whether two answers without noise, subtracted, would tell of a few rows.

An answer gives sums over groups of rows: a group is a class, or several that were too small and are pooled. Who has two
answers adds up groups of the first, subtracts groups of the second, and has a sum over the rows that are not in both. A
class that was told and is now among the pooled ones is no way around that: all such sums are looked at.

What is not looked at: sums over three answers or more (of rows X, X + D, X + E and X + D + E + {r} each two may differ by
ten rows, and all four together give r away); a change of few rows in one column under a change of many in others; and rows
that were stored otherwise in between, such as scaled ones or ones with a column more, which are other rows to a hash.
Against those there is noise.
The number of all rows is no sum over groups, and is told whatever it is: of rows in no group it tells how many there are.
"""

import json
from collections.abc import Mapping
from itertools import product

import numpy as np

LEAST_ROWS = 10
"""Different rows that a difference must stand for."""

OTHER = "\0"
"""The group of classes that are pooled; no class is called so."""

EVERY = "\0"
"""Stands for the features that have no groups of their own; no feature is called so."""

Groups = Mapping[str, np.ndarray]
"""Class, or OTHER, to the hashes of its rows, (rows,) uint64. A row's label is in its hash: groups have none in common."""

Told = Mapping[str, Groups]
"""The groups that a feature's numbers are sums over: EVERY, and by its name a feature that misses values in some rows."""


def check(told: Told) -> None:
    """ValueError for groups that must not be told: with fewer than LEAST_ROWS different rows, or with rows in common."""
    if EVERY not in told:
        raise ValueError("an answer without noise must name the rows that it stands for")
    for groups in told.values():
        for name, hashes in groups.items():
            if len(np.unique(hashes)) < LEAST_ROWS:
                raise ValueError(f"class {name!r} would be told, and has fewer than {LEAST_ROWS} different rows")
        _distinct(groups)


def smallest_difference(before: Told, after: Told) -> int:
    """The fewest different rows, above none, that a difference of the two answers is a sum over; 0 where all are over none.

    What one answer tells by itself is among them: of the same rows twice it is the smallest group.
    A row counts once, however often it is there: what is a sum over ten copies of a row is that row.
    """
    features = before.keys() | after.keys()
    found = [_smallest(before.get(name, before[EVERY]), after.get(name, after[EVERY])) for name in features]
    return min((size for size in found if size), default=0)


def packed(told: Told) -> dict[str, np.ndarray]:
    """One array a group, to be kept, and an empty one a feature; sorted: the order of rows is nobody's business."""
    arrays = {json.dumps([feature]): np.empty(0, np.uint64) for feature in told}
    for feature, groups in told.items():
        arrays |= {json.dumps([feature, name]): np.sort(hashes).astype(np.uint64) for name, hashes in groups.items()}
    return arrays


def unpacked(arrays: Mapping[str, np.ndarray]) -> Told:
    """What was packed."""
    told: dict[str, dict[str, np.ndarray]] = {}
    for key, hashes in arrays.items():
        feature, *names = json.loads(key)
        groups = told.setdefault(feature, {})
        groups |= dict.fromkeys(names, hashes)
    return told


def _smallest(before: Groups, after: Groups) -> int:
    """Over all sums of groups before less sums of groups after.

    Where neither pool is in the way, groups that share no row add up by themselves: of each such part of a few groups, as a
    class before and after, or targets cut twice, every choice is looked at, beside every choice of the pools.
    """
    first, second, common = _overlap(before, after)
    sizes, shared = np.concatenate([first, second]), np.zeros((len(first) + len(second),) * 2, np.int64)
    shared[: len(first), len(first) :] = common
    pools = [at for at, name in enumerate([*before, *after]) if name == OTHER]
    parts = _parts(shared, [at for at in range(len(sizes)) if at not in pools])
    found = set()
    for chosen in product((0, 1), repeat=len(pools)):
        taken = np.zeros(len(sizes), np.int64)
        taken[pools] = chosen
        beside = sizes - (shared + shared.T) @ taken
        ways = [_ways(beside[same], shared[same[:, :, None], same[:, None]]) for same in parts]
        least = taken @ sizes - taken @ shared @ taken + sum(int(of.min(1).sum()) for of in ways)
        more = [of - of.min(1, keepdims=True) for of in ways]
        found.add(int(least) or min((int(of[of > 0].min()) for of in more if (of > 0).any()), default=0))
    return min(found - {0}, default=0)


def _parts(shared: np.ndarray, groups: list[int]) -> list[np.ndarray]:
    """Groups that share rows, directly or by others: one array (parts, groups) for each number of groups in a part."""
    left, found = {*groups}, list[list[int]]()
    while left:
        part, new = set[int](), {left.pop()}
        while new:
            part |= new
            near = np.flatnonzero(shared[[*new]].any(0) | shared[:, [*new]].any(1)).tolist()
            new = {*near} & left
            left -= new
        found.append(sorted(part))
    return [np.array([part for part in found if len(part) == size]) for size in sorted({len(part) for part in found})]


def _ways(sizes: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Rows of every choice of groups: (parts, choices), for sizes (parts, groups) and shared (parts, groups, groups)."""
    choices = np.array([*product((0, 1), repeat=sizes.shape[1])])
    return sizes @ choices.T - np.einsum("cg,pgh,ch->pc", choices, shared, choices, optimize=True)


def _overlap(before: Groups, after: Groups) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Different rows of each group, and (before, after) by how many fewer two differ than both have.

    A row that is in both as often is two fewer, another that is in both is one.
    """
    rows, owner, often = _distinct(before)
    rows_after, owner_after, often_after = _distinct(after)
    _, at, to = np.intersect1d(rows, rows_after, assume_unique=True, return_indices=True)
    common = np.zeros((len(before), len(after)), np.int64)
    np.add.at(common, (owner[at], owner_after[to]), 1 + (often[at] == often_after[to]))
    return np.bincount(owner, minlength=len(before)), np.bincount(owner_after, minlength=len(after)), common


def _distinct(groups: Groups) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Different rows of all groups, with the place of each one's group and how often it is there."""
    parts = [np.unique(hashes, return_counts=True) for hashes in groups.values()]
    rows = np.concatenate([np.empty(0, np.uint64), *(part for part, _ in parts)])
    if len(np.unique(rows)) != len(rows):
        raise ValueError(f"a row is in two of the groups {sorted(groups)}")
    owner = np.repeat(np.arange(len(parts)), [len(part) for part, _ in parts])
    return rows, owner, np.concatenate([np.empty(0, np.int64), *(often for _, often in parts)])
