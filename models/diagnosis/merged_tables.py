"""Tables of pairs of clients: counts in bins merged for the pair, and labels with unreported classes imputed."""

from typing import NamedTuple

import numpy as np

from models.diagnosis.client_summaries.client_summary import LEAST_ROWS, Layout, Summaries, divide_or_zero, merge_bins
from models.diagnosis.client_summaries.common_cells import count_common_cells, counts_of_pairs, report_means

_TOLERANCE = 1e-6  # rows


class Pairs(NamedTuple):
    """Pairs of clients; each array has a leading pair axis, and client A of a pair comes first.

    counts: (pairs, features, 2, cells, classes + 1); labels: (pairs, 2, classes + 1); rows: (pairs, 2); moments:
    (pairs, features, 2, classes + 1, 5); numeric: (features,) bool; noise: as counts, or None (see `Summaries`);
    by_mean: (pairs, features) bool, numbers in FEW_CELLS, so that means are compared too, or None.
    """

    counts: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    moments: np.ndarray
    numeric: np.ndarray
    noise: np.ndarray | None = None
    by_mean: np.ndarray | None = None


def build_pairs(
    summaries: Summaries, layout: Layout, first: np.ndarray, second: np.ndarray, max_bins: int = 10
) -> Pairs:
    """Pair the clients of indices `first` with those of `second`, (pairs,).

    max_bins: The bins in which numeric features are compared.
    """
    indices = np.stack([first, second], 1)
    counts = np.moveaxis(counts_of_pairs(summaries, indices), 1, 2)
    withheld = counts.sum(-2, keepdims=True) == 0
    counts = np.where(
        withheld.any(2, keepdims=True) & _reported_by_both(summaries.labels[indices])[:, None, None, None], 0, counts
    )
    columns = counts.shape[-1]
    if summaries.noise is not None:
        counts = np.concatenate([counts, np.moveaxis(summaries.noise[indices], 1, 2)], -1)
    tables = merge_cells(counts, layout, max_bins, slice(columns))
    return Pairs(
        tables[..., :columns],
        impute_labels(summaries.labels[indices], summaries.rows[indices]),
        summaries.rows[indices],
        np.moveaxis(summaries.moments[indices], 1, 2),
        layout.numeric,
        None if summaries.noise is None else tables[..., columns:],
        None if summaries.counted_in is None else _by_mean(summaries, layout, indices),
    )


def _by_mean(summaries: Summaries, layout: Layout, indices: np.ndarray) -> np.ndarray:
    few = count_common_cells(summaries, indices) <= FEW_CELLS
    by_mean: np.ndarray = few & report_means(summaries)[indices].all(1) & layout.numeric
    return by_mean


FEW_CELLS = 2
"""The cells with values, common to two clients that merged others, that show too little of a number that has moved far."""


