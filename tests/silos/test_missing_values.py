"""Which values are missing stays beside the rows that miss them, from the archive through any scheme to the disk."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from silos.dataset import SPLITS
from silos.errors import UserError
from silos.io.hashing import folder_digest
from silos.storage import partition_store
from silos.storage.manifest import read_manifest
from silos.storage.partition_store import open_client, open_common_rows, open_missing, write

N = 120
FEATURES = [{"name": "number"}, {"name": "a", "missing": {"fill": -7}}, {"name": "b", "missing": {"fill": 0.5}}]
EQUAL = {"kind": "equal", "clients": 4}
SCHEMES = [
    [EQUAL],
    [EQUAL | {"within": "domain"}, {"kind": "fresh", "per_domain": 1}],
    [{"kind": "column", "column": "client"}, {"kind": "permute_labels", "clusters": 2}],
    [{"kind": "quantity", "clients": 4, "beta": 1.0}],
    [{"kind": "dirichlet", "clients": 4, "alpha": 1.0}, {"kind": "imbalance", "classes": [1], "ratio": 4}],
    [{"kind": "column", "column": "client"}, {"kind": "subsample", "classes": [1], "ratio": 4}],
    [{"kind": "shards", "clients": 4, "shards_per_client": 2}, {"kind": "merge_labels", "into": {"all": [0, 1]}}],
    [{"kind": "balanced", "clients": 4, "percent": 30, "groups": [[0], [1, 2]]}],
    [{"kind": "classes_per_cluster", "clients": 4, "clusters": [[0], [1]]}],
]


@pytest.fixture
def table(tmp_path) -> np.ndarray:
    """Writes own.npz: rows whose first value is their number, and of which the others may be missing."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.arange(N), rng.normal(size=(N, 2))])
    x[:, 1:][rng.random((N, 2)) < 0.3] = np.nan
    client, domain = rng.integers(0, 4, N), np.array(["p", "q"])[np.arange(N) % 2]
    np.savez(tmp_path / "own.npz", x=x, y=rng.integers(0, 3, N), client=client, domain=domain)
    return x


@pytest.fixture
def build(tmp_path, params):
    """Writes a partition of own.npz; returns its folder."""

    def built(name="small", task="classification", **changes) -> Path:
        source = {"kind": "npz", "path": "own.npz", "task": task}
        write(tmp_path / "data" / name, params(source=source, **{"features": FEATURES} | changes), tmp_path)
        return tmp_path / "data" / name

    return built


@pytest.mark.slow
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme[0]["kind"])
def test_the_mask_lies_beside_the_rows_that_it_is_of(table, build, monkeypatch, scheme, common, shards):
    monkeypatch.setattr(partition_store, "FILES", 0 if shards else 300)
    monkeypatch.setattr(partition_store, "SHARD", 2)
    split = {"validation": 0.2, "test": 0.2, "test_rows": "common" if common else "own"}
    folder = build(scheme=scheme, split=split)
    manifest = read_manifest(folder)
    seen = 0
    for entry in manifest.clients:
        for split in SPLITS:
            x, _ = open_client(folder, entry, split)
            mask = open_missing(folder, entry, split)
            theirs = table[x[:, 0].astype(int)]
            np.testing.assert_array_equal(mask, np.isnan(theirs))
            np.testing.assert_array_equal(x, np.where(mask, [0, -7, 0.5], theirs).astype(np.float32))
            seen += int(mask.sum())
    assert seen > 0
    x, _ = open_common_rows(folder, manifest, "test")
    assert np.isfinite(x).all()
    assert bool(len(x)) == common


def test_the_mask_is_on_disk_as_bytes_of_zero_and_one(table, build):
    folder = build()
    entry = read_manifest(folder).clients[0]
    mask = load_file(folder / entry.file)["train_missing"]
    assert (mask.dtype, mask.shape) == (np.uint8, (entry.rows["train"], 3))
    assert set(mask.ravel().tolist()) == {0, 1}


