"""Reports as `report` makes them, by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from models.diagnosis.guarded_tests import TYPES


def pair(first: str, second: str, *types: str, features: dict[str, float] | None = None, **also: Any) -> dict[str, Any]:
    """One pair; grades are significant of all that it has."""
    line = {
        "first": first,
        "second": second,
        "types": list(types),
        "undetermined": False,
        "why": None,
        "reports": [True, True],
        "transform": False,
        "margins_only": False,
        "concept_identifiable": True,
        "features": features or {},
        "input_features": features or {},
        "rule_features": {},
        "rows": [1000, 1000],
        "rows_ratio": 1.0,
        "strength": {"grades": dict.fromkeys(TYPES, "significant")},
    }
    return line | also


def between(places: tuple[int, int], pairs: int, also: dict[str, Any] | None = None, **types: int) -> dict[str, Any]:
    """What the pairs of two groups say together."""
    line = {
        "groups": list(places),
        "pairs": pairs,
        "types": {name: types.get(name, 0) for name in TYPES},
        "grades": {name: "significant" for name in TYPES if types.get(name)},
        "none": pairs - max(types.values(), default=0),
        "undetermined": 0,
        "transform": 0,
        "margins_only": 0,
        "labels_differ": 0,
        "inputs_differ": 0,
        "not_identifiable": 0,
        "rule_unknown": 0,
        "features": [],
        "rule_features": [],
    }
    return {"input_features": (also or {}).get("features", [])} | line | (also or {})


@pytest.fixture
def a_report() -> Callable[..., dict[str, Any]]:
    """Of these groups, pairs and lines; `also` replaces parts of it."""

    def make(
        groups: Sequence[Sequence[str]],
        pairs: Sequence[dict[str, Any]],
        lines: Sequence[dict[str, Any]],
        ranking: Sequence[str] = (),
        **also: Any,
    ) -> dict[str, Any]:
        clients = [client for group in groups for client in group]
        report = {
            "clients": clients,
            "features": ["age"],
            "classes": ["well", "ill"],
            "groups": [list(group) for group in groups],
            "pairs_of": "silos",
            "pairs": list(pairs),
            "between": list(lines),
            "rest": [{"client": client, "features": {}} | pair(client, "") for client in clients],
            "gaps": {"absent": {}, "withheld": {}, "merged": {}, "crowded": []},
            **{
                key: [{"feature": name, "mean": 1.0, "largest": 1.0} for name in ranking]
                for key in ("ranking", "ranking_of_inputs")
            },
            "label": "",
            "least_rows": [10, 10],
            "query": {"pictures": False, "counts": True, "targets": [], "bins": 32, "question": "", "rows_noise": 0.0},
            "verdict": "guarded",
            "noise": None,
            "second_look": None,
            "refused": {},
            "unit": None,
            "repeats": [],
            "persons": [],
            "data_faults": [],
            "new_rows": {"silos": [], "refused": {}, "bytes": 0, "reason": None},
        }
        return report | also

    return make


@pytest.fixture
def a_pair() -> Callable[..., dict[str, Any]]:
    """See `pair`."""
    return pair


@pytest.fixture
def a_line() -> Callable[..., dict[str, Any]]:
    """See `between`."""
    return between
