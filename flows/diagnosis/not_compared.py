"""What a diagnosis did not compare, and why, as plain JSON: classes, features, values, pairs of features, interactions."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from flows.diagnosis.data_faults import looks_for_shared_rows
from models.diagnosis.client_summaries.client_summary import Layout, Summaries
from models.diagnosis.client_summaries.common_cells import count_common_cells
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.client_summaries.rank_correlations import LEAST_PAIR_ROWS, MOST_FEATURES
from models.diagnosis.shared_rows import chance_to_find_half
from tasks.diagnosis.compare_feature_pairs import FeaturePairs
from tasks.diagnosis.compare_silos import Comparison
from tasks.tracking.result_types.diagnosis_result import ClassNotCompared, NotCompared

_Kind = Literal["targets", "feature", "values", "feature pairs", "interactions", "shared rows", "rest"]


def not_compared(
    comparison: Comparison,
    query: Query,
    summaries: Summaries,
    feature_pairs: FeaturePairs | None,
    least: Mapping[str, int],
    by_unit: bool = False,
    second_look: bool = False,
    persons: Sequence[str] = (),
) -> list[ClassNotCompared | NotCompared]:
    """List what was not compared.

    Every entry has `what`, `why`, `names` and `silos`. `what` is class, class in cells, targets, feature, values, feature
    pairs, interactions, shared rows or rest. `names` are classes (by index) or features; if it is empty, all are meant, and
    likewise `silos`.
    summaries: of the comparison's clients; least: the least rows of each client's policy; by_unit: whether rows are
    counted by unit; second_look: whether pairs had one; persons: the silos whose rows look like several of each person.
    """
    clients, layout = comparison.clients, query.layout
    return [
        *(_pooled_targets if layout.targets else _rare_classes)(summaries, clients, least),
        *_features(comparison, layout),
        *_in_one_common_cell(comparison, summaries, layout),
        *_far_values(feature_pairs, query, clients),
        *_feature_pairs(comparison, query, summaries, feature_pairs, by_unit),
        *_shared_rows(comparison, query, summaries, persons, by_unit),
        *([_entry("rest", "the second look is at pairs, so one silo against all others is not refined")] * second_look),
    ]


def _entry(what: _Kind, why: str, names: list[str] | None = None, silos: list[str] | None = None) -> NotCompared:
    return {"what": what, "why": why, "names": names or [], "silos": silos or []}


def _shared_rows(
    comparison: Comparison, query: Query, summaries: Summaries, persons: Sequence[str], by_unit: bool
) -> list[NotCompared]:
    """List shared rows if half of a silo in another would mostly be missed, even by the two largest silos."""
    if len(comparison.clients) < 2 or not looks_for_shared_rows(comparison, query, persons, by_unit):
        return []
    one, other = np.argsort(-summaries.rows, kind="stable")[:2].tolist()
    chance = chance_to_find_half(summaries, one, other, len(comparison.pairs.first))
    return [_entry("shared rows", "features have too few values")] if chance < _MOSTLY else []


_MOSTLY = 0.5


def _pooled_targets(
    summaries: Summaries, clients: tuple[str, ...], least: Mapping[str, int]
) -> list[ClassNotCompared | NotCompared]:
    """List the silos that report one pool of a regression's targets, or none; small groups are pooled with others."""
    if summaries.noise is not None:
        return []
    pooled = np.isfinite(summaries.moments).any((1, 2, 3))
    withheld = np.isnan(summaries.labels).all(1)
    few, silent = ([clients[i] for i in np.flatnonzero(withheld & (pooled == reported))] for reported in (True, False))
    why = "only the mean and spread, since few lie in other groups"
    return [
        *([_entry("targets", why, silos=few)] if few else []),
        *([_entry("targets", _too_few(silent, least), silos=silent)] if silent else []),
    ]


def _rare_classes(
    summaries: Summaries, clients: tuple[str, ...], least: Mapping[str, int]
) -> list[ClassNotCompared | NotCompared]:
    """List classes of too few different rows at a silo to report them, or to count them in cells.

    A silo without unreported rows has none of a class that it does not report.
    """
    if summaries.noise is not None:
        return []
    withheld = np.isnan(summaries.labels)
    some = summaries.rows - np.nan_to_num(summaries.labels).sum(-1) > 0
    counted: np.ndarray = np.any(summaries.counts, axis=(1, 2))
    in_no_cell = (np.nan_to_num(summaries.labels) > 0) & ~counted[:, :-1] & counted.any(1, keepdims=True)
    entries = list[ClassNotCompared | NotCompared]()
    for index in range(withheld.shape[1]):
        few, shares = (
            [clients[i] for i in np.flatnonzero(mask)] for mask in (withheld[:, index] & some, in_no_cell[:, index])
        )
        if few:
            entries.append({"what": "class", "why": _too_few(few, least), "names": [index], "silos": few})
        if shares:
            entries.append({"what": "class in cells", "why": "few rows", "names": [index], "silos": shares})
    return entries


