"""Two clients side by side: their counts on bins that the pair has rows for, and their labels as far as they are told."""

from typing import NamedTuple

import numpy as np

from models.shift.client_summaries.client_summary import LEAST_ROWS, Layout, Summaries, merged


class Pairs(NamedTuple):
    """Pairs of clients, each array with a leading axis of them; of two, client A comes first.

    counts: (pairs, features, 2, cells, classes + 1); labels: (pairs, 2, classes + 1); rows: (pairs, 2);
    moments: (pairs, features, 2, classes + 1, 5); numeric: (features,) bool; noise: as counts, or None (`Summaries`).
    """

    counts: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    moments: np.ndarray
    numeric: np.ndarray
    noise: np.ndarray | None = None


def side_by_side(told: Summaries, layout: Layout, first: np.ndarray, second: np.ndarray, most: int = 10) -> Pairs:
    """The clients of places `first` with those of places `second`, (pairs,); `most`: bins that numbers are compared on."""
    both = np.stack([first, second], 1)
    counts = np.moveaxis(told.counts[both], 1, 2)
    withheld = counts.sum(-2, keepdims=True) == 0
    counts = np.where(withheld.any(2, keepdims=True) & _told_by_both(told.labels[both])[:, None, None, None], 0, counts)
    columns = counts.shape[-1]
    if told.noise is not None:
        counts = np.concatenate([counts, np.moveaxis(told.noise[both], 1, 2)], -1)
    table = comparable(counts, layout, most, slice(columns))
    return Pairs(
        table[..., :columns],
        labels(told.labels[both], told.rows[both]),
        told.rows[both],
        np.moveaxis(told.moments[both], 1, 2),
        layout.numeric,
        None if told.noise is None else table[..., columns:],
    )


def all_pairs(clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the first and of the second of each of clients (clients - 1) / 2 pairs."""
    return np.triu_indices(clients, 1)


def comparable(counts: np.ndarray, layout: Layout, most: int = 10, deciding: slice = slice(None)) -> np.ndarray:
    """Fine bins of numbers joined, unless they are for all; rare categories with the other values; the missing last.

    Nothing where no counts were told. Columns that are not `deciding` are put together as these are.
    """
    if not counts.shape[-2]:
        return counts
    numeric = layout.numeric
    widest = max([most, *(len(values) + 1 for values in layout.categories if values is not None)])
    shape = (*counts.shape[:-2], widest + 1, counts.shape[-1])
    table = np.zeros(shape)
    table[..., -1, :] = counts[..., -1, :]
    if layout.joined:
        table[:, numeric, :, : layout.bins] = counts[:, numeric][..., : layout.bins, :]
    elif numeric.any():
        table[:, numeric, :, :most] = merged(counts[:, numeric][..., : layout.bins, :], most, deciding)
    for at in np.flatnonzero(~numeric):
        size = len(layout.categories[at] or ())
        mine = counts[:, at, :, : size + 1].copy()
        rare = mine[..., :size, deciding].sum((1, 3)) < LEAST_ROWS
        moved = np.where(rare[:, None, :, None], mine[..., :size, :], 0)
        mine[..., :size, :] -= moved
        mine[..., size, :] += moved.sum(-2)
        table[:, at, :, : size + 1] = mine
    return table


def labels(told: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows of each class, and last of those that neither tells, as alike as they can be: (pairs, 2, classes + 1).

    told: (pairs, 2, classes), NaN where a client does not tell a class; rows: (pairs, 2). Such a class is taken to be as
    frequent as with the other client, as far as that can be.
    """
    known = np.nan_to_num(told)
    rest = np.maximum(rows - known.sum(-1), 0)
    other = known[:, ::-1]
    share = np.divide(other, rows[:, ::-1, None], out=np.zeros_like(other), where=rows[:, ::-1, None] > 0)
    guess = guessed(share * rows[..., None], most_untold(told, rows), rest)
    return np.concatenate([known + guess, (rest - guess.sum(-1))[..., None]], -1)


def most_untold(told: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How many rows a client can have of a class that it does not tell, and 0 of the others: (..., classes).

    told: (..., classes), NaN where it does not tell a class, of which it then has fewer than LEAST_ROWS different rows;
    rows: (...). They are LEAST_ROWS - 1, unless there are more rows than that of such classes, and so copies, which can be
    any number.
    """
    silent, rest = np.isnan(told), rows - np.nan_to_num(told).sum(-1)
    copies = rest > (LEAST_ROWS - 1) * silent.sum(-1)
    return silent * np.where(copies, rest, LEAST_ROWS - 1)[..., None]


def guessed(wanted: np.ndarray, most: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Rows of classes that are not told, as near to `wanted` as can be: (..., classes).

    most: of each class; rest: of all together, (...).
    """
    guess = np.clip(wanted, 0, most)
    total = guess.sum(-1)
    return guess * np.divide(rest, total, out=np.ones_like(total), where=total > rest)[..., None]


def _told_by_both(told: np.ndarray) -> np.ndarray:
    """(pairs, classes + 1); the last is what is told together, of which a client may have none."""
    both = ~np.isnan(told).any(1)
    return np.concatenate([both, np.zeros((len(both), 1), bool)], -1)
