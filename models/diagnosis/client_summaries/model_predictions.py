"""Regressions on halves of a client's rows, which check whether a change of P(Y | one feature) follows from others.

Fomichev, Kholod and Kocheshkov look at one feature at a time, and P(Y | one feature) may change because another
feature changed. Predictions of a model of all features change with it, which distinguishes such a change from one of
P(Y | X).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import softmax

from models.diagnosis.client_summaries.client_summary import (
    LEAST_ROWS,
    Columns,
    Layout,
    Summaries,
    count_different,
    divide_or_zero,
    overall_moments,
    withheld_columns,
)
from models.diagnosis.client_summaries.query import Query

SAME_RUN = -1
"""Marks a cell that is counted together with the cell before it."""

_CLIP = 5.0  # deviations at which a value is clipped
_PENALTY = 10.0  # scikit-learn's C
_TOLERANCE = 1e-5  # of the gradient, at which a regression stops
_STEPS = 500


@dataclass(frozen=True, eq=False)
class Design:
    """The design matrix of regressions, equal for all clients.

    Numeric features are in deviations `spread` from the mean `centre`, (features,) each; a missing number is the mean.
    Each category is a column, and so is whether a value is missing if it may be. products: pairs of features, by index,
    whose products are columns as well, so that both may act together.
    """

    query: Query
    centre: np.ndarray
    spread: np.ndarray
    products: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_summaries(cls, query: Query, summaries: Summaries, products: tuple[tuple[int, int], ...] = ()) -> "Design":
        """Standardize by the mean and deviation of all clients' reported rows.

        Products of two categories are left out.
        """
        products = products_with_a_number(query.layout, products)
        moments = np.nan_to_num(overall_moments(summaries))
        return cls(query, moments[:, 1], np.where(moments[:, 2] > 0, moments[:, 2], 1.0), products)

    @cached_property
    def id(self) -> str:
        """Identify the design: equal ids mean that regressions can be compared."""
        products = repr(self.products).encode() if self.products else b""
        parts = (self.query.id.encode(), self.centre.tobytes(), self.spread.tobytes(), products)
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    @cached_property
    def features(self) -> np.ndarray:
        """Return the feature of each column before those of products and the last: (columns,)."""
        layout = self.query.layout
        columns = [1 if values is None else len(values) for values in layout.categories]
        missing = layout.missing or (False,) * len(columns)
        return np.repeat(np.arange(len(columns)), np.add(columns, missing))

    def matrix(self, x: np.ndarray) -> np.ndarray:
        """Return the design matrix, (rows, columns), with a last column of 1; x: (rows, features), NaN if missing."""
        layout = self.query.layout
        cells, columns = layout.cells_of(x), list[np.ndarray]()
        of_values: list[list[np.ndarray]] = []
        for index, values in enumerate(layout.categories):
            if values is None:
                deviations = (x[:, index] - self.centre[index]) / self.spread[index]
                of_values.append([np.clip(np.nan_to_num(deviations), -_CLIP, _CLIP)])
            else:
                of_values.append([cells[:, index] == category for category in range(len(values))])
            columns += of_values[-1]
            if layout.missing and layout.missing[index]:
                columns.append(np.isnan(x[:, index]))
        columns += [a * b for one, other in self.products for a in of_values[one] for b in of_values[other]]
        return np.stack([*columns, np.ones(len(x))], -1).astype(np.float64)


def products_with_a_number(layout: Layout, products: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Leave out products of two categories: their columns mark cells that may hold one row, whose label weights show."""
    numeric = layout.numeric
    return tuple((one, other) for one, other in products if numeric[one] or numeric[other])


def classes_in_both_halves(
    column: Columns, row_ids: np.ndarray, second: np.ndarray, models: int = 1, least_rows: int = LEAST_ROWS
) -> np.ndarray:
    """Return the separately reported classes that `models` models may be fitted on or queried about: (classes,) bool.

    Such a class has at least `least_rows` distinct rows in each half, and at least as many as there are models.
    row_ids: see `assign_columns`; second: (rows,) bool, the rows of the second half.
    """
    enough = column.separate.copy()
    for label in np.flatnonzero(enough):
        rows = [count_different(row_ids[(column.index == label) & half]) for half in (~second, second)]
        enough[label] = min(rows) >= max(least_rows, models)
    return enough


