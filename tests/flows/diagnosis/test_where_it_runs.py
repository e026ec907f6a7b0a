"""Where a diagnosis runs does not matter: threads, processes and Dask give what one thread gives, noise included."""

import json
from pathlib import Path

import numpy as np
import pytest

from flows.diagnose import compare_with_version, diagnose, run_diagnosis
from tasks.execution.task_runner import PlainRunner

pytestmark = pytest.mark.slow

NOISE = "diagnose.noise={epsilon: 8}"


@pytest.fixture(scope="module")
def twenty(world_at, tmp_path_factory):
    """Twenty clients in two stacks, of two laws, two of them too small; and an earlier version."""
    own, rng = world_at(tmp_path_factory.mktemp("twenty") / "project"), np.random.default_rng(0)
    rows = {}
    for at in range(20):
        count = 12 if at in (3, 17) else 150
        y = np.arange(count) % 3
        rows[f"c{at:02d}"] = (rng.normal(size=(count, 2)) + np.column_stack([y, at % 2 * np.ones(count)]), y)
    features = [{"name": name, "low": -4, "high": 6} for name in "ab"]
    before = own.write(rows, features=features)
    own.write({**rows, "c05": (rows["c05"][0] + 1, rows["c05"][1])}, features=features)
    return own, before


@pytest.fixture(scope="module")
def alone():
    """What one thread has found, by the overrides."""
    return {}


@pytest.mark.usefixtures("prefect")
@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("threads", []),
        ("processes", [NOISE]),
        ("dask", []),
    ],
)
def test_workers_find_what_one_thread_finds(kind, overrides, twenty, alone, monkeypatch):
    own, before = twenty
    monkeypatch.chdir(own.folder)
    if tuple(overrides) not in alone:
        _, alone[tuple(overrides)] = run_diagnosis(own.open(*overrides), PlainRunner())
        forget(own.folder / "private")
    expected = alone[tuple(overrides)]
    assert any(pair["types"] for pair in expected["pairs"])
    where = [*overrides, f"runner.kind={kind}", "runner.workers=2"]
    there = diagnose(overrides=where)
    assert text({name: there[name] for name in expected}) == text(expected)
    if kind == "threads":
        _, then = compare_with_version(own.open(), PlainRunner(), before)
        forget(own.folder / "private")
        there = diagnose(against=before, overrides=where)
        assert text({name: there[name] for name in then}) == text(then)
    forget(own.folder / "private")


def text(found):
    return json.dumps(found, sort_keys=True)


KEPT = ("secret", "lock", "owner.yaml")


def forget(private: Path) -> None:
    """All that was told; the secrets stay, from which the noise follows."""
    books = [path for path in private.rglob("*") if path.is_file() and path.name not in KEPT]
    assert books
    for book in books:
        book.unlink()
