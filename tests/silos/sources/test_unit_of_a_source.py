"""The column of units: read, stored as hashes, hashed into the version, and refused where it cannot be one."""

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from silos.cohort import Silos
from silos.errors import UserError
from silos.io.hashing import folder_digest
from silos.row_units import hash_units
from silos.sources.source_params import Source
from silos.sources.source_registry import load_source
from silos.storage.partition_store import open_common_units, open_units, write

SOURCE: TypeAdapter = TypeAdapter(Source)
VISITS = "site,who,age,ill\n" + "".join(
    f"s{at // 30},p{at // 5},{at}.5,{'no' if at % 2 else 'yes'}\n" for at in range(60)
)


def table(folder, text=VISITS, **more):
    (folder / "visits.csv").write_text(text)
    keys = {"kind": "table", "path": "visits.csv", "label": "ill", "client": "site", "unit": "who"}
    return SOURCE.validate_python({**keys, **more})


def test_it_is_no_feature_and_equal_in_a_table_and_an_archive(tmp_path):
    rows = load_source(table(tmp_path), tmp_path, 0)
    assert [feature.name for feature in rows.features] == ["age"]
    who = np.array([f"p{at // 5}" for at in range(60)])
    np.savez(tmp_path / "own.npz", x=np.ones((60, 2)), y=np.arange(60) % 2, who=who)
    own = load_source(SOURCE.validate_python({"kind": "npz", "path": "own.npz", "unit": "who"}), tmp_path, 0)
    np.testing.assert_array_equal(rows.unit, own.unit)
    np.testing.assert_array_equal(rows.unit, hash_units(who))
    assert len(np.unique(rows.unit)) == 12


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"kind": "table", "path": "v.csv", "label": "ill", "unit": "ill"}, "the column 'ill' under label and unit"),
        (
            {"kind": "table", "path": "v.csv", "label": "ill", "client": "site", "unit": "site"},
            "the column 'site' under client and unit",
        ),
        ({"kind": "npz", "path": "v.npz", "unit": "client"}, "unit: got client, expected an array of units"),
        ({"kind": "folder", "path": "v", "size": 8, "unit": "who"}, "unit: got 'who', expected no column, since files"),
    ],
)
def test_a_column_with_another_role_and_a_folder_are_refused(keys, fault):
    with pytest.raises(ValidationError, match=fault):
        SOURCE.validate_python(keys)


def test_a_column_that_is_not_there_or_has_gaps_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"data\.source\.unit: got 'whom', expected a column of visits\.csv"):
        load_source(table(tmp_path, unit="whom"), tmp_path, 0)
    with pytest.raises(UserError, match=r"the unit 'who': got no value in row 2 .* Fill in or delete such rows"):
        load_source(table(tmp_path, VISITS.replace("s0,p0,0.5", "s0,,0.5")), tmp_path, 0)
    kept = load_source(table(tmp_path, VISITS.replace("s0,p0,0.5", "s0,,0.5"), missing="drop_rows"), tmp_path, 0)
    assert len(kept.unit) == 59
    np.savez(tmp_path / "own.npz", x=np.ones((60, 2)), y=np.arange(60) % 2, who=np.ones(59))
    for unit, fault in (("who", "who: got 59 entries for 60 rows of x"), ("none", "got no array none")):
        with pytest.raises(UserError, match=fault):
            load_source(SOURCE.validate_python({"kind": "npz", "path": "own.npz", "unit": unit}), tmp_path, 0)


@pytest.mark.parametrize("missing", ["refuse", "drop_rows"])
def test_an_empty_column_of_units_is_left_out(missing, tmp_path):
    (tmp_path / "v.csv").write_text(
        "site,who,age,ill\n" + "".join(f"{'ab'[n % 2]},,{n * 1.5},{n % 3}\n" for n in range(60))
    )
    keys = {"kind": "table", "path": "v.csv", "label": "ill", "client": "site", "unit": "who", "missing": missing}
    fault = r"v\.csv: the unit 'who': got an empty column, expected a value .*, or leave out data\.source\.unit"
    with pytest.raises(UserError, match=fault):
        load_source(SOURCE.validate_python(keys), tmp_path, 0)
    np.savez(tmp_path / "v.npz", x=np.arange(60.0)[:, None], y=np.arange(60) % 2, who=np.repeat("", 60))
    with pytest.raises(UserError, match=r"who: got no name in any row, expected one in each\. .*leave out the array"):
        load_source(SOURCE.validate_python({"kind": "npz", "path": "v.npz", "unit": "who"}), tmp_path, 0)


def test_units_are_on_disk_with_their_rows_and_part_of_the_version(tmp_path, params):
    digests = []
    for name, text in (("one", VISITS), ("two", VISITS.replace("p11,", "p10,"))):
        section = {"source": table(tmp_path, text).model_dump(), "scheme": [{"kind": "column", "column": "client"}]}
        manifest = write(tmp_path / name, params(**section), tmp_path)
        digests.append((folder_digest(tmp_path / name), manifest.clients[1].digest))
        silos = Silos.open(tmp_path / name, "v")
        silos.check(silos.clients)
        for split in ("train", "validation", "test"):
            unit = open_units(tmp_path / name, silos.pool().entries(silos.pool().clients[0]), split)
            assert len(unit) == sum(silos.rows(split).values())
    assert digests[0][0] != digests[1][0]
    assert digests[0][1] != digests[1][1]
    without = {**table(tmp_path).model_dump(exclude={"unit"}), "drop": ["who"]}
    manifest = write(tmp_path / "none", params(source=without), tmp_path)
    assert open_units(tmp_path / "none", manifest.clients, "train") is None


def test_common_units_are_stored(tmp_path, params):
    section = {"source": table(tmp_path).model_dump(), "scheme": [{"kind": "column", "column": "client"}]}
    split = {"validation": 0, "test": 0.25, "test_rows": "common"}
    manifest = write(tmp_path / "common", params(**section, split=split), tmp_path)
    common = open_common_units(tmp_path / "common", manifest, "test")
    assert len(common) == manifest.common["test"] == 15
    assert not set(common.tolist()) & set(open_units(tmp_path / "common", manifest.clients, "train").tolist())
    assert open_common_units(tmp_path / "common", manifest, "validation") is None


def test_copies_and_a_dropped_id_are_named(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"s{at % 2},p{at},{rng.normal():.4f},{rng.normal():.4f},{'no' if at % 3 else 'yes'}\n" for at in range(40)]
    copied = table(tmp_path, "site,who,age,crp,ill\n" + "".join(lines * 3), unit=None, drop=["who"])
    notes = [note for note in load_source(copied, tmp_path, 0).notes if note.startswith("rows may not")]
    assert notes[0].endswith("name it under data.source.unit, not under drop")
    assert notes[1].startswith("rows may not be independent: 80 of 120 equal another row; a diagnosis")
    by_unit = load_source(table(tmp_path, "site,who,age,crp,ill\n" + "".join(lines * 3)), tmp_path, 0)
    assert not any(note.startswith("rows may not") for note in by_unit.notes)
