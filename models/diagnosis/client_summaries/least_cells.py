"""Cells that a client counts together, so that each class has no row in a cell or enough different rows.

A cell of one row would show this row's class and value to anyone who knows either. Where cells are merged must not show
rows again: a cut at the tenth row of a class would be that row's value. So cuts are tried in one order, the same for all
clients whatever their rows: sixteenths of the range from both ends to the middle, then ever finer parts. A cut is tried
only if enough rows of all classes together lie between it and the cuts that were tried before. The order also has clients
of like distributions cut alike, so that a pair keeps most of their cells.
"""

from dataclasses import replace

import numpy as np

from models.diagnosis.client_summaries.client_summary import Columns, Layout, count_different, withheld_columns

COARSE_PARTS = 32
"""The number of parts of a feature's range. An empty part this wide may be counted apart; finer ones would show extremes."""


def columns_in_cells(column: Columns, row_ids: np.ndarray, layout: Layout, least_cell: int) -> Columns:
    """Return the columns without the rows of classes that are too rare to be counted in cells.

    A rare class would merge the cells of all others. With n rows it has n / (2 least_cell) cells, as measured, and a trend
    over g cells has 1 - 1 / g² of the information of ranks. The rarest classes are left out so that the rows of the others,
    times this, are most. A rule is compared in two classes, so the second is left out only if it has less than two cells.
    It depends on numbers of rows alone. In a regression all groups of targets remain.

    Args:
        column: The column of each row.
        row_ids: As for `assign_columns`.
        layout: The cells.
        least_cell: The different rows that a cell needs; 1 leaves nothing out.
    """
    present = np.unique(column.index[column.reported])
    if least_cell <= 1 or layout.targets or len(present) < 2:
        return column
    rows = np.array([count_different(row_ids[column.reported & (column.index == at)]) for at in present])
    cells = np.maximum(rows / (2 * least_cell), 1.0)
    kept = rows >= rows[:, None]  # for each class those that are not rarer
    worth = (kept * rows).sum(1) * (1 - 1 / cells**2)
    if np.sort(rows)[-2] >= 4 * least_cell:
        worth[kept.sum(1) < 2] = -1
    least = rows[np.lexsort((rows, -worth))[0]]
    return replace(column, reported=column.reported & np.isin(column.index, present[rows >= least]))


def merge_cells_of_client(
    x: np.ndarray, column: Columns, row_ids: np.ndarray, layout: Layout, least_rows: int, least_cell: int
) -> np.ndarray:
    """Return for each cell the cell in which a client counts its rows: (features, cells) int64.

    In these each column of counts has no row, or `least_cell` different rows, and as many units. Neighbouring bins of a
    number are merged, and rare categories into other values; few missing values are merged into the first bins, or into
    other values. Of merged cells the last counts the rows, but for that of missing values.

    Args:
        x: (rows, features) float64, NaN if missing.
        column: The column of each row.
        row_ids: As for `assign_columns`; of the columns each must have `least_cell` of them.
        layout: The cells.
        least_rows: The different rows below which a feature withholds a column.
        least_cell: The different rows that a cell needs; 1 merges nothing.
    """
    merged = np.tile(np.arange(layout.cells), (x.shape[1], 1))
    if least_cell <= 1:
        return merged
    used = np.repeat(column.reported[:, None], x.shape[1], 1)
    reported = np.flatnonzero(column.reported)
    for feature, withheld in withheld_columns(
        x[reported], column.index[reported], row_ids[reported], layout, least_rows
    ):
        # no cell of a withheld column is reported, so its rows need none
        used[:, feature] &= ~withheld[column.index]
    cells, order = layout.cells_of(x), _order_of_cuts(layout.bins)
    for feature, values in enumerate(layout.categories):
        rows = used[:, feature]
        of_rows, ids = cells[rows, feature], row_ids[rows]
        by_class = _count_different(of_rows, column.index[rows], ids, layout.cells, layout.classes + 1)
        together = _count_different(of_rows, np.zeros(len(of_rows), np.int64), ids, layout.cells, 1)
        if values is None:
            merged[feature] = _merge_bins(by_class, together[:, 0], layout.bins, order, least_cell)
        else:
            merged[feature] = _merge_categories(by_class, together[:, 0], len(values), least_cell)
    return merged


def few_in(rows: np.ndarray, least: int) -> np.ndarray:
    """Return where numbers of rows are above 0 and below `least`, in any of the last axis."""
    few: np.ndarray = np.any((rows > 0) & (rows < least - _ROUNDING), axis=-1)
    return few


_ROUNDING = 1e-9  # of rows, which are sums of shares if units have several


