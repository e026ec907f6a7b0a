"""Check whether the difference of two reports without noise would reveal a few rows.

A report gives sums over groups of rows. A group is a class, or the pool of classes that were too small. An attacker
with two reports adds groups of the first, subtracts groups of the second, and gets a sum over the rows that are not in
both. All such sums are checked, so a class that moved into the pool opens no way around.

Not checked are:
- sums over three or more reports: each two of X, X + D, X + E and X + D + E + {r} may differ by ten rows, while all four
  together reveal r;
- a change of few rows in one column under a change of many rows in other columns;
- rows that were stored differently in between, such as scaled rows or rows with one more column; their hashes differ.

Noise protects against these. The total number of rows is not a sum over groups, and is always reported; it reveals how
many rows are in no group.
"""

import json
from collections.abc import Mapping
from itertools import product

import numpy as np

LEAST_ROWS = 10
"""The least number of different rows that a difference must cover."""

OTHER = "\0"
"""The group of pooled classes; no class has this name."""

EVERY = "\0"
"""The key of all features without groups of their own; no feature has this name."""

Groups = Mapping[str, np.ndarray]
"""Class, or OTHER, to the hashes of its rows, (rows,) uint64. A hash includes the label, so groups share no hash."""

ReportedGroups = Mapping[str, Groups]
"""The groups that each feature's sums are over: under EVERY, and under the name of each feature with missing values."""


def check(groups_by_feature: ReportedGroups) -> None:
    """Raise ValueError for groups with fewer than LEAST_ROWS different rows, or with rows in common."""
    if EVERY not in groups_by_feature:
        raise ValueError("an answer without noise must name the rows that it stands for")
    for groups in groups_by_feature.values():
        for name, hashes in groups.items():
            if len(np.unique(hashes)) < LEAST_ROWS:
                raise ValueError(f"class {name!r} would be told, and has fewer than {LEAST_ROWS} different rows")
        _distinct(groups)


def smallest_difference(before: ReportedGroups, after: ReportedGroups) -> int:
    """Return the fewest different rows, above 0, in any difference of the two reports; 0 if all differences are empty.

    Single reports count as well: of two reports of the same rows, the result is the smallest group. Duplicates of a row
    count once, since a sum over ten copies of a row reveals that row.
    """
    features = before.keys() | after.keys()
    sizes = [_smallest(before.get(name, before[EVERY]), after.get(name, after[EVERY])) for name in features]
    return min((size for size in sizes if size), default=0)


def packed(groups_by_feature: ReportedGroups) -> dict[str, np.ndarray]:
    """Return one array to store for each group, sorted to hide the order of rows, and an empty one for each feature."""
    arrays = {json.dumps([feature]): np.empty(0, np.uint64) for feature in groups_by_feature}
    for feature, groups in groups_by_feature.items():
        arrays |= {json.dumps([feature, name]): np.sort(hashes).astype(np.uint64) for name, hashes in groups.items()}
    return arrays


def unpacked(arrays: Mapping[str, np.ndarray]) -> ReportedGroups:
    """Restore what `packed` returned."""
    groups_by_feature: dict[str, dict[str, np.ndarray]] = {}
    for key, hashes in arrays.items():
        feature, *names = json.loads(key)
        groups = groups_by_feature.setdefault(feature, {})
        groups |= dict.fromkeys(names, hashes)
    return groups_by_feature


def _smallest(before: Groups, after: Groups) -> int:
    """Return the smallest nonzero row count of all sums of groups before minus sums of groups after.

    Apart from the pools, groups that share no row contribute independently. Each connected part has few groups, such as
    a class before and after. So every choice of groups in a part is tried, under every choice of the pools.
    """
    first, second, common = _overlap(before, after)
    sizes, shared = np.concatenate([first, second]), np.zeros((len(first) + len(second),) * 2, np.int64)
    shared[: len(first), len(first) :] = common
    pools = [index for index, name in enumerate([*before, *after]) if name == OTHER]
    parts = _parts(shared, [index for index in range(len(sizes)) if index not in pools])
    smallest = set()
    for chosen in product((0, 1), repeat=len(pools)):
        taken = np.zeros(len(sizes), np.int64)
        taken[pools] = chosen
        remaining = sizes - (shared + shared.T) @ taken
        counts_of_parts = [
            _choice_counts(remaining[members], shared[members[:, :, None], members[:, None]]) for members in parts
        ]
        base = taken @ sizes - taken @ shared @ taken + sum(int(counts.min(1).sum()) for counts in counts_of_parts)
        excesses = [counts - counts.min(1, keepdims=True) for counts in counts_of_parts]
        smallest.add(
            int(base) or min((int(counts[counts > 0].min()) for counts in excesses if (counts > 0).any()), default=0)
        )
    return min(smallest - {0}, default=0)


def _parts(shared: np.ndarray, groups: list[int]) -> list[np.ndarray]:
    """Return the groups connected by shared rows: one array (parts, groups) for each number of groups in a part."""
    remaining, parts = {*groups}, list[list[int]]()
    while remaining:
        part, new = set[int](), {remaining.pop()}
        while new:
            part |= new
            neighbours = np.flatnonzero(shared[[*new]].any(0) | shared[:, [*new]].any(1)).tolist()
            new = {*neighbours} & remaining
            remaining -= new
        parts.append(sorted(part))
    return [np.array([part for part in parts if len(part) == size]) for size in sorted({len(part) for part in parts})]


def _choice_counts(sizes: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Count the rows of every choice of groups, (parts, choices); shared: (parts, groups, groups)."""
    choices = np.array([*product((0, 1), repeat=sizes.shape[1])])
    return sizes @ choices.T - np.einsum("cg,pgh,ch->pc", choices, shared, choices, optimize=True)


def _overlap(before: Groups, after: Groups) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the different rows of each group, and how many rows cancel for each pair of groups, (before, after).

    A row that is equally often in both cancels twice, another row that is in both once.
    """
    rows, owner, copies = _distinct(before)
    rows_after, owner_after, copies_after = _distinct(after)
    _, index, index_after = np.intersect1d(rows, rows_after, assume_unique=True, return_indices=True)
    common = np.zeros((len(before), len(after)), np.int64)
    np.add.at(common, (owner[index], owner_after[index_after]), 1 + (copies[index] == copies_after[index_after]))
    return np.bincount(owner, minlength=len(before)), np.bincount(owner_after, minlength=len(after)), common


def _distinct(groups: Groups) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the different rows of all groups, each with the index of its group and its number of copies."""
    parts = [np.unique(hashes, return_counts=True) for hashes in groups.values()]
    rows = np.concatenate([np.empty(0, np.uint64), *(part for part, _ in parts)])
    if len(np.unique(rows)) != len(rows):
        raise ValueError(f"a row is in two of the groups {sorted(groups)}")
    owner = np.repeat(np.arange(len(parts)), [len(part) for part, _ in parts])
    return rows, owner, np.concatenate([np.empty(0, np.int64), *(copies for _, copies in parts)])
