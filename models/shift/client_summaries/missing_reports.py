"""What clients' answers cannot show: features without a value, features that are not told, and bins that hold nearly all."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from models.shift.client_summaries.client_summary import Layout, Summaries, of_all
from models.shift.moment_tests import ROWS

_NEARLY_ALL = 0.95
_ENOUGH = 8  # bins, of which two are few


class MissingReports(NamedTuple):
    """absent: which clients have no value of a feature in the rows that they tell of, (clients, features) bool; untold: of
    which features, though they tell of rows, they tell no value, since too few rows of some class have one; crowded:
    (features,) bool, numbers that differ, nearly all of which lie in one bin or in two beside each other."""

    absent: np.ndarray
    untold: np.ndarray
    crowded: np.ndarray

    def named(self, clients: Sequence[str], features: Sequence[str]) -> dict[str, Any]:
        """By the fields' names: feature to clients, and the crowded features."""

        def of(there: np.ndarray) -> dict[str, list[str]]:
            silos = {name: _those(clients, column) for name, column in zip(features, there.T, strict=True)}
            return {name: some for name, some in silos.items() if some}

        return {"absent": of(self.absent), "untold": of(self.untold), "crowded": _those(features, self.crowded)}


def missing_reports(told: Summaries, layout: Layout) -> MissingReports:
    """Of counts as they are: noise hides which are none, and under it nothing is found."""
    shape = (len(told.rows), len(layout.names))
    none = MissingReports(np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape[1], bool))
    if told.noise is not None:
        return none
    rows = np.nan_to_num(told.moments[..., ROWS]).sum(-1)
    if not told.counts.shape[2]:
        return none._replace(untold=(rows == 0) & rows.any(-1, keepdims=True))
    cells = told.counts.sum(-1)
    total, missing = cells.sum(-1), cells[..., -1]
    of_class = told.counts.sum(2).max(1, initial=0)  # nothing is told of a feature in a class where few have a value
    of_class[:, :-1] = np.maximum(of_class[:, :-1], np.nan_to_num(told.labels))
    absent = (total > 0) & (missing == of_class.sum(-1, keepdims=True))
    untold = (total == missing) & ~absent & total.any(-1, keepdims=True)
    values = np.pad(cells[..., :-1].sum(0), ((0, 0), (0, 1)))
    beside = values[:, :-1] + values[:, 1:]  # an edge may lie in the middle of them
    varies = np.nan_to_num(of_all(told)[:, 2]) > 0
    crowded = layout.numeric & varies & (beside.max(-1, initial=0) > _NEARLY_ALL * values.sum(-1))
    crowded &= layout.bins >= _ENOUGH
    return MissingReports(absent, untold, crowded)


def _those(names: Sequence[str], there: np.ndarray) -> list[str]:
    return [name for name, is_so in zip(names, there.tolist(), strict=True) if is_so]