def all_pairs(clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the first and second client of all clients (clients - 1) / 2 pairs."""
    return np.triu_indices(clients, 1)


def merge_cells(counts: np.ndarray, layout: Layout, max_bins: int = 10, counted: slice = slice(None)) -> np.ndarray:
    """Merge the cells of each pair: fine bins, unless merged for all clients, and rare categories into other values.

    Missing values stay last. Returns `counts`, (pairs, features, 2, cells, columns), if it has no cells. The columns
    `counted` decide what is merged to `max_bins` bins; the others are merged likewise.
    """
    if not counts.shape[-2]:
        return counts
    numeric = layout.numeric
    widest = max([max_bins, *(len(values) + 1 for values in layout.categories if values is not None)])
    shape = (*counts.shape[:-2], widest + 1, counts.shape[-1])
    table = np.zeros(shape)
    table[..., -1, :] = counts[..., -1, :]
    if layout.joined:
        table[:, numeric, :, : layout.bins] = counts[:, numeric][..., : layout.bins, :]
    elif numeric.any():
        table[:, numeric, :, :max_bins] = merge_bins(counts[:, numeric][..., : layout.bins, :], max_bins, counted)
    for index in np.flatnonzero(~numeric):
        size = len(layout.categories[index] or ())
        feature_counts = counts[:, index, :, : size + 1].copy()
        rare = feature_counts[..., :size, counted].sum((1, 3)) < LEAST_ROWS
        moved_rows = np.where(rare[:, None, :, None], feature_counts[..., :size, :], 0)
        feature_counts[..., :size, :] -= moved_rows
        feature_counts[..., size, :] += moved_rows.sum(-2)
        table[:, index, :, : size + 1] = feature_counts
    return table


def impute_labels(reported: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return rows of each class, and last of classes that neither reports: (pairs, 2, classes + 1).

    All unreported rows belong to unreported classes: to a single one all of them. Of several the shares are unknown;
    they are imputed as at the other client, as far as possible. reported: (pairs, 2, classes), NaN if not reported;
    rows: (pairs, 2).
    """
    counts = np.nan_to_num(reported)
    unreported = np.maximum(rows - counts.sum(-1), 0)
    max_rows = max_unreported(reported, rows)
    neither = np.isnan(reported).all(1, keepdims=True)
    pooled_max = (max_rows * neither).sum(-1, keepdims=True)
    max_rows = max_rows * ~neither
    share = divide_or_zero(counts[:, ::-1], rows[:, ::-1, None])
    first_guess = impute_rows(share * rows[..., None], max_rows, unreported)
    pooled = np.minimum(unreported - first_guess.sum(-1), pooled_max[..., 0])
    pooled_share = divide_or_zero(pooled[:, ::-1], rows[:, ::-1])
    target = np.concatenate([share, pooled_share[..., None]], -1) * rows[..., None]
    imputed = impute_rows(target, np.concatenate([max_rows, pooled_max], -1), unreported)
    unknown = unreported - imputed.sum(-1)  # without an unreported class, such as under noise
    imputed[..., -1] += unknown
    return imputed + np.concatenate([counts, np.zeros_like(pooled_max)], -1)


def max_unreported(reported: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the most rows a client can have of an unreported class, and 0 for reported classes: (..., classes).

    Such a class has fewer than LEAST_ROWS distinct rows, so the bound is LEAST_ROWS - 1. If the unreported rows exceed
    that for all such classes, there are copies, and the bound is the number of unreported rows. reported: (...,
    classes), NaN if not reported; rows: (...).
    """
    withheld, unreported = np.isnan(reported), rows - np.nan_to_num(reported).sum(-1)
    copies = unreported > (LEAST_ROWS - 1) * withheld.sum(-1)
    return withheld * np.where(copies, unreported, LEAST_ROWS - 1)[..., None]


def impute_rows(target: np.ndarray, max_rows: np.ndarray, total_rows: np.ndarray) -> np.ndarray:
    """Impute `total_rows` rows, (...), of unreported classes in proportion to `target`, (..., classes).

    A class gets at most `max_rows`; fewer rows are imputed only if the classes have no room for all.
    """
    imputed: np.ndarray = np.zeros(np.broadcast_shapes(target.shape, max_rows.shape))
    weight = np.where(max_rows > 0, np.maximum(target, 0), 0.0)
    for _ in range(imputed.shape[-1] + 1):  # each sweep fills a class or places all rows
        remaining = np.maximum(total_rows - imputed.sum(-1), 0)[..., None]
        if not (remaining > _TOLERANCE).any():
            break
        room = max_rows - imputed
        weight = np.where(room > 0, weight, 0.0)
        weight = np.where(weight.any(-1, keepdims=True), weight, np.maximum(room, 0))  # last, where none is expected
        imputed = imputed + np.clip(remaining * divide_or_zero(weight, weight.sum(-1, keepdims=True)), 0, room)
    return imputed


def _reported_by_both(labels: np.ndarray) -> np.ndarray:
    """Return which columns both clients report, (pairs, classes + 1); False for the pooled column, which may be empty."""
    both = ~np.isnan(labels).any(1)
    return np.concatenate([both, np.zeros((len(both), 1), bool)], -1)
