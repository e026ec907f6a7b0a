"""Gaps in the reports of clients: features without values, withheld features, and bins that hold nearly all values."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from models.shift.client_summaries.client_summary import Layout, Summaries, overall_moments
from models.shift.moment_tests import ROWS

_NEARLY_ALL = 0.95
_MIN_BINS = 8  # of which two are few


class MissingReports(NamedTuple):
    """Gaps by client and feature.

    absent: (clients, features) bool, no reported row has a value; withheld: (clients, features) bool, rows are
    reported but no value, since a class has too few rows with one; crowded: (features,) bool, values vary and nearly
    all lie in one bin or in two adjacent bins.
    """

    absent: np.ndarray
    withheld: np.ndarray
    crowded: np.ndarray

    def to_dict(self, clients: Sequence[str], features: Sequence[str]) -> dict[str, Any]:
        """Return plain JSON by field: clients by feature, and the crowded features."""

        def by_feature(mask: np.ndarray) -> dict[str, list[str]]:
            silos = {name: _select(clients, column) for name, column in zip(features, mask.T, strict=True)}
            return {name: listed for name, listed in silos.items() if listed}

        return {
            "absent": by_feature(self.absent),
            "withheld": by_feature(self.withheld),
            "crowded": _select(features, self.crowded),
        }


def missing_reports(summaries: Summaries, layout: Layout) -> MissingReports:
    """Find the gaps in counts; none are found under noise, which hides empty cells."""
    shape = (len(summaries.rows), len(layout.names))
    none = MissingReports(np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape[1], bool))
    if summaries.noise is not None:
        return none
    rows = np.nan_to_num(summaries.moments[..., ROWS]).sum(-1)
    if not summaries.counts.shape[2]:
        return none._replace(withheld=(rows == 0) & rows.any(-1, keepdims=True))
    cells = summaries.counts.sum(-1)
    total, missing = cells.sum(-1), cells[..., -1]
    rows_of_class = summaries.counts.sum(2).max(1, initial=0)  # a feature may be withheld in a class
    rows_of_class[:, :-1] = np.maximum(rows_of_class[:, :-1], np.nan_to_num(summaries.labels))
    absent = (total > 0) & (missing == rows_of_class.sum(-1, keepdims=True))
    withheld = (total == missing) & ~absent & total.any(-1, keepdims=True)
    values = np.pad(cells[..., :-1].sum(0), ((0, 0), (0, 1)))
    adjacent = values[:, :-1] + values[:, 1:]  # an edge may split the crowd
    varies = np.nan_to_num(overall_moments(summaries)[:, 2]) > 0
    crowded = layout.numeric & varies & (adjacent.max(-1, initial=0) > _NEARLY_ALL * values.sum(-1))
    crowded &= layout.bins >= _MIN_BINS
    return MissingReports(absent, withheld, crowded)


def _select(names: Sequence[str], mask: np.ndarray) -> list[str]:
    return [name for name, selected in zip(names, mask.tolist(), strict=True) if selected]
