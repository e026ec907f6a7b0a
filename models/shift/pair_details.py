"""What the pairs that differ most told of the features that differ most, on the bins that they were compared on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.shift.client_summaries.client_summary import Layout, Summaries, edges, joined_bins
from models.shift.pairwise_results import Findings

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
