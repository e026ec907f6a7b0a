"""Thousands of clients: shards of many clients in a file, whose bytes follow the clients in them alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from silos.cohort import Silos, Stack, make_stacks, open_stack
from silos.data_overview import overview
from silos.data_params import DataParams
from silos.dataset import SPLITS
from silos.errors import UserError
from silos.io.hashing import folder_digest
from silos.storage import partition_store, shards
from silos.storage.manifest import read_manifest
from silos.storage.partition_store import open_client, write


@pytest.fixture
def sharded(natural, monkeypatch):
    """Writes ten clients, three in a shard."""
    monkeypatch.setattr(partition_store, "FILES", 9)
    monkeypatch.setattr(partition_store, "SHARD", 3)
    return natural({f"h{i}": 10 + i for i in range(10)})


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_some_clients_share_a_file_one_after_another(sharded):
    manifest = read_manifest(sharded)
    assert [entry.rows["train"] for entry in manifest.clients][:4] == [7, 8, 9, 9]
    assert [entry.start["train"] for entry in manifest.clients][:4] == [0, 7, 15, 0]
    assert {entry.file_rows["train"] for entry in manifest.clients[:3]} == {24}
    assert [entry.file for entry in manifest.clients][2:4] == ["clients-0.safetensors", "clients-3.safetensors"]
    assert len(files(sharded)) == 4 + 2


def test_a_shard_holds_what_files_of_clients_would(sharded, natural, monkeypatch):
    found = {
        (entry.name, split): open_client(sharded, entry, split)
        for entry in read_manifest(sharded).clients
        for split in SPLITS
    }
    shown = overview(read_manifest(sharded), sharded)
    monkeypatch.setattr(partition_store, "FILES", 10)
    single = natural({f"h{i}": 10 + i for i in range(10)})
    assert len(files(single)) == 10 + 2
    for (name, split), rows in found.items():
        for one, other in zip(rows, open_client(single, read_manifest(single).client(name), split), strict=True):
            np.testing.assert_array_equal(one, other)
    assert overview(read_manifest(single), single) == shown


def test_one_changed_client_is_one_changed_shard(sharded, tmp_path):
    before = files(sharded)
    with np.load(tmp_path / "own.npz") as held:
        arrays = dict(held)
    arrays["x"][np.flatnonzero(arrays["client"] == "h4")[0], 0, 0] ^= 1
    np.savez(tmp_path / "own.npz", **arrays)
    write(sharded, DataParams.model_validate(read_manifest(sharded).params), tmp_path)
    after = files(sharded)
    changed = [name for name in before if before[name] != after[name]]
    assert sorted(changed) == ["clients-3.safetensors", "manifest.safetensors"]


def test_of_a_shard_each_client_is_checked_for_itself(sharded):
    """Whoever opens one client's rows does not read those of the others."""
    silos = Silos.open(sharded, "v")
    path, entry = sharded / "clients-3.safetensors", silos.manifest.client("h4")
    x, y = open_client(sharded, entry, "train")
    content = path.read_bytes()
    at = content.index(x.tobytes())
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert open_stack(silos, Stack(("h3", "h5"), 2), "train").rows.tolist() == [9, 10]
    with pytest.raises(
        UserError, match=r"clients-3\.safetensors, with the rows of client h4, differs from data version v: the file"
    ):
        open_stack(silos, Stack(("h4",), 1), "test")
    path.write_bytes(content)
    np.testing.assert_array_equal(open_stack(silos, Stack(("h4",), 1), "train").y[0], y)


def test_rows_read_as_another_type_or_of_another_place_are_not_what_the_digest_says(sharded):
    """The header of a file says both, and is in no digest."""
    silos = Silos.open(sharded, "v")
    path = sharded / "clients-3.safetensors"
    content = path.read_bytes()
    for before, after in (
        (b'"dtype":"U8"', b'"dtype":"I8"'),
        (b'"train_x"', b'"train_z"'),
        (b'"train_x"', b'"other_x"'),
    ):
        assert before in content
        path.write_bytes(content.replace(before, after))
        with pytest.raises(UserError, match=r"clients-3\.safetensors, with the rows of client h3, differs from data"):
            open_stack(silos, Stack(("h3",), 1), "train")


def test_a_client_that_a_shard_lacks_is_named(sharded):
    manifest = read_manifest(sharded)
    (sharded / "clients-0.safetensors").write_bytes((sharded / "clients-3.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"clients-0\.safetensors: got 29 train rows of client h1 and others"):
        open_client(sharded, manifest.client("h1"), "train")


def test_a_shard_is_mapped_once_and_read_by_many_threads(sharded):
    shards._mapped.cache_clear()
    silos = Silos.open(sharded, "v")
    stacks = make_stacks(silos, 1)
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda stack: open_stack(silos, stack, "train"), stacks * 20))
    assert shards._mapped.cache_info().misses <= 4 * 8  # a race opens a file more than once, at worst by all threads
    for stack, rows in zip(stacks * 20, opened, strict=True):
        x, _ = open_client(sharded, silos.manifest.client(stack.clients[0]), "train")
        np.testing.assert_array_equal(rows.x[0], x / np.float32(255))


def test_three_hundred_clients_have_a_file_each_and_one_more_makes_shards(tmp_path, params):
    for clients, count in ((128, 129), (129, 2), (1024, 2), (1025, 3)):  # the last one holds the columns
        write(tmp_path / "data", params(scheme=[{"kind": "equal", "clients": clients}]), tmp_path)
        assert len(list((tmp_path / "data").glob("*.safetensors"))) == count


def test_another_partition_leaves_the_version_of_this_one_alone(tmp_path, params):
    write(tmp_path / "data" / "one", params(name="one"), tmp_path)
    before = folder_digest(tmp_path / "data" / "one")
    for seed in (1, 2):
        write(tmp_path / "data" / "two", params(name="two", seed=seed), tmp_path)
        assert folder_digest(tmp_path / "data" / "one") == before


def test_a_file_that_was_written_anew_is_read_anew(tmp_path, params):
    folder = tmp_path / "data" / "small"
    for seed in range(5):
        manifest = write(folder, params(seed=seed), tmp_path)
        x, _ = open_client(folder, manifest.clients[0], "train")
        written = write(tmp_path / f"other{seed}", params(seed=seed), tmp_path)
        np.testing.assert_array_equal(x, open_client(tmp_path / f"other{seed}", written.clients[0], "train")[0])
