"""What a client's rule foresees of rows: logistic regressions on halves of its rows, and the labels they expect in bins.

Fomichev, Kholod and Kocheshkov look at one feature at a time; P(Y | one feature) may move because another one did. What a
model of all features foresees of a client's rows moves with it, and tells such a change from one of P(Y | X).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import softmax

from models.shift.client_summaries.client_summary import (
    LEAST_ROWS,
    Columns,
    Layout,
    Summaries,
    of_all,
    too_few,
)
from models.shift.client_summaries.query import Query

JOINED = -1
"""Stands where a cell is told with the one before it."""

_FAR = 5.0  # deviations, beyond which a value counts as one that is so far away
_PENALTY = 10.0  # scikit-learn's C
_CLOSE = 1e-5  # of the gradient, at which a regression is fitted
_STEPS = 500


@dataclass(frozen=True, eq=False)
class Design:
    """What a regression sees of a row, the same for all clients: numbers in deviations from the mean, (features,) each.

    A missing number is the mean; each category, and that a value misses where one may, is a column of its own.
    """

    question: Query
    centre: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, question: Query, told: Summaries) -> "Design":
        """By the mean and deviation of all clients' rows together, as what they told has it."""
        whole = np.nan_to_num(of_all(told))
        return cls(question, whole[:, 1], np.where(whole[:, 2] > 0, whole[:, 2], 1.0))

    @cached_property
    def id(self) -> str:
        """The same of two designs in which regressions mean the same."""
        parts = (self.question.id.encode(), self.centre.tobytes(), self.spread.tobytes())
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def seen(self, x: np.ndarray) -> np.ndarray:
        """x: (rows, features), NaN where missing; (rows, columns), of which the last is 1."""
        layout = self.question.layout
        cells, columns = layout.cells_of(x), []
        for at, values in enumerate(layout.categories):
            if values is None:
                far = (x[:, at] - self.centre[at]) / self.spread[at]
                columns.append(np.clip(np.nan_to_num(far), -_FAR, _FAR))
            else:
                columns += [cells[:, at] == place for place in range(len(values))]
            if layout.missing and layout.missing[at]:
                columns.append(np.isnan(x[:, at]))
        return np.stack([*columns, np.ones(len(x))], -1).astype(np.float64)


def in_both_halves(column: Columns, same: np.ndarray, second: np.ndarray, models: int = 1) -> np.ndarray:
    """The classes that are told alone, and that so many models may be fitted on or asked about: (classes,) bool.

    They have LEAST_ROWS different rows in either half, and as many as there are models. same: (rows,) which of the client's
    different rows each is; second: (rows,) bool, which are in the second half.
    """
    return column.alone & np.array(
        [
            all(len(np.unique(same[(column.of == at) & half])) >= _least(models) for half in (~second, second))
            for at in range(len(column.alone))
        ]
    )


def fitted_halves(seen: np.ndarray, of: np.ndarray, second: np.ndarray, known: np.ndarray) -> np.ndarray:
    """A multinomial logistic regression of either half's rows of known classes: (2, classes, columns), NaN of the others.

    seen: (rows, columns), see `Design`; of: (rows,) classes. NaN altogether where fewer than two classes are known.
    """
    weights = np.full((2, len(known), seen.shape[1]), np.nan)
    if known.sum() < 2:
        return weights
    there = np.append(known, False)[of]
    for place, half in enumerate((~second, second)):
        weights[place, known] = _fitted(seen[there & half], of[there & half])
    return weights


def predictions_on(
    seen: np.ndarray, of: np.ndarray, classes: np.ndarray, weights: np.ndarray, own: np.ndarray | None
) -> np.ndarray:
    """The chances of each class that a client's two models, (2, classes, columns), give rows: (rows, classes) float64.

    Of the client's own rows, own (rows,) bool says which are in the second half, and the model that has not seen a row
    speaks; of another's rows the mean of both. Rows are of those classes, (classes,) bool, that both know, and only these
    are possible: others have 0, and so has every row of a class (rows,) that the models do not know.
    """
    known = ~np.isnan(weights).any((0, 2)) & classes
    chances = np.zeros((len(seen), weights.shape[1]))
    there = np.append(known, False)[of]
    if not there.any():
        return chances
    first, second = (softmax(seen[there] @ half[known].T, axis=-1) for half in weights)
    mean = (first + second) / 2 if own is None else np.where(own[there, None], first, second)
    chances[np.ix_(there, known)] = mean
    return chances


