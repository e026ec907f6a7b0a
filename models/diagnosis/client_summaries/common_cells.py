"""Cells that several clients have alike, where each may have merged some so that no cell has few rows.

`counted_in` of `Summaries` says in which cell a client counts the rows of each. Two clients are compared in the cells that
both have apart. Which these are depends on how many rows each has, and not on how the two differ, so tests hold.
"""

from dataclasses import replace

import numpy as np
from scipy.special import ndtr

from models.diagnosis.client_summaries.client_summary import LEAST_ROWS, Layout, Summaries, divide_or_zero, inner_edges

MOST_LEFT_OUT = 0.1
"""The share of a class's rows that may be missing in the cells of several clients together."""


def counts_of_pairs(summaries: Summaries, clients: np.ndarray) -> np.ndarray:
    """Return counts in the cells that the clients of each pair have alike: (pairs, 2, features, cells, columns).

    clients: (pairs, 2) indices. All that compares counts of clients takes them from here, or from `in_common_cells`.
    """
    return in_cells_of_pairs(in_classes_of_pairs(summaries, clients), summaries, clients)


def in_classes_of_pairs(summaries: Summaries, clients: np.ndarray) -> np.ndarray:
    """Return the counts of each pair, (pairs, 2, features, cells, columns), of the classes that neither leaves out.

    Otherwise the inputs of a client that does not count a rare class in cells would seem to differ.
    """
    counts = summaries.counts[clients]
    if summaries.noise is not None:
        return counts
    rows = _rows_left_out(counts, summaries.labels[clients], summaries.rows[clients])
    left_out: np.ndarray = np.any(rows > 0, axis=1)
    return np.where(left_out[:, None, :, None], 0.0, counts) if left_out.any() else counts


