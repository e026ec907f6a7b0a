"""Screening of very many clients for pairs that differ, in closed form on shared bins, and details of the worst pairs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from models.diagnosis import chi_square as test
from models.diagnosis.client_summaries.client_summary import (
    LEAST_ROWS,
    Layout,
    Summaries,
    divide_or_zero,
    inner_edges,
    merged_bin_index,
    mixture,
    own_cells,
)
from models.diagnosis.client_summaries.common_cells import counts_of_pairs, in_common_cells, join_cells
from models.diagnosis.diagnose_pairs import Findings
from models.diagnosis.guarded_tests import LEAST_EFFECT, MAX_UNREPORTED
from models.diagnosis.merged_tables import impute_labels, impute_rows, max_unreported

from .shift_words import InsideTest

_BATCH_BYTES = 2**19  # of one sum for each class of the clients that one client is compared with at once: cache


def merge_shared_bins(summaries: Summaries, layout: Layout, max_bins: int = 10) -> tuple[Summaries, Layout]:
    """Merge neighbouring bins once for all clients, so that each holds about as many rows of all clients."""
    summaries = replace(in_common_cells(summaries), counted_in=None)
    numeric = layout.numeric
    merged = merged_bin_index(summaries.counts[:, numeric][..., : layout.bins, :].sum((0, -1)), max_bins)
    assignment = (merged[..., None] == np.arange(max_bins)).astype(float)
    coarse = replace(layout, bins=max_bins, joined=True)

    def merge(table: np.ndarray) -> np.ndarray:
        counts = np.zeros((*table.shape[:2], coarse.cells, table.shape[-1]))
        counts[..., -1, :] = table[..., -1, :]
        for of_client, merged_counts in zip(table, counts, strict=True):  # one by one, since a copy takes much memory
            fine = of_client[numeric][:, : layout.bins]
            merged_counts[numeric, :max_bins] = np.einsum("fbm,fbk->fkm", fine, assignment)
        for index in np.flatnonzero(~numeric):
            size = len(layout.categories[index] or ()) + 1
            counts[:, index, :size] = table[:, index, :size]
        return counts

    noise = None if summaries.noise is None else merge(summaries.noise)
    return replace(summaries, counts=merge(summaries.counts), noise=noise), coarse


def pair_p_values(summaries: Summaries, report_progress: Callable[[int], None] | None = None) -> np.ndarray:
    """Return the p-value of the difference of every pair in P(Y) or P(X | Y), in the order of `all_pairs`.

    If no class can be compared, P(X) replaces P(X | Y). Counts are on shared bins, without noise. Memory grows with
    the number of clients, not of pairs. `report_progress` receives the number of finished pairs.
    """
    by_class, pooled = _Cells.from_counts(summaries.counts[..., :-1]), None
    features = summaries.counts.shape[1]
    step = max(1, _BATCH_BYTES // max(1, 8 * by_class.rows[0].size))
    clients = len(summaries.rows)
    p_values = []
    for first in range(clients - 1):
        shape = clients - first - 1, features
        statistic, dof = np.empty(shape), np.empty(shape, np.int64)
        for start in range(first + 1, clients, step):
            others = np.s_[start : start + step]
            chunk = np.s_[start - first - 1 : start - first - 1 + step]
            statistic[chunk], dof[chunk] = _within_classes(by_class, first, others)
        untested = np.flatnonzero(~dof.any(-1))
        if len(untested):
            pooled = pooled or _Cells.from_counts(_all_rows(summaries))
            statistic[untested], dof[untested] = _within_classes(pooled, first, first + 1 + untested)
        of_labels = _label_p_value(summaries, first, slice(first + 1, clients))
        p_values.append(np.minimum(_least_p_value(statistic, dof) * features, of_labels))
        if report_progress:
            report_progress((first + 1) * (2 * clients - 2 - first) // 2)
    return np.minimum(2 * np.concatenate(p_values), 1.0) if p_values else np.zeros(0)


_UPPER_TAIL = 0.1  # p-values up to this are of quantiles for which `_least_p_value` may leave out features


def _least_p_value(statistic: np.ndarray, dof: np.ndarray) -> np.ndarray:
    """Return the least p-value over features: (pairs,), from (pairs, features); 1 if no feature is tested.

    A p-value costs far more than a test. A quantile of an upper tail grows by more than one with a degree of freedom, but
    by less than in proportion. So a feature cannot have a lower p-value than another one with more degrees of freedom and
    as large a statistic for each, or with fewer of them and a statistic that exceeds them by as much.
    """
    rank = np.sqrt(2 * statistic) - np.sqrt(np.maximum(2 * dof - 1, 0))  # about normal, after Fisher
    best = np.where(dof > 0, rank, -np.inf).argmax(-1)[:, None]
    of_best, dof_of_best = np.take_along_axis(statistic, best, -1), np.take_along_axis(dof, best, -1)
    least = test.p_value((of_best, dof_of_best))
    may_be_lower = np.where(
        dof < dof_of_best, statistic * dof_of_best > of_best * dof, statistic - dof > of_best - dof_of_best
    )
    may_be_lower = (may_be_lower | (least > _UPPER_TAIL)) & (dof > 0)
    pair, feature = np.nonzero(may_be_lower)
    np.minimum.at(least[:, 0], pair, test.p_value((statistic[pair, feature], dof[pair, feature])))
    return least[:, 0]


def combine_groups(summaries: Summaries, groups: list[list[int]]) -> Summaries:
    """Combine the clients of each group: (groups)."""
    parts = [in_common_cells(summaries.take(group)) for group in groups]
    return Summaries(
        np.array([part.rows.sum() for part in parts]),
        np.stack([_labels_of_all(part) for part in parts]),
        np.stack([part.counts.sum(0) for part in parts]),
        np.stack([mixture(np.moveaxis(part.moments, 0, -2)) for part in parts]),
        None if summaries.noise is None else np.stack([summaries.noise[group].sum(0) for group in groups]),
        None if summaries.counted_in is None else np.stack([own_cells(part)[0] for part in parts]),
    )


def _labels_of_all(summaries: Summaries) -> np.ndarray:
    """Return the rows of each class over all clients, (classes,); NaN if no client reports the class.

    Clients that do not report a class are imputed to have it as often as those that do, as far as possible.
    """
    labels, withheld = np.nan_to_num(summaries.labels), np.isnan(summaries.labels)
    reporting_rows = (summaries.rows[:, None] * ~withheld).sum(0)
    share = np.divide(labels.sum(0), reporting_rows, out=np.zeros(labels.shape[1]), where=reporting_rows > 0)
    unreported = np.maximum(summaries.rows - labels.sum(1), 0)
    imputed = impute_rows(share * summaries.rows[:, None], max_unreported(summaries.labels, summaries.rows), unreported)
    return np.where(withheld.all(0), np.nan, labels.sum(0) + imputed.sum(0))


INSIDE: tuple[InsideTest, ...] = ("labels", "inputs_in_classes")
"""The tests of whether the clients of a group are alike: P(Y), and P(X | Y) of the feature that differs most."""


def compare_inside(summaries: Summaries, groups: list[list[int]]) -> np.ndarray:
    """Test whether the clients of each group are alike, all together: p-values, (groups, 2) in the order of INSIDE.

    Two clients may be too small to differ while many of them do. A p-value is 1 if the differences between two clients
    are small on average, φ below LEAST_EFFECT, and under noise, for which the distribution does not hold.
    """
    p_values = np.ones((len(groups), len(INSIDE)))
    if summaries.noise is not None:
        return p_values
    for index, group in enumerate(groups):
        if len(group) < 2:
            continue
        part = in_common_cells(summaries.take(group))
        labels = np.where(np.isnan(part.labels).any(0), 0.0, part.labels)  # of other classes the sum is known
        labels = np.concatenate([labels, np.maximum(part.rows - labels.sum(-1), 0)[:, None]], -1)
        p_values[index, 0] = homogeneity(labels[:, None, :, None])[0]
        if part.counts.shape[2]:
            p_values[index, 1] = min(1.0, homogeneity(part.counts[..., :-1]).min() * part.counts.shape[1])
    return p_values


def homogeneity(counts: np.ndarray, least_effect: float = LEAST_EFFECT) -> np.ndarray:
    """Return p-values of equal shares of cells at all clients: (features,); counts: (clients, features, cells, classes).

    The test is Pearson's X² summed over classes; 1 if φ of two clients is below `least_effect` on average. Its distribution
    is a multiple of chi-square with the variance of `homogeneity_moments`.
    """
    statistic, mean, variance, size = homogeneity_moments(counts)
    scale = divide_or_zero(variance, 2 * mean)
    effect = np.sqrt(2 * np.maximum(statistic - mean, 0) * divide_or_zero(1.0, size))
    p_value = test.p_value((divide_or_zero(statistic, scale), divide_or_zero(mean, scale)))
    return np.where(effect >= least_effect, p_value, 1.0)


def homogeneity_moments(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return X² of equal shares of cells, summed over classes, its mean and variance, and the rows: (features,) each.

    Cells with fewer than one row a client are pooled. The variance of X² is that with fixed margins (Haldane 1940).
    """
    counts = np.moveaxis(counts, -1, -2)
    counts = counts * (counts.sum(-1, keepdims=True) >= LEAST_ROWS)
    clients = (counts.sum(-1) > 0).sum(0)
    cell = counts.sum(0)
    rare = (cell > 0) & (cell < clients[..., None])
    pooled = np.where(rare, counts, 0.0).sum(-1, keepdims=True)
    counts = np.where(rare, 0.0, counts) + pooled * (np.arange(counts.shape[-1]) == cell.argmax(-1)[..., None])
    rows, cell = counts.sum(-1), counts.sum(0)
    total, cells = cell.sum(-1), (cell > 0).sum(-1)
    tested = (clients > 1) & (cells > 1)
    squares = (counts**2 * divide_or_zero(1.0, rows)[..., None]).sum(0)
    statistic = total * divide_or_zero(squares, cell).sum(-1) - total
    mean = (clients - 1) * (cells - 1)
    of_rows = (total * divide_or_zero(1.0, rows).sum(0) - clients**2) / np.maximum(total - 2, 1)
    of_cells = (total * divide_or_zero(1.0, cell).sum(-1) - cells**2) / np.maximum(total - 2, 1)
    rest_of_rows = (clients - 1) * (total - clients) / np.maximum(total - 1, 1) - of_rows
    rest_of_cells = (cells - 1) * (total - cells) / np.maximum(total - 1, 1) - of_cells
    variance = 2 * total / np.maximum(total - 3, 1) * rest_of_rows * rest_of_cells
    variance += total**2 / np.maximum(total - 1, 1) * of_rows * of_cells
    size = total * (1 - 1 / np.maximum(clients, 1))
    parts = (np.where(tested, part, 0.0).sum(-1) for part in (statistic, mean, variance, size))
    statistic, mean, variance, size = parts
    return statistic, mean, variance, size


