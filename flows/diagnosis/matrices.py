"""What was found of all pairs, as square tables of silos, or of groups where there are too many silos."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.shift.nested_tests import TYPES
from tasks.diagnosis.compare_silos import Compared


def matrices(found: Compared, names: Sequence[str], lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows and columns in the order of `names`; `order` are their places with those that are alike beside each other.

    feature, label and concept are D_X, D_Y and D_{Y|X}; chance is how probable such a difference is where there is none, and
    1 of a silo with itself. None where a number is unknown. verdict: types, or `undetermined`. lines: a pair each, in order.
    """
    pairs, strong = found.pairs, found.strengths
    columns = {name: strong.distances[:, at] for at, name in enumerate(TYPES)}
    columns |= {"in_classes": strong.in_classes, "wasserstein": strong.wasserstein}
    square = {name: _square(found, np.round(column, 4), len(names), 0.0) for name, column in columns.items()}
    verdicts: list[list[list[str]]] = [[[] for _ in names] for _ in names]
    for a, b, line in zip(pairs.first.tolist(), pairs.second.tolist(), lines, strict=True):
        verdicts[a][b] = verdicts[b][a] = ["undetermined"] if line["undetermined"] else list(line["types"])
    grouped = [at for group in found.groups for at in group]
    return {
        "names": list(names),
        "order": list(range(len(names))) if found.of_groups else grouped,
        **square,
        "chance": _square(found, pairs.chance, len(names), 1.0),
        "verdict": verdicts,
    }


def _square(found: Compared, column: np.ndarray, size: int, own: float) -> list[list[float | None]]:
    table = np.full((size, size), own)
    table[found.pairs.first, found.pairs.second] = table[found.pairs.second, found.pairs.first] = column
    return [[value if np.isfinite(value) else None for value in line] for line in table.tolist()]