def test_noise_leaves_a_missing_value_what_stands_in_for_it(tmp_path, build):
    rng = np.random.default_rng(0)
    number = np.arange(N, dtype=np.float32)
    x = rng.normal(size=(N, 3))
    x[rng.random(N) < 0.3, 1] = np.nan
    np.savez(tmp_path / "own.npz", x=x, y=number)
    folder = build(task="regression", scheme=[EQUAL, {"kind": "noise", "sd": 1.0}])
    for entry in read_manifest(folder).clients:
        noisy, y = open_client(folder, entry, "train")
        mask = open_missing(folder, entry, "train")
        original = x[y.astype(int)].astype(np.float32)
        np.testing.assert_array_equal(mask, np.isnan(original))
        assert mask.any()
        assert (noisy[mask] == -7).all()
        assert (noisy[~mask] != original[~mask]).all()


def test_there_is_a_mask_where_values_may_be_missing_and_only_there(tmp_path, build):
    x = np.eye(N, 3)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(N) % 3)
    for features, there in ((FEATURES, True), ([{"name": name} for name in "abc"], False), ([], False)):
        folder = build(features=features)
        entry = read_manifest(folder).clients[0]
        assert ("train_missing" in load_file(folder / entry.file)) == there
        mask = open_missing(folder, entry, "train")
        assert (mask is not None) == there
        assert mask is None or not mask.any()


def test_names_change_the_manifest_and_no_other_file(tmp_path, build):
    x, y = np.eye(N, 3), np.arange(N) % 3
    np.savez(tmp_path / "own.npz", x=x, y=y)
    plain = build("plain", features=[])
    np.savez(tmp_path / "own.npz", x=x, y=y, features=["number", "a", "b"])
    named = build("named", features=[])
    held = [json.loads((folder / "manifest.json").read_text()) for folder in (plain, named)]
    assert [each.pop("features", None) for each in held] == [None, [{"name": "number"}, {"name": "a"}, {"name": "b"}]]
    assert held[0] == held[1]
    for entry in read_manifest(plain).clients:
        assert (plain / entry.file).read_bytes() == (named / entry.file).read_bytes()


def test_two_partitions_are_the_same_bytes(table, build):
    first, second = folder_digest(build()), folder_digest(build())
    assert first == second


def test_a_value_that_goes_missing_where_its_fill_stood_changes_the_bytes(tmp_path, build):
    x = np.eye(N, 3)
    x[:, 1] = -7
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(N) % 3)
    before = folder_digest(build())
    x[5, 1] = np.nan
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(N) % 3)
    assert folder_digest(build()) != before


def test_a_mask_of_other_rows_or_a_damaged_file_is_a_sentence(table, build):
    folder = build()
    first, second, _ = read_manifest(folder).clients
    kept = (folder / first.file).read_bytes()
    other = build("other", scheme=[{"kind": "quantity", "clients": 3, "beta": 0.3}])
    (folder / first.file).write_bytes((other / second.file).read_bytes())
    with pytest.raises(
        UserError, match=rf"train rows of client {first.name}, expected {first.rows['train']} as in manifest.json"
    ):
        open_missing(folder, first, "train")
    (folder / first.file).write_bytes(kept[:-1])
    with pytest.raises(UserError, match=rf"client {first.name}, is damaged .*`dvc checkout`"):
        open_missing(folder, first, "train")


def test_values_outside_of_what_is_declared_are_kept_and_told(tmp_path, params):
    x = np.column_stack([np.linspace(0, 119, N), np.arange(N) % 3])
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(N) % 3)
    features = [{"name": "a", "low": 0, "high": 100}, {"name": "b", "kind": "categorical", "categories": [1, 2]}]
    notes: list[str] = []
    own = params(source={"kind": "npz", "path": "own.npz"}, features=features)
    manifest = write(tmp_path / "data", own, tmp_path, notes.append)
    count = int((x[:, 0] > 100).sum())
    assert notes == [
        "Values outside of the categories and bounds in data.features are kept: "
        f"{count} rows of 'a' (0 to 100), {N // 3} rows of 'b' (its categories)."
    ]
    kept = np.concatenate([open_client(tmp_path / "data", e, s)[0] for e in manifest.clients for s in SPLITS])
    assert sorted(kept[:, 0]) == x[:, 0].astype(np.float32).tolist()
