"""Whether two clients differ at all, for all pairs of very many: one pass over closed forms, on bins that all share.

What the pairs that differ most told of the features that differ most, on the bins that they were compared on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from models.shift import chi_square as test
from models.shift.client_summaries.client_summary import LEAST_ROWS, Layout, Summaries, edges, joined_bins, mixture
from models.shift.nested_tests import HIDDEN
from models.shift.pairwise_results import Findings
from models.shift.pairwise_tables import guessed, labels, most_untold

_AT_ONCE = 2**20  # bytes of the cells of one client beside a number of others


def on_shared_bins(told: Summaries, layout: Layout, most: int = 10) -> tuple[Summaries, Layout]:
    """The same with neighbouring bins of numbers joined once for all clients, so that each holds as many rows of all."""
    numeric = layout.numeric
    place = joined_bins(told.counts[:, numeric][..., : layout.bins, :].sum((0, -1)), most)
    into = (place[..., None] == np.arange(most)).astype(float)
    coarse = replace(layout, bins=most, joined=True)

    def shared(table: np.ndarray) -> np.ndarray:
        counts = np.zeros((*table.shape[:2], coarse.cells, table.shape[-1]))
        counts[..., -1, :] = table[..., -1, :]
        counts[:, numeric, :most] = np.einsum("cfbm,fbk->cfkm", table[:, numeric][..., : layout.bins, :], into)
        for at in np.flatnonzero(~numeric):
            size = len(layout.categories[at] or ()) + 1
            counts[:, at, :size] = table[:, at, :size]
        return counts

    noise = None if told.noise is None else shared(told.noise)
    return replace(told, counts=shared(told.counts), noise=noise), coarse


def chances(told: Summaries, say: Callable[[int], None] | None = None) -> np.ndarray:
    """Of every pair, in the order of `all_pairs`, how probable such differences of P(Y) or P(X | Y) are by chance alone.

    Of a pair that no class can be compared of they are of P(Y) or P(X). Counts are on shared bins, without noise; memory
    grows with the clients, not with the pairs. `say` hears how many pairs are done.
    """
    by_class, whole = _Cells.of(told.counts[..., :-1]), _Cells.of(_all_rows(told))
    features = told.counts.shape[1]
    step = max(1, _AT_ONCE // max(1, by_class.cells[0].nbytes))
    clients = len(told.rows)
    found = []
    for at in range(clients - 1):
        for start in range(at + 1, clients, step):
            others = slice(start, min(start + step, clients))
            statistic, free = _within_classes(by_class.take(at), by_class.take(others))
            apart = np.flatnonzero(~free.any(-1))
            if len(apart):
                statistic[apart], free[apart] = _within_classes(whole.take(at), whole.take(start + apart))
            least = test.chance((statistic, free)).min(-1, initial=1.0)
            found.append(np.minimum(least * features, _of_labels(told, at, others)))
        if say:
            say((at + 1) * (2 * clients - 2 - at) // 2)
    return np.minimum(2 * np.concatenate(found), 1.0) if found else np.zeros(0)


def together(told: Summaries, groups: list[list[int]]) -> Summaries:
    """Each group's clients as one: (groups)."""
    parts = [told.take(group) for group in groups]
    return Summaries(
        np.array([part.rows.sum() for part in parts]),
        np.stack([_labels_of_all(part) for part in parts]),
        np.stack([part.counts.sum(0) for part in parts]),
        np.stack([mixture(np.moveaxis(part.moments, 0, -2)) for part in parts]),
        None if told.noise is None else np.stack([told.noise[group].sum(0) for group in groups]),
    )


def _labels_of_all(told: Summaries) -> np.ndarray:
    """(classes,), NaN where nobody tells a class. Who does not is taken to have it as often as those who do, as far as that
    can be."""
    known, silent = np.nan_to_num(told.labels), np.isnan(told.labels)
    tellers = (told.rows[:, None] * ~silent).sum(0)
    share = np.divide(known.sum(0), tellers, out=np.zeros(known.shape[1]), where=tellers > 0)
    left = np.maximum(told.rows - known.sum(1), 0)
    guess = guessed(share * told.rows[:, None], most_untold(told.labels, told.rows), left)
    return np.where(silent.all(0), np.nan, known.sum(0) + guess.sum(0))


class _Cells(NamedTuple):
    """cells: (clients, features, classes, cells) float32, as are squares and `there`; of the others each (..., classes)."""

    cells: np.ndarray
    squares: np.ndarray
    rows: np.ndarray
    there: np.ndarray
    alone: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray) -> "_Cells":
        """counts: (clients, features, cells, classes)."""
        cells = np.ascontiguousarray(np.moveaxis(counts, -1, -2), np.float32)
        rows = cells.sum(-1)
        return cls(cells, cells**2, rows, cells > 0, rows >= LEAST_ROWS)

    def take(self, clients: int | slice | np.ndarray) -> "_Cells":
        return _Cells(*(part[clients] for part in self))


def _all_rows(told: Summaries) -> np.ndarray:
    """As one class, (clients, features, cells, 1); none of a feature where a client does not tell of nearly all."""
    whole = told.counts.sum(-1, keepdims=True)
    known = whole.sum((-2, -1)) >= (1 - HIDDEN) * told.rows[:, None]
    return np.where(known[..., None, None], whole, 0)


