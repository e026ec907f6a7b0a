"""What the server makes of counts that clients added noise to: the rest of what it needs follows from them, at no cost."""

from dataclasses import replace

import numpy as np

from models.shift.told.bins import edges
from models.shift.told.summaries import Layout, Summaries

FEWEST = 30
"""Noisy rows of a class below which it counts as absent."""


def from_noisy(counts: np.ndarray, layout: Layout) -> Summaries:
    """Rows, labels and moments as far as counts tell them; counts: (clients, features, cells, classes), noisy.

    Cells that no value can be in are none, and there are no fewer rows than none. Each feature has its own noise, so that
    the labels are their mean. Moments are those of the bins' middles.
    """
    known = np.where(layout.possible[:, :, None], np.maximum(counts, 0.0), 0.0)
    labels = np.maximum(np.where(layout.possible[:, :, None], counts, 0.0).sum(2).mean(1), 0.0)
    alone = labels >= FEWEST
    known = known * alone[:, None, None]
    other = np.zeros((*known.shape[:-1], 1))
    told = np.concatenate([known, other], -1)
    return Summaries(labels.sum(-1), np.where(alone, labels, np.nan), told, _of_middles(told, layout))


def noise_share(rows: np.ndarray, layout: Layout, sigma: float) -> np.ndarray:
    """Of each pair: the noise's variance in a difference of shares over the sample's, by which X² is too large.

    rows: (pairs, 2). Of as many rows on both sides it is the noise's variance in a cell over a cell's mean rows; of others
    the side with fewer says most.
    """
    cells = layout.possible.sum(1).mean() * layout.classes
    there = np.maximum(rows, 1.0)
    return sigma**2 * cells * there.prod(-1) / there.sum(-1) * (1 / there**2).sum(-1)


def as_precise(told: Summaries, layout: Layout, sigma: float) -> Summaries:
    """With so many rows in moments as would give means and deviations of that variance without noise.

    Cells that are small beside the noise are clipped at none, which leaves a third of its variance.
    """
    rows, mean, spread, _, kurtosis = np.moveaxis(told.moments, -1, 0)
    counts = told.counts * _valued(layout)[:, :, None]
    variance = sigma**2 * np.where(counts > 2 * sigma, 1.0, 1 / 2 - 1 / (2 * np.pi)) * _valued(layout)[:, :, None]
    apart = (_middles(layout)[:, :, None] - mean[:, :, None]) ** 2
    square = np.where(spread > 0, spread, np.nan) ** 2
    of_mean = (variance * apart).sum(2) / (rows * square)
    of_spread = (variance * (apart - square[:, :, None]) ** 2).sum(2) / (
        rows * square**2 * np.maximum(kurtosis - 1, 0.2)
    )
    share = np.nan_to_num(np.maximum(of_mean, of_spread))
    return replace(told, moments=np.concatenate([(rows / (1 + share))[..., None], told.moments[..., 1:]], -1))


def _of_middles(counts: np.ndarray, layout: Layout) -> np.ndarray:
    """(clients, features, classes + 1, 5), NaN without rows."""
    middles = _middles(layout)
    weights = counts * _valued(layout)[:, :, None]
    rows = weights.sum(2)
    mean = (weights * middles[:, :, None]).sum(2) / np.maximum(rows, 1)
    apart = middles[:, :, None] - mean[:, :, None]
    m2, m3, m4 = ((weights * apart**power).sum(2) / np.maximum(rows, 1) for power in (2, 3, 4))
    safe = np.where(m2 > 0, m2, 1.0)
    told = np.stack([rows, mean, np.sqrt(m2 * rows / np.maximum(rows - 1, 1)), m3 / safe**1.5, m4 / safe**2], -1)
    return np.where((rows >= FEWEST)[..., None], told, np.nan)


def _middles(layout: Layout) -> np.ndarray:
    """What stands for a value in each cell: (features, cells)."""
    middles = np.zeros((len(layout.names), layout.cells))
    for at, values in enumerate(layout.categories):
        if values is None:
            inner = edges(layout.low[at], layout.high[at], layout.bins)
            middles[at, : layout.bins] = np.convolve([layout.low[at], *inner, layout.high[at]], [0.5, 0.5], "valid")
        else:
            middles[at, : len(values) + 1] = 1.0 + np.arange(len(values) + 1)
    return middles


def _valued(layout: Layout) -> np.ndarray:
    """The cells of values that are there: (features, cells) bool."""
    return layout.possible & (np.arange(layout.cells) < layout.cells - 1)
