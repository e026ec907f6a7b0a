"""Silos are a small reference; pooled, they are one client that owns all rows."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from silos.cohort import Silos, Stack, forget_stacks, make_stacks, open_common, open_stack
from silos.errors import UserError
from silos.storage import shards
from silos.storage.partition_store import write

SIZES = {"lyon": 20, "oslo": 30, "rome": 3}


@pytest.fixture
def silos(natural):
    return Silos.open(natural(SIZES), "v1")


def test_a_reference_pickles_small_and_opens_elsewhere(silos):
    assert len(pickle.dumps(silos)) < 500
    assert pickle.loads(pickle.dumps(silos)).rows("train") == silos.rows("train")
    assert hash(silos) == hash(pickle.loads(pickle.dumps(silos)))


def test_rows_are_counted_per_client_and_split(silos):
    assert silos.rows("train") == {"lyon": 14, "oslo": 21, "rome": 2}
    assert silos.rows("test") == {"lyon": 4, "oslo": 6, "rome": 1}


def test_arrays_are_in_the_order_of_the_clients(silos):
    some = silos.select(["rome", "lyon"])
    assert some.rows_array("train").tolist() == [2, 14]
    assert some.rows_array("train").dtype == np.int64
    assert [some.index(client) for client in some.clients] == [0, 1]
    with pytest.raises(UserError, match="client oslo: got no such client among those selected of"):
        some.index("oslo")
    assert some.pool().rows_array("test").tolist() == [5]
    assert some.pool().index("rome+lyon") == 0


def test_select_keeps_the_order_asked_for(silos):
    assert silos.select(["rome", "lyon"]).clients == ("rome", "lyon")
    with pytest.raises(UserError, match="client paris: got no such client among those selected of"):
        silos.select(["paris"])
    with pytest.raises(UserError, match="client oslo: got no such client among those selected of"):
        silos.select(["rome"]).select(["oslo"])


def test_pooled_clients_are_one_that_owns_all_rows_in_order(silos):
    pooled = silos.select(["rome", "lyon"]).pool()
    assert pooled.clients == ("rome+lyon",)
    assert pooled.pooled
    assert pooled.rows("train") == {"rome+lyon": 16}
    rows = open_stack(pooled, Stack(pooled.clients, 1), "train")
    parts = [open_stack(silos, Stack((name,), 1), "train") for name in ("rome", "lyon")]
    np.testing.assert_array_equal(rows.x, np.concatenate([part.x for part in parts], axis=1))
    np.testing.assert_array_equal(rows.y, np.concatenate([part.y for part in parts], axis=1))


def test_pooling_one_client_is_that_client(silos):
    alone = silos.select(["oslo"])
    assert alone.pool() == alone


def test_pooling_twice_is_pooling_once(silos):
    assert silos.pool().pool() == silos.pool()
    assert silos.pool().select(silos.pool().clients) == silos.pool()


# --- roles and common rows ---


@pytest.fixture
def roles(tmp_path, params):
    scheme = [
        {"kind": "equal", "clients": 6},
        {"kind": "rotation", "angles": [0, 30, 60]},
        {"kind": "hold_out", "domains": ["rot30"]},
        {"kind": "fresh", "per_domain": 1},
    ]
    split = {"validation": 0.1, "test": 0.2, "test_rows": "common", "validation_rows": "common"}
    write(tmp_path / "data", params(scheme=scheme, split=split), tmp_path)
    return Silos.open(tmp_path / "data", "v")


def test_all_clients_are_opened_and_the_federated_ones_train(roles):
    assert [roles.role(name) for name in roles.clients] == [
        "federated",
        "fresh",
        "unseen",
        "unseen",
        "federated",
        "fresh",
    ]
    assert roles.federated().clients == ("c00", "c04")
    assert roles.of_role("federated").tolist() == [True, False, False, False, True, False]
    assert roles.select(["c04", "c01"]).of_role("federated").tolist() == [True, False]
    assert roles.federated().pool().role("c00+c04") == "federated"
    assert roles.select(["c02"]).role("c02") == "unseen"


def test_common_rows_are_opened_once_and_scaled_as_a_stack_is(roles):
    assert (roles.common("train"), roles.common("validation"), roles.common("test")) == (0, 180, 359)
    x, y = open_common(roles, "test")
    assert x.shape == (359, 8, 8)
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert 0 <= x.min() <= x.max() == 1.0
    assert open_common(roles, "test")[0] is x
    assert open_common(roles.federated(), "test")[0] is x
    assert len(open_common(roles, "validation")[1]) == 180
    assert len(open_common(roles, "train")[1]) == 0


def test_common_rows_keep_the_law_of_the_source(roles):
    """They are not turned: every one is an image of the digits as they came."""
    from sklearn.datasets import load_digits

    known = {row.tobytes() for row in np.floor(load_digits().images * 255 / 16 + 0.5).astype(np.uint8)}
    for split in ("validation", "test"):
        x, _ = open_common(roles, split)
        assert all(np.rint(row * 255).astype(np.uint8).tobytes() in known for row in x)


def test_targets_that_are_numbers_are_opened_as_float32(tmp_path, params):
    source = {"kind": "synthetic", "task": "linear", "clusters": 2, "clients_per_cluster": 2, "rows": 20}
    own = params(source=source, scheme=[{"kind": "column", "column": "client"}])
    manifest = write(tmp_path / "data", own, tmp_path)
    assert (manifest.task, manifest.classes) == ("regression", ())
    silos = Silos.open(tmp_path / "data", "v")
    assert silos.manifest.task == "regression"
    rows = open_stack(silos, Stack(("c00", "c03"), 3), "train")
    assert rows.y.dtype == np.float32
    assert (rows.y[:2, :18] != np.round(rows.y[:2, :18])).any()
    assert rows.rows.tolist() == [18, 18, 0]
    assert open_common(silos, "test")[1].dtype == np.float32


def test_ten_thousand_names_travel_without_what_was_looked_up(natural):
    silos = Silos.open(natural({f"h{i}": 1 for i in range(50)}), "v")
    before = len(pickle.dumps(silos))
    silos.select(silos.clients[:3])
    assert len(pickle.dumps(silos)) == before


# --- what is opened is what the version says ---


@pytest.mark.parametrize("in_memory", [True, False])
def test_rows_that_changed_since_a_run_began_are_refused_at_its_next_opening(in_memory, natural, silos):
    (stack,) = make_stacks(silos, 3)
    open_stack(silos, stack, "train")
    if not in_memory:
        forget_stacks()
    natural({**SIZES, "oslo": 31})  # another partition in the same folder
    with pytest.raises(UserError, match=r"manifest\.safetensors differs from data version v1: the file was") as told:
        open_stack(silos, stack, "train")
    assert "Restore that version with `siloflow data use v1`" in str(told.value)


@pytest.mark.parametrize(
    "file", ["oslo.safetensors, with the rows of client oslo,", "manifest.json", "manifest.safetensors"]
)
def test_one_changed_file_is_named(file, silos):
    (stack,) = make_stacks(silos, 3)
    open_stack(silos, stack, "train")
    flip(Path(silos.folder) / file.split(",")[0])
    with pytest.raises(UserError, match=f"{file} differs from data version v1"):
        open_stack(silos, stack, "train")


def test_common_rows_that_changed_are_refused(roles):
    open_common(roles, "test")
    flip(Path(roles.folder) / "common.safetensors")
    with pytest.raises(
        UserError, match=r"common\.safetensors, with the rows of all clients, differs from data version v: the file"
    ):
        open_common(roles, "test")


def test_a_bit_that_flips_behind_the_door_is_seen_by_whoever_opens_the_file_first(silos):
    """Size, time and inode are as before, as after a fault of the disk; the reference has come to another process."""
    path = Path(silos.folder) / "lyon.safetensors"
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (before.st_size, before.st_mtime_ns, before.st_ino) == (after.st_size, after.st_mtime_ns, after.st_ino)
    program = (
        "import pickle, sys; from silos.cohort import Stack, open_stack; silos = pickle.load(sys.stdin.buffer)\n"
        "print(open_stack(silos, Stack(('oslo',), 1), 'test').rows)\n"
        "print(open_stack(silos, Stack(('lyon',), 1), 'test').rows)"
    )
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(silos), capture_output=True, check=False)
    assert done.stdout.split() == [b"[6]"]
    assert b"lyon.safetensors, with the rows of client lyon, differs from data version v1" in done.stderr


def test_a_file_that_was_written_again_as_it_was_is_no_change(silos):
    (stack,) = make_stacks(silos, 3)
    rows = open_stack(silos, stack, "train")
    path = Path(silos.folder) / "lyon.safetensors"
    path.write_bytes(path.read_bytes())
    assert open_stack(silos, stack, "train") is rows


def test_a_clients_rows_are_hashed_at_their_first_opening_and_not_again(silos, monkeypatch):
    hashed = []
    read = shards.client_digest
    monkeypatch.setattr(shards, "client_digest", lambda path, entry: hashed.append(entry.name) or read(path, entry))
    for _ in range(3):
        for split in ("train", "test"):
            open_stack(silos, Stack(("lyon",), 1), split)
    assert hashed == ["lyon"]


def flip(path: Path) -> None:
    """The last bit of a file."""
    held = bytearray(path.read_bytes())
    held[-1] ^= 1
    path.write_bytes(held)


@pytest.fixture(autouse=True)
def _no_stacks_left_in_memory():
    yield
    forget_stacks()


def test_a_bit_that_flips_with_the_time_put_back_is_seen_at_the_next_opening_in_the_same_process(natural):
    """Size, time and inode are as they were when the file was hashed here; the kernel's own time is not."""
    silos = Silos.open(natural(SIZES), "flipped")
    stack = Stack(("lyon",), 1)
    open_stack(silos, stack, "train")
    path = Path(silos.folder) / silos.entries("lyon")[0].file
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(UserError, match=r"lyon\.safetensors, with the rows of client lyon, differs from data"):
        open_stack(silos, stack, "train")
