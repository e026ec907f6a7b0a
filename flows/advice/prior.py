"""Order the candidates of a race by what methods gained where silos differed in a similar way.

The evidence is a matrix of federations with one kind of shift each; `siloflow bench --advice` measures it. It decides
which settings start first, and so which ones race when minutes are few; it never decides who wins.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flows.advice.race import Candidate
from models.shift.nested_tests import TYPES

EVIDENCE = Path(__file__).with_name("evidence.json")
"""The matrix as JSON: by cell, its situation and each method's gain."""

NEAREST = 5
"""The number of cells from which the gain of a method is predicted."""


class Situation(NamedTuple):
    """How silos differ: the share of pairs with each type of shift, and log2 of the mean training rows of a silo."""

    label: float
    feature: float
    concept: float
    rows: float

    def distance(self, other: "Situation") -> float:
        """Return the distance: 1 for a type that all pairs have here and none there, and 1 for eight times the rows."""
        *types, rows = (first - second for first, second in zip(self, other, strict=True))
        return math.hypot(*types, rows / 3)


class Evidence(NamedTuple):
    """A cell of the matrix: how its silos differed, and each method's gain over FedAvg in points."""

    name: str
    situation: Situation
    gains: Mapping[str, float]


def situation_of(report: Mapping[str, Any], rows: Sequence[int]) -> Situation:
    """Return the situation that a diagnosis reports, with the numbers of training rows of the silos."""
    pairs = max(sum(record["pairs"] for record in report["between"]), 1)
    share = {name: sum(record["types"][name] for record in report["between"]) / pairs for name in TYPES}
    return Situation(share["label"], share["feature"], share["concept"], math.log2(max(sum(rows) / len(rows), 1)))


def load_evidence() -> list[Evidence]:
    """Return the cells that siloflow comes with."""
    cells: dict[str, Any] = json.loads(EVIDENCE.read_text(encoding="utf-8"))
    return [Evidence(name, Situation(*cell["situation"]), cell["gains"]) for name, [cell] in cells.items()]


def predicted_gains(
    evidence: Sequence[Evidence], situation: Situation
) -> tuple[dict[str, float], dict[str, Any] | None]:
    """Return each method's mean gain in points over the nearest cells, and the nearest `cell` with its `distance`.

    Without evidence there are no gains, and the nearest is None.
    """
    nearest = sorted(evidence, key=lambda cell: cell.situation.distance(situation))[:NEAREST]
    methods = {method for cell in nearest for method in cell.gains}
    gains = {
        method: math.fsum(known) / len(known)
        for method in methods
        if (known := [cell.gains[method] for cell in nearest if method in cell.gains])
    }
    if not nearest:
        return {}, None
    return gains, {"cell": nearest[0].name, "distance": round(nearest[0].situation.distance(situation), 3)}


def in_order(candidates: Sequence[Candidate], gains: Mapping[str, float], always: Sequence[str]) -> list[Candidate]:
    """Return the candidates in the order in which they start.

    The k-th setting of the method with the r-th greatest gain has the place k · r. So methods that promise more start more
    settings, and every method starts one early. Without any gains the order stays.

    Args:
        candidates: The candidates; a method's first setting comes first.
        gains: Each method's predicted gain over FedAvg; 0 for methods without evidence.
        always: The methods whose first settings start before all others.
    """
    if not gains:
        return list(candidates)
    methods = sorted({c.method for c in candidates}, key=lambda method: (-gains.get(method, 0.0), method))
    place, started = {}, dict[str, int]()
    for candidate in candidates:
        started[candidate.method] = number = started.get(candidate.method, 0) + 1
        is_first = number == 1 and candidate.method in always
        place[candidate.name] = 0 if is_first else number * (methods.index(candidate.method) + 1)
    return sorted(candidates, key=lambda candidate: place[candidate.name])
