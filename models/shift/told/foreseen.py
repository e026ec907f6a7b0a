"""What a client's rule foresees of rows: logistic regressions on halves of its rows, and the labels they expect in bins.

Fomichev, Kholod and Kocheshkov look at one feature at a time; P(Y | one feature) may move because another one did. What a
model of all features foresees of a client's rows moves with it, and tells such a change from one of P(Y | X).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import softmax

from models.shift.told.question import Question
from models.shift.told.summaries import LEAST_ROWS, Columns, Layout, Summaries, of_all, too_few

_FAR = 5.0  # deviations, beyond which a value counts as one that is so far away
_PENALTY = 10.0  # scikit-learn's C
_CLOSE = 1e-5  # of the gradient, at which a regression is fitted
_STEPS = 500


@dataclass(frozen=True, eq=False)
class Design:
    """What a regression sees of a row, the same for all clients: numbers in deviations from the mean, (features,) each.

    A missing number is the mean; each category, and that a value misses where one may, is a column of its own.
    """

    question: Question
    centre: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, question: Question, told: Summaries) -> "Design":
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


def in_both_halves(column: Columns, same: np.ndarray, second: np.ndarray, classes: int) -> np.ndarray:
    """The classes that are told alone, and have LEAST_ROWS different rows in either half: (classes,) bool.

    same: (rows,) which of the client's different rows each is; second: (rows,) bool, which are in the second half.
    """
    return column.alone & np.array(
        [
            all(len(np.unique(same[(column.of == at) & half])) >= LEAST_ROWS for half in (~second, second))
            for at in range(classes)
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


def foreseen(seen: np.ndarray, of: np.ndarray, weights: np.ndarray, own: np.ndarray | None) -> np.ndarray:
    """The chances of each class that a client's two models, (2, classes, columns), give rows: (rows, classes) float64.

    Of the client's own rows, own (rows,) bool says which are in the second half, and the model that has not seen a row
    speaks; of another's rows the mean of both. Rows are of classes that both know, and only these are possible: others have
    0, and so has every row of a class (rows,) that the models do not know.
    """
    known = ~np.isnan(weights[0, :, 0]) & np.isin(np.arange(weights.shape[1]), of)
    chances = np.zeros((len(seen), weights.shape[1]))
    there = np.append(known, False)[of]
    if not there.any():
        return chances
    first, second = (softmax(seen[there] @ half[known].T, axis=-1) for half in weights)
    mean = (first + second) / 2 if own is None else np.where(own[there, None], first, second)
    chances[np.ix_(there, known)] = mean
    return chances


def foreseen_counts(
    x: np.ndarray, column: Columns, same: np.ndarray, layout: Layout, chances: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """The rows of each class that are expected in each cell, as whole numbers: (features, cells, classes) int32.

    Rows are those that counts are told of, so that their sums over classes are known already. A number between two whole
    ones becomes the upper one if the draw for its cell, ends (features, cells, classes) in [0, 1), says so: as often as it
    is near to it, so that a cell of few rows tells no more than a count does.
    """
    expected = np.zeros((*ends.shape[:2], layout.classes))
    cells = layout.cells_of(x)
    used = np.repeat(column.kept[:, None], x.shape[1], 1)
    kept = np.flatnonzero(column.kept)
    for feature, few in too_few(x[kept], column.of[kept], same[kept], layout):
        used[:, feature] &= ~few[column.of]
    for feature in range(x.shape[1]):
        mine = used[:, feature]
        np.add.at(expected[feature], cells[mine, feature], chances[mine])
    return np.floor(expected + ends).astype(np.int32)


def _fitted(seen: np.ndarray, of: np.ndarray) -> np.ndarray:
    """(classes of these rows, columns)."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=_PENALTY, tol=_CLOSE, max_iter=_STEPS).fit(seen[:, :-1], of)
    weights = np.column_stack([model.coef_, model.intercept_])
    return np.concatenate([np.zeros_like(weights), weights]) if len(weights) == 1 else weights
