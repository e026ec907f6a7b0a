"""Projects whose silos a test writes itself, one version after another; and reports as `report` makes them, by hand."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flows.project.project import Project
from models.diagnosis.nested_tests import TYPES
from silos.privacy.silo_policy import make_store
from silos.storage.partition_store import write
from silos.versioning.dvc_files import record

CHECKOUT = Path(__file__).parents[3]

Own = tuple[np.ndarray, np.ndarray]


class World:
    """A folder with params.yaml; `write` makes a version of data/ of these rows by client, all of them to train on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.raw = yaml.safe_load((CHECKOUT / "params.yaml").read_text(encoding="utf-8"))
        folder.mkdir(exist_ok=True)
        git(folder, "init", "-q")
        (folder / ".gitignore").write_text("/data\n/runs/\n/private/\n/cache/\n*.npz\n")

    def write(
        self,
        rows: Mapping[str, Own],
        task: str = "classification",
        features: Any = None,
        test: float = 0.0,
        **arrays: Any,
    ) -> str:
        """The version's revision in git; with `test`, this share of each client's rows is drawn for testing."""
        client = np.repeat(list(rows), [len(y) for _, y in rows.values()])
        x, y = (np.concatenate([own[at] for own in rows.values()]) for at in (0, 1))
        x = x.astype(np.float32)
        if not test:
            arrays["split"] = np.repeat("train", len(y))
        np.savez(self.folder / "own.npz", x=x, y=y, client=client, **arrays)
        data: dict[str, Any] = {
            "name": "own",
            "seed": 0,
            "source": {"kind": "npz", "path": "own.npz", "task": task}
            | ({"unit": "patient"} if "patient" in arrays else {}),
            "scheme": [{"kind": "column", "column": "client"}],
            "split": {"validation": 0.0, "test": test},
        }
        self.raw["data"] = data | ({"features": features} if features else {})
        if task == "regression":
            self.raw["training"]["objective"] = {"kind": "squared_error"}
            self.raw["comparison"]["methods"] = ["local_only", "fedavg"]
        (self.folder / "params.yaml").write_text(yaml.safe_dump(self.raw, sort_keys=False), encoding="utf-8")
        project = self.open()
        if not (self.folder / "data").exists():
            make_store(self.folder / "private" / "own")
        write(self.folder / "data" / "own", project.params.data, self.folder)
        record(self.folder)
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-qm", "a version", "--allow-empty")
        return git(self.folder, "rev-parse", "--short", "HEAD").strip()

    def open(self, *overrides: str) -> Project:
        """As a command opens it now."""
        return Project.open(overrides, self.folder)


@pytest.fixture(scope="session")
def world_at() -> type[World]:
    """See `World`."""
    return World


@pytest.fixture
def world(tmp_path: Path) -> Callable[[], World]:
    """Makes worlds."""
    return lambda: World(tmp_path / "project")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=n@localhost"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


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
            "gaps": {"absent": {}, "withheld": {}, "crowded": []},
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
