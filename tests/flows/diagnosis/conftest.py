"""Reports as `report` makes them, by hand, and the project of an owner who answers for a table."""

import csv
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from flows.diagnose import run_diagnosis
from flows.project.make_partition import make
from models.diagnosis.guarded_tests import TYPES
from silos.errors import UserError
from tasks.execution.task_runner import PlainRunner


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


HEADER = ["hospital", "patient", "age", "crp", "sex", "ward", "outcome"]
SOURCE = {"kind": "table", "path": "visits.csv", "label": "outcome", "client": "hospital", "drop": ["patient"]}
BOUNDS = [{"name": "age", "low": 0, "high": 120}, {"name": "crp", "low": 0, "high": 60}]


def _table(seed=0, rows=180):
    """Rows of two hospitals; each patient has a crp of their own."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(rows):
        crp = round(20 + index / 20 + rng.uniform(0, 0.02), 4)
        outcome = "dead" if rng.random() < 0.4 else "well"
        cells = [int(rng.normal(60, 9)), crp, "fm"[rng.integers(2)], ["eye", "ear"][rng.integers(2)], outcome]
        found.append([["north", "south"][index % 2], f"p{index}", *cells])
    return found


class Hospital:
    """A project of the table, whose owner has partitioned it once."""

    table = staticmethod(_table)

    def __init__(self, world, **source):
        self.here, self.folder = world, world.folder
        self.here.raw["data"] = {
            "name": "visits",
            "seed": 0,
            "source": {**SOURCE, **source},
            "features": BOUNDS,
            "scheme": [{"kind": "column", "column": "client"}],
            "split": {"validation": 0.0, "test": 0.0},
        }
        (self.folder / "params.yaml").write_text(json.dumps(self.here.raw))

    def save(self, rows, header=HEADER):
        with (self.folder / "visits.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])

    def owner(self, **keys):
        """The owner changes keys of the file."""
        path = self.folder / "private" / "visits" / "owner.yaml"
        lines = path.read_text().splitlines()
        kept = [line for line in lines if line.split(":")[0] not in keys]
        path.write_text("\n".join([*kept, *(f"{key}: {json.dumps(value)}" for key, value in keys.items())]))

    def diagnose(self, *overrides, partition=True):
        """What a diagnosis reports, or the sentence that refuses it."""
        try:
            project = self.here.open(*overrides)
            if partition:
                make(project)
            report = run_diagnosis(project, PlainRunner())[1]
        except UserError as error:
            return str(error)
        return report["refused"].get("north", report)


@pytest.fixture
def hospital(world):
    made = Hospital(world())
    made.save(made.table())
    make(made.here.open())
    return made
