"""What `data diff` says: each client that differs, found by digests, and of very many a count and a few."""

import numpy as np
import pytest

from silos.errors import UserError
from silos.storage import manifest, partition_store
from silos.storage.partition_store import write
from silos.versioning import data_versions
from silos.versioning.dvc_files import record

SCHEME = [{"kind": "column", "column": "client"}]


@pytest.fixture
def version(tmp_path, params):
    """Records a version of clients whose first value is given; answers with its hash."""

    def build(values: dict[str, float], **options: object) -> str:
        names = np.repeat(list(values), 6)
        x = np.zeros((len(names), 1))
        x[::6, 0] = list(values.values())
        np.savez(tmp_path / "own.npz", x=x, y=np.arange(len(names)) % 2, client=names)
        own = params(source={"kind": "npz", "path": "own.npz"}, scheme=SCHEME, **options)
        write(tmp_path / "data" / own.name, own, tmp_path)
        return record(tmp_path)

    return build


@pytest.mark.parametrize("shards", [False, True])
def test_each_client_that_differs_is_told_of_with_how(shards, version, tmp_path, monkeypatch):
    monkeypatch.setattr(partition_store, "FILES", 0 if shards else 300)
    monkeypatch.setattr(partition_store, "SHARD", 2)
    before = version({"a": 1, "b": 2, "c": 3, "d": 4})
    after = version({"a": 1, "c": 9, "d": 4, "e": 2})
    found = data_versions.diff(tmp_path, before, after, lambda *_: True)
    assert [(s["client"], s["change"]) for s in found["silos"]] == [("b", "removed"), ("c", "changed"), ("e", "added")]
    (_, changed, added) = found["silos"]
    assert changed["before"]["mean"] == pytest.approx(0.5)
    assert changed["after"]["mean"] == pytest.approx(1.5)
    assert added["before"] is None
    (counts,) = found["partitions"]
    changes = {silo["client"]: silo["change"] for silo in found["silos"]}
    assert data_versions.changed_silos(tmp_path, counts["name"], before, after) == changes
    assert {kind: counts[kind] for kind in ("added", "removed", "changed")} == {"added": 1, "removed": 1, "changed": 1}
    assert counts["before"]["clients"] == counts["after"]["clients"] == 4
    assert sum(counts["after"]["rows"].values()) == 24


def test_a_partition_that_was_not_there_is_added_clients(version, tmp_path):
    before = version({"a": 1})
    after = version({"a": 1, "b": 2}, name="other")
    found = data_versions.diff(tmp_path, before, after)
    assert [(s["name"], s["client"], s["change"]) for s in found["silos"]] == [("other", c, "added") for c in "ab"]
    assert [(p["name"], p["added"]) for p in found["partitions"]] == [("other", 2)]
    assert [s["change"] for s in data_versions.diff(tmp_path, after, before)["silos"]] == ["removed"] * 2


def test_of_very_many_a_few_are_described_and_all_counted(version, tmp_path, monkeypatch):
    monkeypatch.setattr(data_versions, "LISTED", 5)
    monkeypatch.setattr(data_versions, "FEW", 2)
    before = version({f"h{i}": i for i in range(9)})
    after = version({f"h{i}": i + (i > 2) for i in range(9)})
    found = data_versions.diff(tmp_path, before, after)
    assert [s["client"] for s in found["silos"]] == ["h3", "h4"]
    assert found["partitions"][0]["changed"] == 6
    five = data_versions.diff(tmp_path, before, version({f"h{i}": i + (i > 3) for i in range(9)}))
    assert [s["client"] for s in five["silos"]] == ["h4", "h5", "h6", "h7", "h8"]


def test_other_names_for_the_same_rows_change_no_client(version, tmp_path):
    before = version({"a": 1, "b": 2}, features=[{"name": "one"}])
    found = data_versions.diff(tmp_path, before, version({"a": 1, "b": 2}, features=[{"name": "two"}]))
    assert found["silos"] == []
    assert found["partitions"][0]["changed"] == 0


def test_a_version_of_another_format_is_named_and_nothing_is_said_to_make_it_anew(version, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "FORMAT", 1)
    before = version({"a": 1})
    monkeypatch.setattr(manifest, "FORMAT", 2)
    after = version({"a": 2})
    for versions in ((before, after), (after, before)):
        with pytest.raises(UserError) as said:
            data_versions.diff(tmp_path, *versions)
        assert str(said.value).startswith(f"data/small of version {before[:12]}: got format 1, expected format 2.")
        assert "partition" not in str(said.value)