class _Cells(NamedTuple):
    """Counts of clients by cell, and what comparing them needs.

    cells: (cells, clients, features, classes) float32, with a trifle in empty ones, so that 0 / 0 counts as 0; occupied:
    the cells with rows, a bit each, (words, clients, features, classes) uint16; rows: (clients, features, classes), or
    (clients, 1, classes) if no feature lacks rows that others have; separate: whether a class has enough rows, as rows.
    """

    cells: np.ndarray
    occupied: np.ndarray
    rows: np.ndarray
    separate: np.ndarray

    @classmethod
    def from_counts(cls, counts: np.ndarray) -> "_Cells":
        """Prepare counts, (clients, features, cells, classes)."""
        cells = np.ascontiguousarray(np.moveaxis(counts, 2, 0), np.float32)
        occupied = np.zeros((-(-len(cells) // 16), *cells.shape[1:]), np.uint16)
        for index, cell in enumerate(cells):
            occupied[index // 16] |= (cell > 0).astype(np.uint16) << np.uint16(index % 16)
        rows = cells.sum(0)
        rows = rows[:, :1] if np.array_equal(rows, np.broadcast_to(rows[:, :1], rows.shape)) else rows
        cells += np.float32(1e-30)
        return cls(cells, occupied, rows, rows >= LEAST_ROWS)


def _all_rows(summaries: Summaries) -> np.ndarray:
    """Return counts as of one class, (clients, features, cells, 1); 0 if a client does not report nearly all rows."""
    counts = summaries.counts.sum(-1, keepdims=True)
    complete = counts.sum((-2, -1)) >= (1 - MAX_UNREPORTED) * summaries.rows[:, None]
    return np.where(complete[..., None, None], counts, 0)


def _within_classes(cells: _Cells, first: int, others: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Pearson's X² and its degrees of freedom, summed over classes that both report: (others, features) each.

    Cells are added one after another over all classes, since sums over so short an axis cost most of the time. The sums
    are exact in double precision: terms are of single precision, and below 5,000 rows a cell at most 2^25 times others.
    """
    of_others, of_first = cells.cells[:, others], cells.cells[:, first]
    term, part = np.empty_like(of_others[0]), np.empty(of_others.shape[1:])
    statistic = np.zeros_like(part)
    for other, own in zip(of_others, of_first, strict=True):
        np.add(other, own, out=term)
        np.divide(own * own, term, out=term)
        np.copyto(part, term)  # a conversion apart costs less than a sum of two types
        statistic += part
    rows, own_rows = cells.rows[others], cells.rows[first]
    total, product = own_rows + rows, own_rows.astype(np.float64) * rows
    compared = cells.separate[first] & cells.separate[others]
    statistic -= own_rows.astype(np.float64) ** 2 / np.maximum(total, 1)
    statistic *= np.divide(total**2, product, out=np.zeros_like(product), where=compared)
    columns = np.zeros_like(term)
    for word in cells.occupied:
        columns += np.bitwise_count(word[first] | word[others])
    columns *= compared
    dof = (columns @ np.ones(columns.shape[-1], np.float32)).astype(np.int64) - compared.sum(-1)
    return np.maximum(statistic.sum(-1), 0), dof


def _label_p_value(summaries: Summaries, first: int, others: slice) -> np.ndarray:
    count = len(summaries.rows[others])
    labels, rows = (
        np.stack([np.broadcast_to(of_client[first], (count, *of_client.shape[1:])), of_client[others]], 1)
        for of_client in (summaries.labels, summaries.rows)
    )
    return test.p_value(test.pearson(impute_labels(labels, rows)))


PAIRS, FEATURES = 3, 2
"""The number of described pairs, each of other groups, and of features of each."""

MIN_SHARE = 1 / 3
"""The share of the largest part that a feature needs to be named as carrying the shift."""


@dataclass(frozen=True, eq=False)
class PairDetails:
    """One feature of one pair; first, second, feature: indices.

    ends: (bins + 1,) ends of a numeric feature's bins, from the first to the last value, or None; values: the label of
    each bin without ends; joined: whether bins were merged for all clients together; counts: (2, bins, classes) rows
    by class; shown: (classes,) bool, the classes that both report.
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
    summaries: Summaries, layout: Layout, findings: Findings, groups: Sequence[Sequence[int]]
) -> tuple[PairDetails, ...]:
    """Describe the worst pair of each two groups of clients, the worst first; empty without counts."""
    if not summaries.counts.shape[2]:
        return ()
    details = []
    for pair in _worst_pairs(findings, groups):
        parts, clients = findings.parts[pair], (int(findings.first[pair]), int(findings.second[pair]))
        features = np.argsort(-parts, kind="stable")[:FEATURES].tolist()
        leading = [feature for feature in features if parts[feature] >= MIN_SHARE * parts[features[0]]]
        details += [_details(summaries, layout, *clients, feature) for feature in leading]
    return tuple(details)


def _worst_pairs(findings: Findings, groups: Sequence[Sequence[int]]) -> list[int]:
    """Return for each two groups one pair with their most common verdict, ordered by the largest part."""
    group_of = {client: index for index, group in enumerate(groups) for client in group}
    between: dict[tuple[int, ...], list[int]] = {}
    for pair in np.flatnonzero(findings.verdicts.types.any(-1)).tolist():
        both = sorted((group_of[int(findings.first[pair])], group_of[int(findings.second[pair])]))
        between.setdefault(tuple(both), []).append(pair)
    largest = findings.parts.max(-1)
    worst = []
    for pairs in between.values():
        verdicts = [tuple(findings.verdicts.types[pair].tolist()) for pair in pairs]
        most_common = max(verdicts, key=verdicts.count)
        candidates = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict == most_common]
        worst.append(max(candidates, key=lambda pair: largest[pair]))
    return sorted(worst, key=lambda pair: -largest[pair])[:PAIRS]


def _details(summaries: Summaries, layout: Layout, first: int, second: int, feature: int) -> PairDetails:
    table = counts_of_pairs(summaries, np.array([[first, second]]))[0, :, feature]
    values = layout.categories[feature]
    num_bins = layout.bins if values is None else len(values) + 1
    cells, missing = table[:, :num_bins], table[:, -1:]
    ends = None
    if values is not None:
        names = (*(f"{value:g}" for value in values), "other")
    elif layout.joined:
        names = tuple(str(index + 1) for index in range(num_bins))
    else:
        cells, ends = _merge_bins(cells, layout.low[feature], layout.high[feature])
        if summaries.counted_in is not None:
            # rows of merged bins are in the last of them, and the first of them begins the range
            common = join_cells(summaries.counted_in[[first, second]])[feature, :num_bins]
            occupied = common[np.flatnonzero(table[:, :num_bins].any((0, 2)))]
            fine = np.array([layout.low[feature], *inner_edges(layout.low[feature], layout.high[feature], num_bins)])
            ends[0] = fine[int((common == occupied[0]).argmax())] if len(occupied) else ends[0]
        names = ()
    if ends is None:
        cells, names = np.concatenate([cells, missing], 1), (*names, "missing")
        present = cells.sum((0, 2)) > 0
        cells = cells[:, present]
        names = tuple(name for name, keep in zip(names, present.tolist(), strict=True) if keep)
    reported = np.append(~np.isnan(summaries.labels[[first, second]]).any(0), False)
    return PairDetails(first, second, feature, ends, names, values is None and layout.joined, cells, reported)


def _merge_bins(cells: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Merge neighbouring bins as for the tests, and return their ends."""
    merged_index = merged_bin_index(cells.sum((0, 2)))
    fine = np.array([low, *inner_edges(low, high, cells.shape[1]), high])
    last = np.append(np.flatnonzero(np.diff(merged_index)), len(merged_index) - 1)
    assignment = (merged_index[:, None] == np.unique(merged_index)).astype(float)
    occupied = np.flatnonzero(cells.sum((0, 2)) > 0)
    ends = np.append(low, fine[last + 1])
    if len(occupied):
        ends[0], ends[-1] = fine[occupied[0]], fine[occupied[-1] + 1]
    return np.einsum("cbm,bk->ckm", cells, assignment), ends
