"""The columns of a folder's clients: what is written reads back, entry by entry, and nothing else is read."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from silos.dataset import SPLITS
from silos.errors import UserError
from silos.storage.manifest import ROLES, ClientTable, empty_table, from_bytes, read_manifest, to_bytes


@st.composite
def tables(draw: st.DrawFn) -> ClientTable:
    """Any names, one surrogate of a pair too; clients of up to three files, those of one together."""
    names = draw(st.lists(st.text(st.characters(codec=None)), unique=True, max_size=8))
    count = len(names)
    codes = st.lists(st.integers(0, 2), min_size=count, max_size=count)
    rows = draw(st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=count, max_size=count))
    return ClientTable(
        domains=("", "x", "é"),
        files=("a", "b", "c"),
        names=tuple(names),
        domain=np.array(draw(codes), np.int32),
        role=np.array(draw(codes), np.uint8),
        file=np.sort(np.array(draw(codes), np.int32)),
        rows=np.array(rows, np.int32).reshape(count, 3),
        digest=np.arange(16 * count, dtype=np.uint8).reshape(count, 16),
    )


@given(tables())
def test_what_is_written_reads_back(table):
    again = from_bytes(to_bytes(table), len(table), table.domains, table.files)
    assert again == table
    assert again.names == table.names
    assert list(again) == list(table)


@given(tables())
def test_an_entry_says_what_the_columns_do_and_where_its_rows_lie(table):
    seen: dict[tuple[str, str], int] = {}
    for at, entry in enumerate(table):
        assert (entry.name, table.indices[entry.name]) == (table.names[at], at)
        assert entry.domain == table.domains[table.domain[at]]
        assert entry.role == ROLES[table.role[at]]
        assert list(entry.rows.values()) == table.rows[at].tolist()
        for split in SPLITS:
            place = (entry.file, split)
            assert entry.start[split] == seen.get(place, 0)
            seen[place] = entry.start[split] + entry.rows[split]
    for entry in table:
        assert entry.file_rows == {split: seen[entry.file, split] for split in SPLITS}
    assert table[-1:] == list(table)[-1:]


def test_another_table_is_another(natural):
    table = read_manifest(natural({"lyon": 20, "oslo": 30})).clients
    assert table == replace(table)
    assert table != replace(table, names=("lyon", "rome"))
    assert table != replace(table, rows=table.rows + 1)
    assert table != empty_table()
    assert table != 3


HOSTILE = {
    "a name that ends before it begins": {"name_end": np.array([5, 4], np.int64)},
    "names beyond their bytes": {"name_end": np.array([4, 9], np.int64)},
    "bytes that are no names": {"name": np.full(8, 255, np.uint8)},
    "a client twice": {"name": np.frombuffer(b"lyonlyon", np.uint8)},
    "rows below zero": {"rows": np.array([[14, 2, 4], [-1, 3, 6]], np.int32)},
    "rows of one split": {"rows": np.array([[14], [21]], np.int32)},
    "rows as fractions": {"rows": np.ones((2, 3), np.float32)},
    "one client less": {"domain": np.zeros(1, np.int32)},
    "a file that is not there": {"file": np.array([0, 2], np.int32)},
    "a file below zero": {"file": np.array([-1, 1], np.int32)},
    "files in disorder": {"file": np.array([1, 0], np.int32)},
    "a role that is none": {"role": np.array([0, 3], np.uint8)},
    "a law that is not there": {"domain": np.array([0, 1], np.int32)},
    "digests cut short": {"digest": np.zeros((2, 8), np.uint8)},
    "names on end": {"name": np.zeros((2, 2, 2), np.uint8)},
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_columns_that_no_partition_writes_are_a_sentence(hostile, natural):
    folder = natural({"lyon": 20, "oslo": 30})
    path = folder / "manifest.safetensors"
    path.write_bytes(save(load(path.read_bytes()) | HOSTILE[hostile]))
    with pytest.raises(
        UserError, match="Run `siloflow partition` to rebuild it, or `dvc checkout` to restore the recorded"
    ):
        read_manifest(folder)


@pytest.mark.parametrize("lost", ["name", "name_end", "rows", "digest", "file"])
def test_a_column_that_is_not_there_is_a_sentence(lost, natural):
    folder = natural({"lyon": 20})
    path = folder / "manifest.safetensors"
    path.write_bytes(save({name: column for name, column in load(path.read_bytes()).items() if name != lost}))
    with pytest.raises(UserError, match=f"manifest.safetensors, the list of clients, is damaged .*{lost}"):
        read_manifest(folder)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_columns_that_are_cut_off_or_gone_are_a_sentence(kept, natural):
    folder = natural({"lyon": 20, "oslo": 30})
    path = folder / "manifest.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        UserError, match=r"manifest\.safetensors, the list of clients, is damaged .*`siloflow partition`"
    ):
        read_manifest(folder)
    path.unlink()
    with pytest.raises(UserError, match="the list of clients, is missing"):
        read_manifest(folder)


def test_a_client_called_as_the_columns_are_has_a_file_of_its_own(natural):
    folder = natural({"manifest": 20, "Manifest": 3})
    assert len(list(folder.glob("*.safetensors"))) == 3
    assert read_manifest(folder).client("manifest").file.startswith("manifest-")