def _too_few(silos: list[str], least: Mapping[str, int]) -> str:
    numbers = [least[silo] for silo in silos]
    return f"fewer than {' to '.join(map(str, sorted({min(numbers), max(numbers)})))} different rows"


def _features(comparison: Comparison, layout: Layout) -> list[NotCompared]:
    missing, entries = comparison.missing, list[NotCompared]()
    for mask, why in (
        (missing.absent, "no value"),
        (missing.withheld, "too few values in a class"),
        (missing.merged, "too few rows of a class for two cells"),
    ):
        for feature in np.flatnonzero(mask.any(0)).tolist():
            silos = [comparison.clients[i] for i in np.flatnonzero(mask[:, feature])]
            entries.append(_entry("feature", why, [layout.names[feature]], silos))
    crowded = [layout.names[i] for i in np.flatnonzero(missing.crowded)]
    return [*entries, *([_entry("feature", "nearly all values in one or two bins", crowded)] if crowded else [])]


def _in_one_common_cell(comparison: Comparison, summaries: Summaries, layout: Layout) -> list[NotCompared]:
    """List features with one cell in common, by all silos of such pairs; silos that have one cell are listed already."""
    if comparison.of_groups:  # in cells of all
        return []
    clients = np.stack([comparison.pairs.first, comparison.pairs.second], 1)
    lost = (count_common_cells(summaries, clients) == 1) & ~comparison.missing.merged[clients].any(1)
    entries = list[NotCompared]()
    for feature in np.flatnonzero(lost.any(0)).tolist():
        silos = [comparison.names[i] for i in np.unique(clients[lost[:, feature]])]
        entries.append(_entry("feature", "one cell in common", [layout.names[feature]], silos))
    return entries


def _far_values(feature_pairs: FeaturePairs | None, query: Query, clients: tuple[str, ...]) -> list[NotCompared]:
    """List values far from all others, and codes for missing values; `rows` by silo: those below and those above.

    Without counts, silos replace them before they report, and report no numbers of them.
    """
    if feature_pairs is None:
        why = "those far from all others count as values near them, and are not listed"
        return [] if query.counts else [_entry("values", why)]
    entries, names = list[NotCompared](), (*query.layout.names, "the target")
    for feature in np.flatnonzero(feature_pairs.far.any((0, 2))).tolist():
        rows = {clients[i]: feature_pairs.far[i, feature].tolist() for i in range(len(clients))}
        rows = {client: far for client, far in rows.items() if any(far)}
        entries.append(
            {**_entry("values", "far from all others, or a code", [names[feature]], list(rows)), "rows": rows}
        )
    return entries


def _feature_pairs(
    comparison: Comparison, query: Query, summaries: Summaries, feature_pairs: FeaturePairs | None, by_unit: bool
) -> list[NotCompared]:
    layout = query.layout
    if feature_pairs is None:
        guarded = "rows are counted by unit" if by_unit else "only the verdict guarded compares them"
        why = "noise" if query.rho else "pictures" if query.pictures else guarded
        return [_entry("feature pairs", why), _entry("interactions", why)]
    entries = list[NotCompared]()
    chosen = set(feature_pairs.correlations.features.tolist())
    others = [name for index, name in enumerate(layout.names) if index not in chosen]
    if others:
        entries.append(_entry("feature pairs", f"more than {MOST_FEATURES} features, or constant", others))
    silent = ~np.isfinite(feature_pairs.correlations.values).any((1, 2))
    if len(chosen) > 1 and silent.any():
        silos = [comparison.clients[i] for i in np.flatnonzero(silent)]
        entries.append(_entry("feature pairs", "the silo reports none", silos=silos))
    few = (np.nan_to_num(summaries.labels) > 0) & ~np.isfinite(feature_pairs.correlations.values[..., :-1]).any(1)
    # a silo that reports nothing is listed above, and not once more for each class
    few &= ~silent[:, None]
    for index in np.flatnonzero(few.any(0)).tolist() if len(chosen) > 1 else []:
        silos = [comparison.clients[i] for i in np.flatnonzero(few[:, index])]
        why = f"fewer than {LEAST_PAIR_ROWS} different rows of class {index}"
        entries.append(_entry("feature pairs", why, silos=silos))
    ordered = [layout.names[i] for i in chosen if len(layout.categories[i] or ()) > 2]
    if ordered:
        entries.append(_entry("feature pairs", "categories only by their order", sorted(ordered)))
    shifted = comparison.pairs.verdicts.types[:, 0]
    if shifted.any():
        names = comparison.names
        pairs = zip(comparison.pairs.first[shifted].tolist(), comparison.pairs.second[shifted].tolist(), strict=True)
        silos = sorted({name for a, b in pairs for name in (names[a], names[b])})
        entries.append(_entry("interactions", "inputs differ", silos=silos))
    if len(layout.names) > 2:
        entries.append(_entry("interactions", "of more than two features"))
    return entries
