"""The digest of a folder follows its contents, with a cache of hashes or without."""

import hashlib
import json
import os

import pytest

from silos.io import hashing
from silos.io.hashing import file_digest, folder_digest


def test_the_digest_with_a_cache_follows_every_change(data, tmp_path):
    cache = tmp_path / "runs" / "hashes.json"
    assert folder_digest(data, cache) == folder_digest(data) == folder_digest(data, cache)
    (data / "B").write_text("6")
    assert folder_digest(data, cache) == folder_digest(data)
    (data / "B").unlink()
    (data / "new").write_text("")
    assert folder_digest(data, cache) == folder_digest(data)
    for damage in ("{", "[]", '{"B": 1}', ""):
        cache.write_text(damage)
        assert folder_digest(data, cache) == folder_digest(data)
    assert list(cache.parent.iterdir()) == [cache]


def test_the_cache_spares_reading_files_again(data, tmp_path, monkeypatch):
    cache = tmp_path / "hashes.json"
    before = folder_digest(data, cache)
    monkeypatch.setattr(hashing, "_md5", lambda path: pytest.fail(f"{path} is read again"))
    assert folder_digest(data, cache) == before


def test_a_file_that_another_of_its_size_and_time_took_the_place_of_is_read_again(data, tmp_path):
    cache = tmp_path / "hashes.json"
    before = folder_digest(data, cache)
    old, new = data / "B", tmp_path / "other"
    status = old.stat()
    new.write_bytes(bytes(byte ^ 1 for byte in old.read_bytes()))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.replace(old)
    after = old.stat()
    assert (after.st_size, after.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert folder_digest(data, cache) == folder_digest(data) != before


@pytest.mark.parametrize("size", [0, 1])
def test_a_file_that_was_written_over_is_read_again_whether_its_size_or_its_time_changed(size, data, tmp_path):
    cache = tmp_path / "hashes.json"
    before = folder_digest(data, cache)
    file = data / "B"
    status = file.stat()
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()) + b"x" * size)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + (size == 0)))
    assert folder_digest(data, cache) == folder_digest(data) != before


def test_the_digest_of_a_file_follows_every_change_within_a_process(tmp_path):
    path = tmp_path / "rows"
    for text in ("first", "second", "third!"):
        path.write_text(text)
        assert file_digest(str(path)) == file_digest(str(path)) == hashlib.md5(text.encode()).hexdigest()
    (tmp_path / "new").write_text("other!")
    os.utime(tmp_path / "new", ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    (tmp_path / "new").replace(path)  # of the same size and time
    assert file_digest(str(path)) == hashlib.md5(b"other!").hexdigest()


def test_the_cache_of_hashes_is_written_again_after_a_change(data, tmp_path):
    cache = tmp_path / "hashes.json"
    hashing.file_hashes(data, cache)
    (data / "B").write_text("changed")
    found = hashing.file_hashes(data, cache)
    assert {path: entry[3] for path, entry in json.loads(cache.read_text()).items()} == found
