"""Arrays that siloflow has never seen, from a .npz to a comparison."""

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CLIENTS = ("Hôpital St-Anne", "ward 3/b", "../up", "日本", "only cats", "one row")
CLASSES = ("cat", "dog", "naïve newt")


def pictures(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """uint8 images, string labels, string clients; one client has one class, one has one row."""
    client = np.array([*np.repeat(CLIENTS[:-1], 40), CLIENTS[-1]])
    y = rng.integers(0, len(CLASSES), len(client))
    y[client == "only cats"] = 0
    x = rng.integers(0, 100, (len(client), 12, 12), dtype=np.uint8)
    x[np.arange(len(x)), 4 * y] += 150  # a bright row tells the class
    return {"x": x, "y": np.array(CLASSES)[y], "client": client}


def measurements(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """float64 features, whole numbers for labels and clients."""
    client = np.array([*np.repeat((7, 8), 60), 9])
    y = rng.integers(1, 3, len(client))
    return {"x": y[:, None] + 0.3 * rng.normal(size=(len(client), 5)), "y": y, "client": client}


@pytest.fixture(scope="module")
def answered(
    tmp_path_factory: pytest.TempPathFactory, databases: Path, server: str, folder_at: Callable[..., Any]
) -> dict[str, dict[str, Any]]:
    """What partition, show and compare say of each."""
    home = tmp_path_factory.mktemp("stranger")
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    raw["data"] |= {
        "name": "mine",
        "source": {"kind": "npz", "path": "arrays/my.npz"},
        "scheme": [{"kind": "column", "column": "client"}],
    }
    raw["training"]["rounds"] = 10
    raw["training"]["optimiser"]["learning_rate"] = 0.1

    def commands(arrays: Callable[..., dict[str, np.ndarray]]) -> dict[str, Any]:
        folder = folder_at(home / arrays.__name__, server)
        (folder.path / "arrays").mkdir(parents=True)
        (folder.path / "runs").mkdir()
        shutil.copy(databases / "mlflow.db", folder.path / "runs")
        np.savez(folder.path / "arrays" / "my.npz", **arrays(np.random.default_rng(0)))
        (folder.path / "params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
        return {
            "partition": folder.type("partition", "--json"),
            "show": folder.type("show", "--json") if arrays is pictures else None,
            "compare": folder.type("compare", "fedavg", "local_only", "--seeds", "0", "--json"),
            "folder": folder,
        }

    sets = (pictures, measurements)
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(("pictures", "measurements"), pool.map(commands, sets), strict=True))


@pytest.mark.parametrize("kind", ["pictures", "measurements"])
def test_a_strangers_arrays_reach_a_comparison(
    answered: dict[str, dict[str, Any]], kind: str, assert_quiet: Callable[[str], None]
) -> None:
    found = answered[kind]["compare"].json
    assert found["failed"] == []
    assert [p["method"] for p in found["paired"]] == ["local_only"]
    assert_quiet(answered[kind]["compare"].err)
    assert {row["method"]: row["accuracy/mean"] > 0.7 for row in found["table"]} == {
        "fedavg": True,
        "local_only": True,
    }


def test_clients_keep_the_names_that_they_came_with(answered: dict[str, dict[str, Any]]) -> None:
    shown = answered["pictures"]["show"].json
    assert {client["name"] for client in shown["clients"]} == set(CLIENTS)
    assert shown["classes"] == list(CLASSES)
    run = answered["pictures"]["compare"].json["runs"][0]
    assert {row["client"] for row in run["metrics"]["accuracy/by_client"]} == set(CLIENTS)


def test_show_tells_that_one_row_is_for_training(answered: dict[str, dict[str, Any]]) -> None:
    (shown,) = [c for c in answered["pictures"]["show"].json["clients"] if c["name"] == "one row"]
    assert shown["rows"] == {"train": 1, "validation": 0, "test": 0}


@pytest.mark.parametrize(("kind", "client"), [("pictures", "one row"), ("measurements", "9")])
def test_a_client_with_one_row_takes_part_and_is_not_scored(
    answered: dict[str, dict[str, Any]], kind: str, client: str
) -> None:
    for run in answered[kind]["compare"].json["runs"]:
        scores = {row["client"]: row["accuracy"] for row in run["metrics"]["accuracy/by_client"]}
        assert scores[client] is None
        assert all(0 <= score <= 1 for name, score in scores.items() if name != client)


def test_a_client_with_one_class_is_no_trouble(answered: dict[str, dict[str, Any]]) -> None:
    (shown,) = [c for c in answered["pictures"]["show"].json["clients"] if c["name"] == "only cats"]
    assert shown["label_shares"]["cat"] == 1
    for run in answered["pictures"]["compare"].json["runs"]:
        (row,) = [r for r in run["metrics"]["accuracy/by_client"] if r["client"] == "only cats"]
        assert row["accuracy"] is not None


def test_names_of_clients_make_no_paths(answered: dict[str, dict[str, Any]]) -> None:
    folder = answered["pictures"]["folder"].path
    for made in (folder / "data" / "mine", folder / "private" / "mine"):
        assert made.is_dir()
    outside = [path for path in folder.parent.rglob("*up*") if not path.is_relative_to(folder)]
    assert not [path for path in outside if re.search(r"\bup\b", path.name)]  # a folder may be called grouping
    files = {path.name for path in (folder / "data" / "mine").glob("*.safetensors")}
    assert len(files - {"manifest.safetensors"}) == len(CLIENTS)
