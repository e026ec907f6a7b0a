"""The digest of a folder follows its contents, with a cache of hashes or without."""

import pytest

from silos import digest as hashing
from silos.digest import folder_digest


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
    digest = folder_digest(data, cache)
    monkeypatch.setattr(hashing, "_md5", lambda path: pytest.fail(f"{path} is read again"))
    assert folder_digest(data, cache) == digest
