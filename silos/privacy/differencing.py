"""Check whether the difference of two reports without noise would reveal a few rows.

A report gives sums over groups of rows. A group is a class, or the pool of classes that were too small. An attacker
with two reports subtracts groups of one from groups of the other. The result is a sum over the rows that were removed,
less a sum over the rows that were added. A single removed row shows by its sign, however many were added. So each of the
two must be none, or LEAST_ROWS or more.

They are counted in whole rows with their class, for all choices of groups (`smallest_difference`), and in every column by
itself (`smallest_change`): in the cells of a column of the source, and in the bins of a feature. Cells that are in both
reports cancel. So a change of few rows in one column shows under changes of many rows in other columns, and so does a row
that left while others were given another class.

Where a row names its unit (such as a patient), units are counted: ten rows of one unit are one. Otherwise copies of a
row count once, since a sum over ten copies reveals the row.

Not checked are:
- sums over three or more reports: each two of X, X + D, X + E and X + D + E + {r} may differ by ten rows, while all four
  together reveal r;
- rows of which every cell was written differently in between; no cells of both are equal then.

Noise protects against these. The total number of rows is not a sum over groups, and is always reported; it reveals how
many rows are in no group.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from silos.raw_cells import MOST_TOKEN

LEAST_ROWS = 10
"""The least number of different rows that a difference must cover."""

OTHER = "\0"
"""The group of pooled classes; no class has this name."""

ROW, IN_BINS = "\0row", "\0bins"
"""The column of whole rows, and the end of the name of a feature's column of bins; no feature's name has these."""

_UNUSED = np.uint32(2**32 - 1)


@dataclass(frozen=True, eq=False)
class Values:
    """The cells behind a report, in columns that are compared one by one.

    columns: by name; the last is ROW; groups: classes and OTHER; sizes: (columns, groups) the numbers of values; tokens:
    (values,) uint32, by columns, groups and size: 4 times a number that is equal for equal values of a column, and the
    copies of the row before it, at most 2; units: (values,) uint64, the units of rows, None if they have none; bins: by
    feature, what identifies its bins; unit: the column of units, since those of two columns cannot be compared.
    """

    columns: tuple[str, ...]
    groups: tuple[str, ...]
    sizes: np.ndarray
    tokens: np.ndarray
    units: np.ndarray | None = None
    bins: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""

    @classmethod
    def of(
        cls,
        columns: Sequence[str],
        tokens: np.ndarray,
        used: np.ndarray,
        group: np.ndarray,
        groups: Sequence[str],
        rows: np.ndarray,
        units: np.ndarray | None = None,
        bins: Mapping[str, str] | None = None,
        unit: str = "",
    ) -> "Values":
        """Collect the tokens of rows, sorted to hide the order of rows.

        tokens: (rows, columns), at most MOST_TOKEN; used: (rows, columns) bool, values that are reported; group: (rows,) the
        index in `groups`, or -1 of rows that are not reported; rows: (rows,) uint64, equal for equal rows of a class; units:
        (rows,) uint64.
        """
        columns = [*columns, ROW]
        tokens = np.column_stack([tokens, np.minimum(rows >> np.uint64(34), MOST_TOKEN)])
        used = np.column_stack([used, np.ones(len(rows), bool)])
        copy = np.minimum(_copies_before(rows), 2).astype(np.uint32)
        marked = np.where(used, tokens.astype(np.uint32) << np.uint32(2) | copy[:, None], _UNUSED)
        of_group = [np.flatnonzero(group == at) for at in range(len(groups))]
        sizes = np.array([used[at].sum(0) for at in of_group], np.int64).reshape(len(groups), len(columns)).T
        if units is None:
            # each column is sorted by itself, so that the file does not show which values belong to one row
            by_group, units_by_group = [np.sort(marked[at], axis=0) for at in of_group], list[np.ndarray]()
        else:
            orders = [np.argsort(marked[at], axis=0, kind="stable") for at in of_group]
            by_group = [np.take_along_axis(marked[at], order, 0) for at, order in zip(of_group, orders, strict=True)]
            units_by_group = [units[at][order] for at, order in zip(of_group, orders, strict=True)]
        flat, flat_units = (
            # the empty part lets a report without groups through, since concatenate needs one array
            np.concatenate([*parts, np.empty((0, len(columns)), kind)]).T.ravel()
            for parts, kind in ((by_group, np.uint32), (units_by_group, np.uint64))
        )
        kept = flat != _UNUSED
        return cls(
            tuple(columns),
            tuple(groups),
            sizes,
            flat[kept],
            None if units is None else flat_units[kept],
            dict(bins or {}),
            unit,
        )

    @classmethod
    def read(cls, arrays: Mapping[str, np.ndarray]) -> "Values":
        """Restore what `arrays` returned."""
        kept = json.loads(arrays["names"].tobytes())
        columns, groups = tuple(kept["columns"]), tuple(kept["groups"])
        return cls(columns, groups, arrays["sizes"], arrays["tokens"], arrays.get("units"), kept["bins"], kept["unit"])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays to store."""
        names = {"columns": self.columns, "groups": self.groups, "bins": dict(self.bins), "unit": self.unit}
        arrays = {
            "names": np.frombuffer(json.dumps(names).encode(), np.uint8),
            "sizes": self.sizes,
            "tokens": self.tokens,
        }
        return arrays if self.units is None else arrays | {"units": self.units}

    def check(self, least: int = LEAST_ROWS) -> None:
        """Raise ValueError for a group with fewer than `least` different rows or units."""
        ids, group, units = self.rows()
        for at, name in enumerate(self.groups):
            if len(np.unique((ids if units is None else units)[group == at])) < least:
                raise ValueError(f"class {name!r} would be reported, and has fewer than {least} different rows")

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return the identity of each row, the index of its group, and its unit or None."""
        _, tokens, group, units = self.flat([ROW], {name: at for at, name in enumerate(self.groups)})
        return tokens >> np.uint32(2), group, units

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.sizes.sum(1))

    def column(self, name: str) -> slice:
        """Return where the values of a column are."""
        at = self.columns.index(name)
        return slice(self._ends[at] - self.sizes[at].sum(), self._ends[at])

    def distinct(self, name: str) -> np.ndarray:
        """Return the numbers of a column's different values."""
        return np.unique(self.tokens[self.column(name)] >> np.uint32(2))

    def flat(self, names: Sequence[str], merged: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
        """Return for each value of these columns the column's index in `names`, token, merged group, and unit or None."""
        at = [self.columns.index(name) for name in names]
        index = np.concatenate([np.arange(*self.column(name).indices(len(self.tokens))[:2]) for name in names])
        column = np.repeat(np.arange(len(at)), self.sizes[at].sum(1))
        group = np.repeat(np.tile([merged[name] for name in self.groups], len(at)), self.sizes[at].ravel())
        return column, self.tokens[index], group, None if self.units is None else self.units[index]


def _copies_before(hashes: np.ndarray) -> np.ndarray:
    """Return how many equal hashes come before each: (rows,)."""
    order = np.argsort(hashes, kind="stable")
    starts = np.flatnonzero(np.diff(hashes[order], prepend=~hashes[order[:1]]))
    before = np.empty(len(hashes), np.int64)
    before[order] = np.arange(len(hashes)) - np.repeat(starts, np.diff(starts, append=len(hashes)))
    return before


def smallest_difference(before: Values, after: Values) -> int:
    """Return the fewest whole rows, above 0, that any groups of one report less groups of the other leave; 0 if none do.

    For each group of one report, either some of its rows are in no group of the other report; these remain, whatever
    is chosen there. Or all its rows are in the other's groups; then the fewest remain if one of them is not chosen.
    """
    return min((size for pair in ((before, after), (after, before)) for size in _left(*pair)), default=0)


def _left(report: Values, other: Values) -> Iterator[int]:
    """Yield for each group of a report how many rows or units remain at least, if any can."""
    (ids, group, units), (other_ids, other_group, _) = (each.rows() for each in (report, other))
    (rows, at, copies), (theirs, their_at, their_copies) = (
        np.unique(each, return_index=True, return_counts=True) for each in (ids, other_ids)
    )
    _, mine, same = np.intersect1d(rows, theirs, assume_unique=True, return_indices=True)
    cancels = copies[mine] <= their_copies[same]
    partner, group_of_row = np.full(len(rows), -1), group[at]
    partner[mine[cancels]] = other_group[their_at[same[cancels]]]
    for each in np.unique(group_of_row):
        members = group_of_row == each
        alone = members & (partner < 0)
        parts = [alone] if alone.any() else [members & (partner == one) for one in np.unique(partner[members])]
        for part in parts:
            yield int(part.sum()) if units is None else len(np.unique(units[np.isin(ids, rows[part])]))


def smallest_change(before: Values, after: Values) -> int:
    """Return the fewest values, above 0, that the difference of one column removes or adds; 0 if no column changed.

    Columns are compared for each class, and for classes together, since rows may be given another class. A class that
    one report has alone is compared together with the pool, into which it may have moved.
    """
    merged = _merged_groups(before.groups, after.groups)
    changes = (_changes(names, before, after, merged) for names in _chunks(before, after))
    return min((size for each in changes if each and (size := each.smallest())), default=0)


def renamed_as(before: Values, after: Values) -> Values:
    """Return `after` with the names of `before` for columns that have the same values under another name.

    A column is found by LEAST_ROWS values in common, of different columns by the most. Columns of an archive are named by
    their place, which changes if one is left out.
    """
    features = [[name for name in each.columns if not name.endswith((IN_BINS, ROW))] for each in (before, after)]
    kept = {name for name in features[1] if name in before.columns and _common(name, before, after)}
    left = {name: before.distinct(name) for name in features[0] if name not in kept}
    names = dict[str, str]()
    for name in (name for name in features[1] if name not in kept and left):
        mine = after.distinct(name)
        common = {other: len(np.intersect1d(mine, values, assume_unique=True)) for other, values in left.items()}
        most = max(common, key=lambda other: common[other])
        if common[most] >= LEAST_ROWS and most != name:
            names[name] = most
            del left[most]
    if not names:
        return after
    names |= {name: f"{name}\0other" for name in {*names.values()} & {*features[1]} - names.keys()}
    names |= {f"{name}{IN_BINS}": f"{other}{IN_BINS}" for name, other in names.items()}
    columns = tuple(names.get(name, name) for name in after.columns)
    return replace(after, columns=columns, bins={names.get(name, name): bins for name, bins in after.bins.items()})


def other_bins(before: Values, after: Values) -> list[str]:
    """Return the features that both reports count in bins, of common values and in different bins; "" for targets.

    Values are common if LEAST_ROWS different ones are in both reports, or all of a column that has fewer. Of targets,
    those of any column count.
    """
    differ = [name for name, bins in after.bins.items() if before.bins.get(name, bins) != bins]
    return [name for name in differ if any(_common(each, before, after) for each in _values_of(name, before))]


def _values_of(feature: str, values: Values) -> list[str]:
    """Return the columns that show whether values of a feature, or of "" for targets, are the same."""
    return [name for name in values.columns if name in (feature, ROW) or (not feature and not name.endswith(IN_BINS))]


def _common(name: str, before: Values, after: Values) -> bool:
    if name not in after.columns:
        return False
    first, second = (values.distinct(name) for values in (before, after))
    return len(np.intersect1d(first, second, assume_unique=True)) >= max(1, min(LEAST_ROWS, len(first)))


_CHUNK = 1 << 19  # values that are compared together
_MOST_GROUPS = 6  # of which all choices are compared; of more, each alone, each two, and all
_MOST_IN_PAIRS = 100


def _merged_groups(before: Sequence[str], after: Sequence[str]) -> dict[str, int]:
    """Return the index by which each group is compared: classes of one report alone have that of the pool."""
    common = sorted({*before} & {*after} - {OTHER})
    return {name: common.index(name) if name in common else len(common) for name in {*before, *after}}


def _chunks(before: Values, after: Values) -> Iterator[list[str]]:
    """Yield the columns that differ, but that of whole rows, some at a time."""
    chunk, size = list[str](), 0
    # cells of other bins are other cells; of common values they are refused (`other_bins`)
    both = [name for name in after.columns[:-1] if name in before.columns and _has_same_bins(name, before, after)]
    for name in (name for name in both if not _same(name, before, after)):
        parts = [values.column(name) for values in (before, after)]
        added = sum(int(part.stop - part.start) for part in parts)
        if chunk and size + added > _CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk, size = [*chunk, name], size + added
    if chunk:
        yield chunk


def _has_same_bins(name: str, before: Values, after: Values) -> bool:
    column = name.removesuffix(IN_BINS)
    return column == name or before.bins.get(column) == after.bins.get(column)


def _same(name: str, before: Values, after: Values) -> bool:
    (first, one), (second, two) = ((values, values.column(name)) for values in (before, after))
    sizes = [values.sizes[values.columns.index(name)] for values in (before, after)]
    return (
        before.groups == after.groups
        and np.array_equal(*sizes)
        and np.array_equal(first.tokens[one], second.tokens[two])
        and (first.units is None or second.units is None or np.array_equal(first.units[one], second.units[two]))
    )


@dataclass(frozen=True, eq=False)
class _Changes:
    """Values of which one group of a report has more than the other report's, ordered by column.

    column: (values,) indices; group: (values,) indices below `groups`; identity: (values,), equal for equal values of a
    column; more, more_rows: (values,) how many more the second report has, of all rows and without further copies; units:
    (values,), None unless both reports name them, of one column; in_bins: (values,) bool, of columns of bins.
    """

    column: np.ndarray
    group: np.ndarray
    identity: np.ndarray
    more: np.ndarray
    more_rows: np.ndarray
    units: np.ndarray | None
    in_bins: np.ndarray
    groups: int

    def smallest(self) -> int:
        """Return the fewest rows that a column lost or got in a choice of groups."""
        segment = self.column * self.groups + self.group
        order = np.argsort(segment, kind="stable")
        sizes = [self._smallest(segment[order], self.more[order], self.more_rows[order], order)]
        for chosen in self._together():
            inside = np.flatnonzero(np.isin(self.group, chosen))
            # column by column, and equal values of a column one after the other
            order = inside[np.lexsort((self.identity[inside], self.column[inside]))]
            starts = np.flatnonzero(np.diff(self.identity[order], prepend=self.identity[order[:1]] + np.uint64(1)))
            more, more_rows = (np.add.reduceat(each[order], starts) for each in (self.more, self.more_rows))
            sizes.append(self._smallest(self.column[order[starts]], more, more_rows, order[starts]))
        return min((size for size in sizes if size), default=0)

    def _smallest(self, segment: np.ndarray, more: np.ndarray, more_rows: np.ndarray, at: np.ndarray) -> int:
        """Return the fewest rows that a segment, a part of the values in order, lost or got; 0 if none did."""
        starts, sizes = np.flatnonzero(np.diff(segment, prepend=-1)), list[int]()
        for sign in (-1, 1):
            moved = sign * more > 0
            if self.units is None:
                rows = np.add.reduceat(np.where(moved, np.maximum(sign * more_rows, 0), 0), starts)
            else:
                parts = zip(np.split(self.units[at], starts[1:]), np.split(moved, starts[1:]), strict=True)
                rows = np.array([len(np.unique(units[each])) for units, each in parts])
            changed = np.logical_or.reduceat(moved, starts)
            sizes += [int(np.maximum(rows, 1)[changed].min())] if changed.any() else []
        return min(sizes, default=0)

    def _may_have_moved(self) -> bool:
        """Return whether rows may have moved between groups, such as rows that were given another class.

        In a column of mostly different values, one of them is then in another group. Without such a column, they may.
        """
        found = list[bool]()
        for column in np.unique(self.column[~self.in_bins]).tolist():
            inside = self.column == column
            identity, index = np.unique(self.identity[inside], return_inverse=True)
            more = self.more[inside]
            if 2 * len(identity) >= np.abs(more).sum():
                lost, got = (np.bincount(index.ravel(), sign * more > 0, len(identity)) > 0 for sign in (-1, 1))
                found.append(bool((lost & got).any()))
        return any(found) or not found

    def _together(self) -> list[list[int]]:
        """Return the choices of several groups that are compared.

        Only groups that lost values and groups that got some hide a change if they are counted together.
        """
        if not self._may_have_moved():
            return []
        groups = np.unique(self.group).tolist()
        lost, got = ({*self.group[sign * self.more > 0].tolist()} for sign in (-1, 1))
        several = [[*two] for two in combinations(groups, 2)] if len(groups) <= _MOST_IN_PAIRS else []
        if len(groups) <= _MOST_GROUPS:
            several += [[*some] for size in range(3, len(groups)) for some in combinations(groups, size)]
        several += [groups] if len(groups) > 2 else []
        return [some for some in several if lost & {*some} and got & {*some}]


def _changes(names: Sequence[str], before: Values, after: Values, merged: Mapping[str, int]) -> _Changes | None:
    """Compare these columns; None if all values are in both reports equally often."""
    parts = [values.flat(names, merged) for values in (before, after)]
    column, token, group = (np.concatenate([part[at] for part in parts]) for at in range(3))
    units = [part[3] for part in parts if part[3] is not None]
    unit = np.concatenate(units) if len(units) == len(parts) and before.unit == after.unit else None
    counted = (token & 3) < 2  # a row, and once more that it has copies
    identity = column.astype(np.uint64) << np.uint64(32) | token >> np.uint32(2)
    if unit is not None:
        identity = identity * np.uint64(0x9E3779B97F4A7C15) ^ unit
    width = max(merged.values(), default=0) + 1
    cell = identity ^ group.astype(np.uint64) << np.uint64(48)
    _, first, index = np.unique(cell, return_index=True, return_inverse=True)
    sign = np.where(np.arange(len(token)) < len(parts[0][0]), -1, 1)
    more, more_rows = (np.bincount(index.ravel(), weights, len(first)) for weights in (sign, sign * counted))
    changed = np.flatnonzero(more)
    if not len(changed):
        return None
    changed = changed[np.argsort(column[first[changed]], kind="stable")]
    at = first[changed]
    of_units = None if unit is None else unit[at]
    in_bins = np.array([name.endswith(IN_BINS) for name in names])[column[at]]
    return _Changes(column[at], group[at], identity[at], more[changed], more_rows[changed], of_units, in_bins, width)