def _count_different(
    cells: np.ndarray, column: np.ndarray, row_ids: np.ndarray, width: int, columns: int
) -> np.ndarray:
    """Count the different rows of each cell and column, or units if they are fewer: (width, columns) float64.

    A unit of several cells of a column counts as a share in each. The sum over cells is then at most its units.
    """
    counts = np.full((width, columns), np.inf)
    for ids in np.atleast_2d(row_ids.T):
        number = int(ids.max(initial=-1)) + 1
        different = np.unique((column * number + ids) * width + cells)
        _, index, several = np.unique(different // width, return_inverse=True, return_counts=True)
        flat = different % width * columns + different // width // max(number, 1)
        of_ids = np.bincount(flat, 1 / several[index.ravel()], width * columns)
        counts = np.minimum(counts, of_ids.reshape(width, columns))
    return counts


def _order_of_cuts(bins: int) -> list[tuple[int, bool]]:
    """Return the cuts, as the first bin after each, in their order, and whether they may cut off an empty part."""
    tried, order, parts = {0, bins}, list[tuple[int, bool]](), _FIRST_PARTS
    while len(tried) <= bins:
        cuts = {round(part * bins / parts) for part in range(1, parts)} - tried
        order += [(cut, parts <= COARSE_PARTS) for cut in sorted(cuts, key=lambda cut: (-abs(2 * cut - bins), cut))]
        tried |= cuts
        parts *= 2
    return order


_FIRST_PARTS = 16


def _merge_bins(
    by_class: np.ndarray, together: np.ndarray, bins: int, order: list[tuple[int, bool]], least: int
) -> np.ndarray:
    merged = np.arange(len(together))
    rows, all_rows = by_class[:bins].copy(), together[:bins].copy()
    missing_is_merged = bool(few_in(by_class[-1:], least).any())
    if missing_is_merged:
        rows[0] += by_class[-1]
        all_rows[0] += together[-1]
    below = np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(rows, 0)])
    below_all = np.concatenate([[0.0], np.cumsum(all_rows)])
    candidates, cuts = [0, bins], [0, bins]
    for cut, empty_allowed in order:
        sides = _sides(below_all, candidates, cut)
        if few_in(sides[None], least).any() or (not empty_allowed and (sides < _ROUNDING).any()):
            continue
        candidates.append(cut)
        candidates.sort()
        if not few_in(_sides(below, cuts, cut), least).any():
            cuts.append(cut)
            cuts.sort()
    ends = np.array(cuts[1:])
    merged[:bins] = ends[np.searchsorted(ends, np.arange(bins), side="right")] - 1
    if missing_is_merged:
        merged[-1] = merged[0]
    return merged


def _sides(below: np.ndarray, cuts: list[int], cut: int) -> np.ndarray:
    """Return the rows between a new cut and its neighbours on both sides: (2, ...)."""
    at = int(np.searchsorted(cuts, cut))
    return np.stack([below[cut] - below[cuts[at - 1]], below[cuts[at]] - below[cut]])


def _merge_categories(by_class: np.ndarray, together: np.ndarray, categories: int, least: int) -> np.ndarray:
    """Merge what is rare in some class into other values, and then the most rare of the rest until these are not rare."""
    merged = np.arange(len(together))
    possible = [*range(categories + 1), len(together) - 1]
    pool = [cell for cell in possible if few_in(by_class[[cell]], least).any()]
    if not pool:
        return merged
    left = sorted((cell for cell in possible if cell not in pool and together[cell] > 0), key=lambda at: together[at])
    while few_in(by_class[pool].sum(0)[None], least).any() and left:
        pool.append(left.pop(0))
    merged[pool] = merged[categories] = categories
    return merged


FEW_VALUES = 10
"""Of up to this many different values, each of two rows on average, moments show how often each occurs."""


def moments_show_cells(
    x: np.ndarray, column: Columns, row_ids: np.ndarray, layout: Layout, counted_in: np.ndarray, least_cell: int
) -> np.ndarray:
    """Return the features whose moments would show how many rows a cell of few has: (features,) bool.

    They are categories with merged cells, and numbers of few values one of which few rows of a class have.
    """
    shown = (counted_in != np.arange(layout.cells)).any(-1) & ~layout.numeric
    if least_cell > 1:
        for feature in np.flatnonzero(layout.numeric).tolist():
            rows = column.reported & ~np.isnan(x[:, feature])
            values, index = np.unique(x[rows, feature], return_inverse=True)
            if 0 < len(values) <= min(FEW_VALUES, len(index) // 2):
                of_class = column.index[rows], row_ids[rows], len(values), layout.classes + 1
                shown[feature] = few_in(_count_different(index.ravel(), *of_class), least_cell).any()
    return shown


def pairs_show_cells(
    x: np.ndarray, column: np.ndarray, row_ids: np.ndarray, columns: int, least_cell: int
) -> np.ndarray:
    """Return the pairs of features whose correlations would show a cell of few rows: (features, features) bool.

    Of two features with few values each, a correlation shows how many rows of a class have both of two values.
    """
    features = x.shape[1]
    shown = np.zeros((features, features), bool)
    if least_cell <= 1:
        return shown
    codes = [np.unique(values, return_inverse=True) for values in x.T]  # a missing value is one, too
    few = [at for at, (values, _) in enumerate(codes) if len(values) <= min(FEW_VALUES + 1, len(x) // 2)]
    for one in few:
        for other in (at for at in few if at > one):
            (_, first), (values, second) = codes[one], codes[other]
            cell = first.ravel() * len(values) + second.ravel()
            width = len(codes[one][0]) * len(values)
            rows = _count_different(cell, column, row_ids, width, columns)
            shown[one, other] = shown[other, one] = few_in(rows, least_cell).any()
    return shown


def fill_few_missing(x: np.ndarray, column: Columns, counted_in: np.ndarray, withheld: np.ndarray) -> np.ndarray:
    """Replace missing values that are merged with others, as few are, by quantiles of the feature in the row's class.

    Otherwise moments would show how many rows have a value. withheld: (features, columns) bool, columns that a feature
    does not report, whose values stay missing.
    """
    filled = x.copy()
    for feature in np.flatnonzero(counted_in[:, -1] != counted_in.shape[1] - 1).tolist():
        for index in np.unique(column.index[column.reported]).tolist():
            rows = np.flatnonzero((column.index == index) & column.reported)
            missing = np.isnan(x[rows, feature])
            values, few = np.sort(x[rows[~missing], feature]), int(missing.sum())
            if few and len(values) and not withheld[feature, index]:
                at = ((np.arange(few) + 0.5) / few * len(values)).astype(np.int64)
                filled[rows[missing], feature] = values[at]
    return filled