def predicted_counts(
    x: np.ndarray,
    column: Columns,
    same: np.ndarray,
    second: np.ndarray,
    layout: Layout,
    chances: np.ndarray,
    ends: np.ndarray,
) -> np.ndarray:
    """The rows of each class that each model expects, as whole numbers: (models, features, cells, classes) int32.

    chances: (models, rows, classes), see `foreseen`, of classes in both halves for so many models. Rows are those that
    counts are told of. Cells are told in runs, the same for all models, and JOINED stands in all but the first of each. Of
    the rows of either half that the same models speak of, a run has none or LEAST_ROWS different ones, and as many as there
    are models: whatever the models, also if of the client's own one says the same of every row, neither a number nor a
    difference of two is of fewer, and no more models than rows speak of any.
    A number between two whole ones becomes the upper one if the draw for its run, ends (features, cells, classes) in [0, 1)
    at its first cell, says so: as often as it is near to it.
    """
    cells, used = layout.cells_of(x), np.repeat(column.kept[:, None], x.shape[1], 1)
    kept = np.flatnonzero(column.kept)
    for feature, few in too_few(x[kept], column.of[kept], same[kept], layout):
        used[:, feature] &= ~few[column.of]
    speak: np.ndarray = np.any(chances > 0, axis=-1).T
    kinds = np.unique(np.column_stack([speak, second]), axis=0, return_inverse=True)[1].ravel()
    used[~np.any(speak, axis=-1)] = False
    told = np.full((len(chances), *ends.shape[:2], layout.classes), JOINED, np.int32)
    for feature in range(x.shape[1]):
        mine = used[:, feature]
        firsts = _firsts(cells[mine, feature], kinds[mine], same[mine], layout.cells, _least(len(chances)))
        expected = np.zeros((layout.cells, len(chances), layout.classes))
        np.add.at(expected, firsts[cells[mine, feature]], chances[:, mine].swapaxes(0, 1))
        runs = np.unique(firsts)
        told[:, feature, runs] = np.floor(expected[runs] + ends[feature, runs, None]).swapaxes(0, 1)
    return told


def apportioned(foreseen: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """What models expect in each cell, each run's rows dealt to its cells as the rows of the classes that are expected are.

    foreseen: (models, features, cells, classes), see `predicted_counts`; counts: (features, cells, classes + 1), rows that
    the client told. (models, features, cells, classes) float64.
    """
    at = np.arange(foreseen.shape[2])
    firsts = np.maximum.accumulate(np.where((foreseen == JOINED).any((0, 3)), 0, at), axis=-1)
    features = np.arange(len(firsts))[:, None]
    known = (foreseen > 0).any(-2)
    rows = np.einsum("mfk,fck->mfc", known, counts[..., :-1])
    of_run = np.zeros((*firsts.shape, len(foreseen)))
    np.add.at(of_run, (features, firsts), np.moveaxis(rows, 0, -1))
    whole = np.moveaxis(of_run[features, firsts], -1, 0)
    share = np.divide(rows, whole, out=np.zeros_like(rows), where=whole > 0)
    return foreseen[:, features, firsts] * share[..., None]


def _least(models: int) -> int:
    """Different rows that a number of so many models stands for."""
    return max(LEAST_ROWS, models)


def _firsts(cells: np.ndarray, kinds: np.ndarray, same: np.ndarray, width: int, least: int) -> np.ndarray:
    """The first cell of each cell's run, (width,): runs are as short as can be from the first cell on.

    cells, kinds, same: (rows,). Of each kind a run has none or `least` different rows; all rows together have.
    """
    there = np.zeros((width, kinds.max(initial=0) + 1), np.int64)
    rows = np.unique(np.stack([cells, kinds, same]), axis=1)
    np.add.at(there, (rows[0], rows[1]), 1)
    firsts: list[int] = []
    sums: list[np.ndarray] = []
    first, so_far = 0, np.zeros_like(there[0])
    for cell in range(width):
        so_far = so_far + there[cell]
        if _whole(so_far, least):
            firsts.append(first)
            sums.append(so_far)
            first, so_far = cell + 1, np.zeros_like(so_far)
    while firsts and not _whole(so_far, least):
        first, so_far = firsts.pop(), so_far + sums.pop()
    firsts.append(first)
    return np.array(firsts)[np.searchsorted(firsts, np.arange(width), side="right") - 1]


def _whole(rows: np.ndarray, least: int) -> bool:
    return bool(rows.any() and ((rows == 0) | (rows >= least)).all())


def _fitted(seen: np.ndarray, of: np.ndarray) -> np.ndarray:
    """(classes of these rows, columns)."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=_PENALTY, tol=_CLOSE, max_iter=_STEPS).fit(seen[:, :-1], of)
    weights = np.column_stack([model.coef_, model.intercept_])
    return np.concatenate([np.zeros_like(weights), weights]) if len(weights) == 1 else weights
