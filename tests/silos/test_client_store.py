"""What clients keep to themselves comes back bit for bit, and its references tell nothing."""

import os
import pickle
import re
import time
from pathlib import Path

import numpy as np
import pytest

from silos import client_store
from silos.client_store import ClientStore
from silos.errors import RefusalError, UserError

CLIENTS = ["lyon", "oslo", "rome"]


@pytest.fixture
def store(tmp_path):
    return ClientStore(str(tmp_path / "private"))


def tensors(seed: int = 0, clients: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "weight": rng.normal(size=(clients, 2, 3)).astype(np.float32),
        "sum": rng.normal(size=clients),
        "count": rng.integers(0, 9, clients),
        "pixels": rng.integers(0, 256, (clients, 4)).astype(np.uint8),
        "right": rng.random((clients, 5)) < 0.5,
        "none": np.zeros((clients, 0), np.float32),
    }


def files(store: ClientStore) -> list[Path]:
    return sorted((Path(store.folder) / "weights").iterdir())


def test_each_client_gets_back_its_own_bits(store):
    saved = tensors()
    refs = store.save("weights", CLIENTS, saved)
    for at, client in enumerate(CLIENTS):
        read = store.load("weights", refs, client)
        assert set(read) == set(saved)
        for name, tensor in read.items():
            assert tensor.dtype == saved[name].dtype
            np.testing.assert_array_equal(tensor, saved[name][at])


@pytest.mark.parametrize("order", [CLIENTS, CLIENTS[::-1], ["oslo"], ["rome", "lyon"]])
def test_a_stack_comes_back_in_the_order_asked_for(store, order):
    saved = tensors()
    refs = store.save("weights", CLIENTS, saved)
    read = store.load_stack("weights", refs, order)
    for name, tensor in read.items():
        np.testing.assert_array_equal(tensor, saved[name][[CLIENTS.index(client) for client in order]])


def test_a_stack_may_lie_in_several_files(store):
    first, second = tensors(0), tensors(1)
    refs = store.save("weights", CLIENTS, first) | store.save("weights", ["oslo"], tensors(2, 1))
    refs |= {"nice": store.save("weights", ["x", "nice", "y"], second)["nice"]}
    read = store.load_stack("weights", refs, ["nice", "oslo", "lyon"])
    np.testing.assert_array_equal(
        read["weight"], np.stack([second["weight"][1], tensors(2, 1)["weight"][0], first["weight"][0]])
    )


def test_what_was_kept_as_another_kind_is_not_loaded(store):
    refs = store.save("weights", CLIENTS, tensors())
    with pytest.raises(RefusalError, match="got weights that clients keep, expected outcomes"):
        store.load("weights", refs, "oslo", "outcomes")


def test_what_is_read_may_be_written_to(store):
    refs = store.save("weights", CLIENTS, tensors())
    for order in (CLIENTS, ["rome", "lyon"]):
        assert all(tensor.flags.writeable for tensor in store.load_stack("weights", refs, order).values())
    assert all(np.asarray(tensor).flags.writeable for tensor in store.load("weights", refs, "oslo").values())


def test_a_section_is_listed_as_long_as_it_holds_tensors(store):
    assert store.sections() == []
    refs = store.save("weights", CLIENTS, tensors())
    store.save("outcomes", CLIENTS, tensors())
    assert store.sections() == ["outcomes", "weights"]
    store.keep("outcomes", [])
    store.keep("weights", refs.values())
    assert store.sections() == ["weights"]


def test_saving_again_changes_nothing(store):
    refs = store.save("weights", CLIENTS, tensors())
    (path,) = files(store)
    before = path.stat()
    shuffled = dict(reversed(tensors().items()))
    assert store.save("weights", CLIENTS, shuffled) == refs
    assert files(store) == [path]
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_damaged_file_is_mended_by_saving_again(store):
    refs = store.save("weights", CLIENTS, tensors())
    (path,) = files(store)
    path.write_bytes(b"x" * path.stat().st_size)
    assert store.save("weights", CLIENTS, tensors()) == refs
    store.load("weights", refs, "oslo")