def fit_halves(
    design: np.ndarray,
    class_index: np.ndarray,
    second: np.ndarray,
    included: np.ndarray,
    row_weights: np.ndarray | None = None,
) -> np.ndarray:
    """Fit a multinomial logistic regression to each half: (2, classes, columns), NaN for classes not included.

    All weights are NaN with fewer than two classes. design: (rows, columns), see `Design`; class_index: (rows,);
    second: (rows,) bool; included: (classes,) bool; row_weights: (rows,), by which rows of a unit count as one row.
    """
    weights = np.full((2, len(included), design.shape[1]), np.nan)
    if included.sum() < 2:
        return weights
    used = np.append(included, False)[class_index]
    for index, half in enumerate((~second, second)):
        rows = used & half
        of_rows = None if row_weights is None else row_weights[rows]
        weights[index, included] = _fit(design[rows], class_index[rows], of_rows)
    return weights


def predict_classes(
    design: np.ndarray, class_index: np.ndarray, classes: np.ndarray, weights: np.ndarray, second: np.ndarray | None
) -> np.ndarray:
    """Predict class probabilities of rows with the two models of a client: (rows, classes) float64.

    Only classes that both models and `classes` include are possible. Other classes have 0, and so have all rows of a
    class that the models do not include.

    Args:
        design: (rows, columns), see `Design`.
        class_index: (rows,) the class of each row.
        classes: (classes,) bool, the classes in both halves of the rows' client.
        weights: (2, classes, columns) of the models.
        second: (rows,) bool for the client's own rows, each predicted by the model not fitted on it; None for another
            client's, predicted by the mean of both.
    """
    included = ~np.isnan(weights).any((0, 2)) & classes
    probabilities = np.zeros((len(design), weights.shape[1]))
    used = np.append(included, False)[class_index]
    if not used.any():
        return probabilities
    by_first, by_second = (softmax(design[used] @ half[included].T, axis=-1) for half in weights)
    mean = (by_first + by_second) / 2 if second is None else np.where(second[used, None], by_first, by_second)
    probabilities[np.ix_(used, included)] = mean
    return probabilities


def predicted_counts(
    x: np.ndarray,
    column: Columns,
    row_ids: np.ndarray,
    second: np.ndarray,
    layout: Layout,
    probabilities: np.ndarray,
    thresholds: np.ndarray,
    weights: np.ndarray | None = None,
    least_rows: int = LEAST_ROWS,
    counted_in: np.ndarray | None = None,
) -> np.ndarray:
    """Count the rows that each model expects of each class: (models, features, cells, classes) int32.

    Cells are counted in runs, the same for all models; SAME_RUN marks all but the first cell of a run. Consider the
    rows of either half that the same models predict. A run has none of them or at least `least_rows` distinct ones, and
    at least as many as there are models. So no count, and no difference of two counts, stands for fewer rows, even if
    the client's own model predicts all rows alike. No more models than rows predict any run. Fractions are rounded up
    with their own probability.

    Args:
        x, column, row_ids, second, layout: As in `classes_in_both_halves`; x: (rows, features), NaN if missing.
        probabilities: (models, rows, classes), see `predict_classes`, of classes in both halves for that many models.
        thresholds: (features, cells, classes) uniform draws in [0, 1); that of a run's first cell rounds its counts.
        weights: (rows,), by which rows of a unit count as one row.
        counted_in: (features, cells), the cell in which the client counts the rows of each; None if each by itself.
    """
    cells, used = layout.cells_of(x), np.repeat(column.reported[:, None], x.shape[1], 1)
    if counted_in is not None:
        cells = counted_in[np.arange(cells.shape[1]), cells]
    reported = np.flatnonzero(column.reported)
    for feature, withheld in withheld_columns(
        x[reported], column.index[reported], row_ids[reported], layout, least_rows
    ):
        # rows that the counts of a feature withhold are withheld here too: the difference of both would show them
        used[:, feature] &= ~withheld[column.index]
    predicted: np.ndarray = np.any(probabilities > 0, axis=-1).T
    kinds = np.unique(np.column_stack([predicted, second]), axis=0, return_inverse=True)[1].ravel()
    used[~np.any(predicted, axis=-1)] = False
    weighted = probabilities if weights is None else probabilities * weights[:, None]
    min_rows = max(least_rows, len(probabilities))
    result = np.full((len(probabilities), *thresholds.shape[:2], layout.classes), SAME_RUN, np.int32)
    for feature in range(x.shape[1]):
        rows = used[:, feature]
        run_starts = _run_starts(cells[rows, feature], kinds[rows], row_ids[rows], layout.cells, min_rows)
        expected = np.zeros((layout.cells, len(probabilities), layout.classes))
        np.add.at(expected, run_starts[cells[rows, feature]], weighted[:, rows].swapaxes(0, 1))
        starts = np.unique(run_starts)
        result[:, feature, starts] = np.floor(expected[starts] + thresholds[feature, starts, None]).swapaxes(0, 1)
    return result