def _rows_left_out(counts: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the rows of each class that a feature does not count in cells: (..., features, columns); as in Summaries."""
    of_class = np.nan_to_num(labels)
    rest = (rows - of_class.sum(-1))[..., None]
    pooled = np.where(rest >= LEAST_ROWS, rest, 0)  # fewer are no pool
    return np.where(counts.any(-2), 0.0, np.concatenate([of_class, pooled], -1)[..., None, :])


def in_cells_of_pairs(tables: np.ndarray, summaries: Summaries, clients: np.ndarray) -> np.ndarray:
    """Return tables by cell, (pairs, 2, features, cells, columns), in the cells that the clients of each pair have alike."""
    if summaries.counted_in is None or not tables.shape[-2]:
        return tables
    common = join_cells(summaries.counted_in[clients])
    return count_in(tables, np.repeat(common[:, None], clients.shape[1], 1))


def count_common_cells(summaries: Summaries, clients: np.ndarray) -> np.ndarray:
    """Return how many cells with values the clients of each pair have alike: (pairs, features).

    If neither merged cells, and under noise, all cells count, also empty ones. clients: (pairs, 2) indices.
    """
    features, cells = summaries.counts.shape[1:3]
    if summaries.counted_in is None or summaries.noise is not None or not cells:
        return np.full((len(clients), features), cells)
    merged = (summaries.counted_in != np.arange(cells)).any(-1)
    common = counts_of_pairs(summaries, clients)[..., :-1, :].any((1, 4)).sum(-1)
    return np.where(merged[clients].any(1), common, cells)


def report_means(summaries: Summaries) -> np.ndarray:
    """Return the features of which a client reports the mean of each class that it counts: (clients, features) bool."""
    counted, known = summaries.counts.any(2), np.isfinite(summaries.moments[..., :3]).all(-1)
    reported: np.ndarray = counted.any(-1) & (known | ~counted).all(-1)
    return reported


def in_common_cells(summaries: Summaries) -> Summaries:
    """Return the clients with counts in the cells that all have alike, so that their counts may be added.

    A client with few rows has few cells. It is left out of a feature, with counts of 0, if its rows are worth less than
    the cells that the others would lose. A class is left out, too, if more than MOST_LEFT_OUT of its rows are in no cells.
    """
    left_out = _rows_left_out(summaries.counts, summaries.labels, summaries.rows)
    if left_out.any():
        rows = left_out + summaries.counts.sum(2)
        few = left_out.sum(0) > MOST_LEFT_OUT * rows.sum(0)
        summaries = replace(summaries, counts=np.where(few[:, None], 0.0, summaries.counts))
    if summaries.counted_in is None or not summaries.counts.shape[-2]:
        return summaries
    kept = _worth_keeping(summaries.counted_in, summaries.counts)
    own = np.arange(summaries.counted_in.shape[-1])
    common = join_cells(np.where(kept[..., None], summaries.counted_in, own)[None])[0]
    everywhere = np.broadcast_to(common, summaries.counted_in.shape)
    counts = count_in(summaries.counts * kept[..., None, None], everywhere)
    return replace(summaries, counts=counts, counted_in=everywhere.copy())


def join_cells(counted_in: np.ndarray) -> np.ndarray:
    """Return the cell in which all of several clients count each: (..., features, cells).

    counted_in: (..., clients, features, cells).
    """
    joined = np.broadcast_to(np.arange(counted_in.shape[-1]), (*counted_in.shape[:-3], *counted_in.shape[-2:]))
    while True:  # each step leads to a later bin, or to other values, until all have this cell
        before = joined
        for client in range(counted_in.shape[-3]):
            joined = np.take_along_axis(counted_in[..., client, :, :], joined.astype(np.int64), -1)
        if np.array_equal(joined, before):
            return joined.astype(np.int64)


def count_in(counts: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Move the rows of each cell to another one: counts (..., cells, columns), cells (..., cells)."""
    moved = cells != np.arange(cells.shape[-1])
    if not moved.any():
        return counts
    result = np.where(moved[..., None], 0.0, counts)
    for cell in np.flatnonzero(moved.any(tuple(range(moved.ndim - 1)))).tolist():
        where = np.nonzero(moved[..., cell])
        result[(*where, cells[..., cell][where])] += counts[(*where, np.full(len(where[0]), cell))]
    return result


def _worth_keeping(counted_in: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return of each feature the clients whose rows are worth the cells that are lost by them: (clients, features) bool.

    A trend over g cells of equal share has 1 - 1 / g² of the information of ranks. Clients are added by their cells, the
    most first, as long as rows times information grow.
    """
    rows, occupied = counts.sum((-2, -1)), counts.any(-1)
    apart = counted_in == np.arange(counted_in.shape[-1])
    order = np.lexsort((-rows, -(apart & occupied).sum(-1)), axis=0)
    in_order = np.take_along_axis(apart, order[..., None], 0)
    common = np.logical_and.accumulate(in_order, 0) & occupied.any(0)
    cells = np.maximum(common.sum(-1), 1)
    worth = np.cumsum(np.take_along_axis(rows, order, 0), 0) * (1 - 1 / cells**2)
    last = np.where(worth.any(0), len(worth) - 1 - worth[::-1].argmax(0), len(worth) - 1)
    place = np.argsort(order, axis=0)
    kept: np.ndarray = place <= last
    return kept


def spread_counts(summaries: Summaries, layout: Layout) -> np.ndarray:
    """Return counts by cell, of merged bins as a normal distribution with the reported moments spreads them.

    They describe a client, for example to draw rows of it, and are for no test. Merged categories stay other values.
    """
    counts = summaries.counts
    if summaries.counted_in is None or not counts.shape[-2]:
        return counts
    result, bins = counts.copy(), layout.bins
    first = np.arange(len(counts))[:, None] * bins
    for feature in np.flatnonzero(layout.numeric).tolist():
        cells = summaries.counted_in[:, feature, :bins].astype(np.int64)
        ends = inner_edges(layout.low[feature], layout.high[feature], bins)
        mean, deviation = np.moveaxis(summaries.moments[:, feature, :, 1:3], -1, 0)
        known = np.isfinite(mean) & (deviation > 0)
        below = ndtr((ends - np.where(known, mean, 0.0)[..., None]) / np.where(known, deviation, 1.0)[..., None])
        share = np.diff(below, prepend=0.0, append=1.0, axis=-1) * known[..., None] + _LEAST_SHARE
        for column in range(counts.shape[-1]):
            of_bins = share[:, column]
            of_run = np.bincount((first + cells).ravel(), of_bins.ravel(), first.size * bins).reshape(-1, bins)
            of_run, rows = (np.take_along_axis(part, cells, 1) for part in (of_run, counts[:, feature, :bins, column]))
            spread = divide_or_zero(of_bins, of_run) * rows
            result[:, feature, :bins, column] = np.where(
                (cells != np.arange(bins)).any(-1, keepdims=True), spread, rows
            )
    return result


_LEAST_SHARE = 1e-9  # of a bin in which a normal distribution has nothing