def _within_classes(one: _Cells, others: _Cells) -> tuple[np.ndarray, np.ndarray]:
    """Pearson's X² of one client beside each of the others, summed over the classes that both tell: (others, features)."""
    shares = (one.squares / (one.cells + others.cells + np.float32(1e-30))).sum(-1, dtype=np.float64)
    both = one.alone & others.alone
    total, product = one.rows + others.rows, one.rows.astype(np.float64) * others.rows
    ratio = np.divide(total**2, product, out=np.zeros_like(product), where=product > 0)
    whole = np.divide(one.rows.astype(np.float64) ** 2, total, out=np.zeros_like(product), where=total > 0)
    statistic = np.where(both, ratio * (shares - whole), 0.0).sum(-1)
    columns = (one.there | others.there).sum(-1)
    return np.maximum(statistic, 0), np.where(both, np.maximum(columns - 1, 0), 0).sum(-1)


def _of_labels(told: Summaries, at: int, others: slice) -> np.ndarray:
    count = len(told.rows[others])
    both = np.stack([np.broadcast_to(told.labels[at], (count, told.labels.shape[1])), told.labels[others]], 1)
    rows = np.stack([np.broadcast_to(told.rows[at], count), told.rows[others]], 1)
    return test.chance(test.pearson(labels(both, rows)))


PAIRS, FEATURES = 3, 2
"""That are looked at: pairs, each of other groups, and features of each."""

MUCH = 1 / 3
"""Of the largest part of a pair, or of several: what a feature needs to be said to carry a shift."""


@dataclass(frozen=True, eq=False)
class PairDetails:
    """One feature of one pair. first, second, feature: places.

    ends: (bins + 1,) of the bins of a number, from the first to the last value; values: what stands below each bin where
    there are none; joined: whether these are bins that hold as many rows of all clients. counts: (2, bins, classes), rows
    by class; shown: (classes,) bool, which of these both told.
    """

    first: int
    second: int
    feature: int
    ends: np.ndarray | None
    values: tuple[str, ...]
    joined: bool
    counts: np.ndarray
    shown: np.ndarray


def pair_details(
    told: Summaries, layout: Layout, found: Findings, groups: Sequence[Sequence[int]]
) -> tuple[PairDetails, ...]:
    """Of the worst pair of each two groups, the worst of these first; none where clients told no counts."""
    if not told.counts.shape[2]:
        return ()
    seen = []
    for pair in _worst(found, groups):
        parts, places = found.parts[pair], (int(found.first[pair]), int(found.second[pair]))
        worst = np.argsort(-parts, kind="stable")[:FEATURES].tolist()
        seen += [_close_up(told, layout, *places, at) for at in worst if parts[at] >= MUCH * parts[worst[0]]]
    return tuple(seen)


def _worst(found: Findings, groups: Sequence[Sequence[int]]) -> list[int]:
    """Of each two groups one pair with their most common verdict; those whose largest part is the largest first."""
    of = {at: number for number, group in enumerate(groups) for at in group}
    between: dict[tuple[int, ...], list[int]] = {}
    for pair in np.flatnonzero(found.verdicts.types.any(-1)).tolist():
        places = sorted((of[int(found.first[pair])], of[int(found.second[pair])]))
        between.setdefault(tuple(places), []).append(pair)
    largest = found.parts.max(-1)
    worst = []
    for pairs in between.values():
        verdicts = [tuple(found.verdicts.types[pair].tolist()) for pair in pairs]
        common = max(verdicts, key=verdicts.count)
        alike = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict == common]
        worst.append(max(alike, key=lambda pair: largest[pair]))
    return sorted(worst, key=lambda pair: -largest[pair])[:PAIRS]


def _close_up(told: Summaries, layout: Layout, first: int, second: int, feature: int) -> PairDetails:
    table, values = told.counts[[first, second], feature], layout.categories[feature]
    used = layout.bins if values is None else len(values) + 1
    cells, missing = table[:, :used], table[:, -1:]
    ends = None
    if values is not None:
        names = (*(f"{value:g}" for value in values), "other")
    elif layout.joined:
        names = tuple(str(at + 1) for at in range(used))
    else:
        cells, ends = _joined(cells, layout.low[feature], layout.high[feature])
        names = ()
    if ends is None:
        cells, names = np.concatenate([cells, missing], 1), (*names, "missing")
        there = cells.sum((0, 2)) > 0
        cells, names = cells[:, there], tuple(name for name, kept in zip(names, there.tolist(), strict=True) if kept)
    shown = ~np.isnan(told.labels[[first, second]]).any(0)
    return PairDetails(
        first, second, feature, ends, names, values is None and layout.joined, cells, np.append(shown, False)
    )


def _joined(cells: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Neighbouring bins joined as for the tests, and where the joined ones end."""
    place = joined_bins(cells.sum((0, 2)))
    fine = np.array([low, *edges(low, high, cells.shape[1]), high])
    last = np.append(np.flatnonzero(np.diff(place)), len(place) - 1)
    into = (place[:, None] == np.unique(place)).astype(float)
    held = np.flatnonzero(cells.sum((0, 2)) > 0)
    ends = np.append(low, fine[last + 1])
    if len(held):
        ends[0], ends[-1] = fine[held[0]], fine[held[-1] + 1]
    return np.einsum("cbm,bk->ckm", cells, into), ends