def distribute_runs(predicted: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Distribute the predicted counts of each run over its cells, in proportion to the rows of the predicted classes.

    predicted: (models, features, cells, classes), see `predicted_counts`; counts: (features, cells, classes + 1),
    reported. Returns the shape of `predicted`, float64.
    """
    cells = np.arange(predicted.shape[2])
    run_starts = np.maximum.accumulate(np.where((predicted == SAME_RUN).any((0, 3)), 0, cells), axis=-1)
    features = np.arange(len(run_starts))[:, None]
    predicted_classes = (predicted > 0).any(-2)
    rows = np.einsum("mfk,fck->mfc", predicted_classes, counts[..., :-1])
    rows_of_run = np.zeros((*run_starts.shape, len(predicted)))
    np.add.at(rows_of_run, (features, run_starts), np.moveaxis(rows, 0, -1))
    total = np.moveaxis(rows_of_run[features, run_starts], -1, 0)
    share = divide_or_zero(rows, total)
    return predicted[:, features, run_starts] * share[..., None]


def _run_starts(cells: np.ndarray, kind: np.ndarray, row_ids: np.ndarray, width: int, min_rows: int) -> np.ndarray:
    """Return the first cell of each cell's run, (width,); runs are as short as possible from the first cell on.

    Of each kind of row, a run has none or at least `min_rows` distinct rows, and as many units. cells, kind: (rows,).
    """
    ids = np.atleast_2d(row_ids.T)
    rows_by_kind = _count_by_kind(np.stack([cells, kind, ids[0]]), width)
    for units in ids[1:]:
        # a unit is shared by its cells: the sum over a run is at most the number of its units
        rows_by_kind = np.minimum(rows_by_kind, _count_by_kind(np.stack([cells, kind, units]), width, shared=True))
    starts: list[int] = []
    sums: list[np.ndarray] = []
    start, current = 0, np.zeros_like(rows_by_kind[0])
    for cell in range(width):
        current = current + rows_by_kind[cell]
        if _complete(current, min_rows):
            starts.append(start)
            sums.append(current)
            start, current = cell + 1, np.zeros_like(current)
    while starts and not _complete(current, min_rows):
        start, current = starts.pop(), current + sums.pop()
    starts.append(start)
    return np.array(starts)[np.searchsorted(starts, np.arange(width), side="right") - 1]


def _count_by_kind(table: np.ndarray, width: int, shared: bool = False) -> np.ndarray:
    """Count the distinct ids of each cell and kind: (width, kinds); `shared` divides each id among its cells.

    table: (3, rows), the cells, kinds and ids of rows.
    """
    counts = np.zeros((width, table[1].max(initial=0) + 1), float if shared else np.int64)
    cells, kinds, ids = np.unique(table, axis=1)
    share: np.ndarray | int = 1
    if shared:
        _, number, num_cells = np.unique(np.stack([kinds, ids]), axis=1, return_inverse=True, return_counts=True)
        share = 1 / num_cells[number.ravel()]
    np.add.at(counts, (cells, kinds), share)
    return counts


def _complete(rows: np.ndarray, min_rows: int) -> bool:
    return bool(rows.any() and ((rows == 0) | (rows >= min_rows)).all())


def _fit(design: np.ndarray, class_index: np.ndarray, row_weights: np.ndarray | None) -> np.ndarray:
    """Fit a regression: (classes of these rows, columns)."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=_PENALTY, tol=_TOLERANCE, max_iter=_STEPS)
    model.fit(design[:, :-1], class_index, row_weights)
    weights = np.column_stack([model.coef_, model.intercept_])
    return np.concatenate([np.zeros_like(weights), weights]) if len(weights) == 1 else weights
