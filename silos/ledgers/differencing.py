"""Whether two answers without noise, subtracted, would tell of a few rows.

An answer gives sums over groups of rows: a group is a class, or several that were too small and are pooled. Who has two
answers adds up groups of the first, subtracts groups of the second, and has a sum over the rows that are not in both. A
class that was told and is now among the pooled ones is no way around that: all such sums are looked at.

What is not looked at: sums over three answers or more (of rows X, X + D, X + E and X + D + E + {r} each two may differ by
ten rows, and all four together give r away); a change of few rows in one column under a change of many in others; and rows
that were stored otherwise in between, such as scaled ones, which are other rows to a hash. Against those there is noise.
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
    """Over all sums of groups before less sums of groups after, where a class's rows are in its own group or in OTHER."""
    first, second, common = _overlap(before, after)
    at, to = ({name: place for place, name in enumerate(groups)} for groups in (before, after))
    classes = (at.keys() | to.keys()) - {OTHER}
    apart = first[:, None] + second - common  # pairs whatever their names: classes may be bins, cut otherwise meanwhile
    found = {int(first.sum() + second.sum() - common.sum()), *(int(size) for size in apart.flat)}
    for with_first, with_second in product({False, OTHER in at}, {False, OTHER in to}):
        size = 0
        if with_first:
            size += first[at[OTHER]]
        if with_second:
            size += second[to[OTHER]]
        if with_first and with_second:
            size -= common[at[OTHER], to[OTHER]]
        more = set()
        for name in classes:
            ways = [0]  # what taking the class from neither, either or both answers adds
            if name in at:
                ways.append(first[at[name]] - (common[at[name], to[OTHER]] if with_second else 0))
            if name in to:
                ways.append(second[to[name]] - (common[at[OTHER], to[name]] if with_first else 0))
            if name in at and name in to:
                ways.append(ways[1] + ways[2] - common[at[name], to[name]])
            size += min(ways)
            more |= {way - min(ways) for way in ways}
        found.add(int(size) or int(min(more - {0}, default=0)))
    return min(found - {0}, default=0)


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
