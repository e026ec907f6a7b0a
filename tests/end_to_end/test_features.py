"""A table with names, kinds, bounds and missing values as typed: partitioned, trained on, and refused when params change."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from silos.storage.manifest import read_manifest, schema_of
from silos.storage.partition_store import open_client, open_missing

pytestmark = pytest.mark.slow

FEATURES = [
    {"name": "age", "low": -2, "high": 2, "missing": {"fill": -0.25}},
    {"name": "smokes", "kind": "categorical", "categories": [0, 1]},
]
QUICK = ("--set", "training.rounds=3", "--set", "training.optimiser.learning_rate=0.1")


@pytest.fixture(scope="module")
def folder(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A project with a table of its own, in which 30 ages are missing and one lies out of bounds; partitioned."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("features") / "project", server)
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-2, 2, 150), rng.integers(0, 2, 150)])
    y = (x.sum(axis=1) > 0.5).astype(int)
    x[rng.permutation(149)[:30], 0] = np.nan
    x[149, 0] = 2.5
    np.savez(folder.path / "own.npz", x=x, y=y, client=np.arange(150) % 3, features=["age", "smokes"])
    declare(folder.path, FEATURES)
    return folder


def declare(path: Path, features: list[dict[str, Any]]) -> None:
    """Writes params.yaml with these features of the table."""
    params = yaml.safe_load((path / "params.yaml").read_text())
    source, scheme = {"kind": "npz", "path": "own.npz"}, [{"kind": "column", "column": "client"}]
    params["data"] |= {"name": "own", "source": source, "scheme": scheme, "features": features}
    (path / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def test_features_reach_disk_the_same_twice_and_a_run_that_is_refused_under_others(folder: Any) -> None:
    made = folder.type("partition", "--json").json
    assert made["notes"][0].startswith("private/own/owner.yaml: made. Only the owner of these silos changes it")
    assert made["notes"][2:] == [
        "Values outside of the categories and bounds in data.features are kept: 1 row of 'age' (-2 to 2)."
    ]
    place = folder.path / "data" / "own"
    schema = schema_of(read_manifest(place))
    assert [feature.name for feature in schema.features] == ["age", "smokes"]
    missing = 0
    for entry in read_manifest(place).clients:
        for split in ("train", "validation", "test"):
            mask = open_missing(place, entry, split)
            assert (open_client(place, entry, split)[0][mask] == -0.25).all()
            missing += int(mask.sum())
    assert missing == 30
    declare(folder.path, [dict(reversed(feature.items())) for feature in FEATURES])
    again = folder.type("partition", "--json").json
    assert (again["changed"], again["data_version"]) == (False, made["data_version"])
    answer = folder.type("run", "fedavg", "--json", *QUICK).json
    assert answer["data_version"] == made["data_version"]
    assert answer["metrics"]["accuracy/mean"] > 0.5
    declare(folder.path, [FEATURES[0] | {"high": 3}, FEATURES[1]])
    refused = folder.type("run", "fedavg", *QUICK, code=2)
    assert "params.yaml: data.features[0].high: got 3.0, expected 2.0, with which data/own was made" in refused.err
    assert "Run `siloflow partition` to make the data again" in refused.err
    refused = folder.type("partition", code=2)
    assert "data.features[0].high: got 3.0, expected 2.0, as the silos' owner has set in" in refused.err
    (folder.path / "private" / "own" / "owner.yaml").unlink()  # nothing was reported yet
    other = folder.type("partition", "--json").json
    assert other["data_version"] != made["data_version"]
    assert len(other["notes"]) == 2, "of the owner's file"
    assert schema_of(read_manifest(place)).id != schema.id