def test_references_tell_nothing_but_a_hash(store):
    refs = store.save("weights", CLIENTS, tensors())
    for ref in refs.values():
        assert re.fullmatch(r"[0-9a-f]{32}/\d+", ref)
    assert all(client.encode() not in path.read_bytes() for path in files(store) for client in CLIENTS)


def test_keep_deletes_only_the_others_of_its_section(store):
    kept = store.save("weights", CLIENTS, tensors(0))
    store.save("weights", CLIENTS, tensors(1))
    other = store.save("statistics", CLIENTS, tensors(1))
    store.keep("weights", [kept["oslo"]])
    assert len(files(store)) == 1
    store.load_stack("weights", kept, CLIENTS)
    store.load_stack("statistics", other, CLIENTS)
    store.keep("never_used", [])


def test_keep_spares_a_file_that_another_worker_is_writing(store):
    store.save("weights", CLIENTS, tensors())
    (whole,) = files(store)
    unfinished = whole.with_name(f".{whole.name}.1.2.tmp")  # as `write_bytes` calls it
    unfinished.write_bytes(b"half")
    store.keep("weights", [])
    assert files(store) == [unfinished]
    long_ago = time.time() - 7200
    os.utime(unfinished, (long_ago, long_ago))
    store.keep("weights", [])
    assert files(store) == [], "that worker is dead"


def test_a_missing_file_names_client_and_section(store):
    refs = store.save("weights", CLIENTS, tensors())
    store.keep("weights", [])
    with pytest.raises(UserError, match=r"0dcde684b8f8807ce9a977f424367e45\.safetensors, the private section"):
        store.load("weights", refs, "oslo")


@pytest.mark.parametrize("fault", ["truncated", "flipped"])
def test_a_damaged_file_names_client_and_section(store, fault):
    refs = store.save("weights", CLIENTS, tensors())
    (path,) = files(store)
    data = bytearray(path.read_bytes())
    if fault == "truncated":
        data = data[:-3]
    else:
        data[-3] ^= 1
    path.unlink()
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="the private section weights of client oslo, is damaged"):
        store.load("weights", refs, "oslo")


def test_a_client_without_a_reference_is_named(store):
    with pytest.raises(UserError, match="client paris: got no private tensors in the section weights, expected"):
        store.load("weights", {}, "paris")


def test_the_store_pickles_and_nothing_is_nothing(store):
    assert pickle.loads(pickle.dumps(store)) == store
    assert store.save("weights", [], {"w": np.zeros((0, 2))}) == {}
    assert store.load_stack("weights", {}, []) == {}


def test_a_section_is_a_plain_name_and_tensors_have_a_client_axis(store):
    with pytest.raises(ValueError, match="plain folder name"):
        store.save("../data", CLIENTS, tensors())
    with pytest.raises(ValueError, match=r"weight: got shape \(3, 2, 3\), expected a first axis of 2 clients"):
        store.save("weights", CLIENTS[:2], tensors())
    with pytest.raises(ValueError, match="twice"):
        store.save("weights", ["a", "a", "b"], tensors())


def test_what_a_process_knows_of_files_does_not_outgrow_the_files(store, monkeypatch):
    client_store._verified.clear()
    for number in range(30):
        refs = store.save("weights", CLIENTS, {"w": np.full((3, 3), float(number))})
        store.keep("weights", refs.values())
    assert [Path(path) for path in client_store._verified] == files(store)
    monkeypatch.setattr(client_store, "_MAX_VERIFIED", 10)  # where other processes delete
    kept = [store.save("weights", CLIENTS, {"w": np.full((3, 3), float(number))}) for number in range(30)]
    assert len(client_store._verified) == 10
    for number, refs in enumerate(kept):
        assert store.load("weights", refs, CLIENTS[0])["w"].tolist() == [number] * 3


def test_a_bit_that_flips_with_the_time_put_back_is_seen_though_the_file_was_sound_before(store):
    refs = store.save("weights", CLIENTS, tensors())
    (path,) = files(store)
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match="the private section weights of client oslo, is damaged"):
        store.load("weights", refs, "oslo")
