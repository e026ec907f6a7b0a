"""The store: the same bytes anywhere, one file a client, whole or not at all, and clear when damaged."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from silos.data_params import DataParams
from silos.dataset import SPLITS
from silos.errors import UserError
from silos.io.atomic_io import restore_moved
from silos.io.hashing import folder_digest
from silos.storage import partition_store
from silos.storage.manifest import read_manifest
from silos.storage.partition_store import open_client, open_common_rows, write
from silos.versioning.dvc_files import recorded_version

SCHEME = [
    {"kind": "dirichlet", "clients": 6, "alpha": 0.5, "min_rows": 5},
    {"kind": "rotation", "angles": [0, 33.3, -120]},
]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_manifest_reads_back_as_written(tmp_path, params):
    written = write(tmp_path / "data" / "small", params(scheme=SCHEME), tmp_path)
    read = read_manifest(tmp_path / "data" / "small")
    assert read == written
    assert read.shape == (8, 8)
    assert read.dtype == "uint8"
    assert read.classes == tuple("0123456789")
    assert read.client("c03").domain == "rot33.3"
    assert read.clients.rows.sum() == 1797
    text = (tmp_path / "data" / "small" / "manifest.json").read_text()
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1) + "\n"


def test_every_row_of_the_source_lands_in_exactly_one_place(tmp_path, params):
    rng = np.random.default_rng(1)
    x = np.arange(90, dtype=np.float32)[:, None]
    client = rng.choice(["a", "b", "c d"], 90)
    y = rng.integers(0, 4, 90)
    np.savez(tmp_path / "own.npz", x=x, y=y, client=client)
    own = params(source={"kind": "npz", "path": "own.npz"}, scheme=[{"kind": "column", "column": "client"}])
    manifest = write(tmp_path / "data" / "small", own, tmp_path)
    seen = []
    for entry in manifest.clients:
        for split in SPLITS:
            rows, labels = open_client(tmp_path / "data" / "small", entry, split)
            numbers = rows[:, 0].astype(int)
            assert (client[numbers] == entry.name).all()
            np.testing.assert_array_equal(labels, y[numbers])
            seen += numbers.tolist()
    assert sorted(seen) == list(range(90))


@pytest.mark.slow
def test_a_rebuild_elsewhere_gives_the_same_bytes(tmp_path, params):
    section = params(scheme=SCHEME)
    write(tmp_path / "data" / "small", section, tmp_path)
    away = tmp_path / "away"
    away.mkdir()
    program = (
        "import sys; from pathlib import Path\n"
        "from silos.data_params import DataParams; from silos.storage.partition_store import write\n"
        "write(Path('out/small'), DataParams.model_validate_json(sys.argv[1]), Path('.'))"
    )
    subprocess.run(
        [sys.executable, "-c", program, section.model_dump_json()],
        cwd=away,
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(Path(partition_store.__file__).parents[2])},
        check=True,
    )
    assert contents(away / "out" / "small") == contents(tmp_path / "data" / "small")


def test_one_changed_client_is_one_changed_file(tmp_path, natural):
    folder = natural({"lyon": 20, "oslo": 30, "rome": 25})
    before = contents(folder)
    with np.load(tmp_path / "own.npz") as held:
        arrays = dict(held)
    arrays["x"][25, 0, 0] ^= 1  # a row of oslo
    np.savez(tmp_path / "own.npz", **arrays)
    manifest = read_manifest(folder)
    write(folder, DataParams.model_validate(manifest.params), tmp_path)
    after = contents(folder)
    changed = [name for name in before if before[name] != after[name]]
    assert sorted(changed) == ["manifest.safetensors", "oslo.safetensors"]


def test_a_new_client_leaves_the_files_of_the_others_alone(natural):
    before = contents(natural({"lyon": 20, "oslo": 30}))
    after = contents(natural({"lyon": 20, "oslo": 30, "a b/ç": 5}))
    assert before["lyon.safetensors"] == after["lyon.safetensors"]
    assert set(after) - set(before) == {next(name for name in after if name.startswith("a-b-"))}


def test_clients_of_one_row_are_kept_and_train(natural):
    manifest = read_manifest(natural({"one": 1, "two": 2}))
    assert manifest.client("one").rows == {"train": 1, "validation": 0, "test": 0}
    assert manifest.client("two").rows == {"train": 2, "validation": 0, "test": 0}


@pytest.mark.parametrize("names", [["A", "a"], ["../x", "..-x"], ["con/1", "con 1"], [".", ".."], ["x" * 300, "y"]])
def test_odd_client_names_get_safe_and_separate_files(natural, names):
    folder = natural(dict.fromkeys(names, 4))
    manifest = read_manifest(folder)
    files = [entry.file for entry in manifest.clients]
    assert len({file.casefold() for file in files}) == 2
    for name in names:
        entry = manifest.client(name)
        assert len(entry.file) < 120
        assert len(open_client(folder, entry, "train")[1]) == entry.rows["train"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*files, "manifest.json", "manifest.safetensors"])


def test_empty_splits_are_read_as_no_rows(natural):
    folder = natural({"one": 1})
    x, y = open_client(folder, read_manifest(folder).client("one"), "test")
    assert x.shape == (0, 2, 2)
    assert y.shape == (0,)


def test_a_write_that_fails_leaves_the_old_data(tmp_path, natural, monkeypatch):
    folder = natural({"lyon": 20})
    before = contents(folder)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(partition_store, "to_json", stopped)
    with pytest.raises(KeyboardInterrupt):
        natural({"lyon": 21})
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["small"]  # leftovers lie outside data/
    monkeypatch.undo()
    natural({"lyon": 21})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "own.npz"]


def test_a_kill_at_any_step_of_write_leaves_the_old_or_the_new_data_whole(tmp_path, natural, killed_at_each_step):
    after = contents(natural({"lyon": 21, "rome": 3}))
    new_rows = (tmp_path / "own.npz").read_bytes()
    before = contents(natural({"lyon": 20, "oslo": 4}))
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "data").rename(project / "data")
    (project / "own.npz").write_bytes(new_rows)
    preparation = (
        "from pathlib import Path\n"
        "from silos.data_params import DataParams; from silos.storage.manifest import read_manifest\n"
        "from silos.storage.partition_store import write\n"
        "import safetensors.numpy, silos.sources.npz"
    )
    program = (
        "params = DataParams.model_validate(read_manifest(Path('data/small')).params)\n"
        "write(Path('data/small'), params, Path('.'))"
    )
    killed = killed_at_each_step(project, program, preparation)
    assert len(killed) > 10
    found = []
    for copy in killed:
        restore_moved(copy / "data")  # as opening the data does
        found.append(contents(copy / "data" / "small"))
        assert found[-1] in (before, after), copy.name
        assert [path.name for path in (copy / "data").iterdir()] == ["small"]
    assert found[-1] == after
    assert found == sorted(found, key=lambda held: held == after)  # once the new data are there, they stay
    assert sorted(path.name for path in killed[-1].iterdir()) == ["data", "own.npz"]


def test_a_missing_or_strange_manifest_is_a_sentence(natural, tmp_path):
    with pytest.raises(UserError, match=r"none: got no data \(no manifest\.json\), expected a partition"):
        read_manifest(tmp_path / "data" / "none")
    manifest = natural({"lyon": 20}) / "manifest.json"
    held = json.loads(manifest.read_text())
    for text, said in [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", r"manifest\.json: got format None, expected format 2"),
        (
            json.dumps(held | {"format": 99}),
            r"manifest\.json: got format 99, expected format 2",
        ),
        (json.dumps(held | {"format": 1}), r"manifest\.json: got format 1, expected format 2"),
        (json.dumps({"format": 2}), "is damaged"),
        (json.dumps(held | {"clients": 2}), "manifest.safetensors, the list of clients, is damaged"),
        (json.dumps(held | {"clients": "many"}), "is damaged"),
        (json.dumps(held | {"domains": []}), r"manifest\.safetensors, the list of clients, is damaged \(column"),
        (json.dumps(held | {"files": 3}), "is damaged"),
        (json.dumps(held).replace("lyon.safetensors", "../lyon.safetensors"), "is damaged"),
    ]:
        manifest.write_text(text)
        with pytest.raises(UserError, match=said):
            read_manifest(manifest.parent)


def test_an_unknown_client_is_a_sentence(natural):
    with pytest.raises(
        UserError, match=r"client: got paris, expected a client of data/small\. The clients are lyon, oslo"
    ):
        read_manifest(natural({"lyon": 20, "oslo": 3})).client("paris")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_names_the_file_and_the_client(natural, kept):
    folder = natural({"lyon": 20})
    path = folder / "lyon.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"lyon.safetensors.*client lyon.*`siloflow partition`.*`dvc checkout`"):
        open_client(folder, read_manifest(folder).client("lyon"), "train")


def test_a_missing_or_exchanged_file_names_the_client(natural):
    folder = natural({"lyon": 20, "oslo": 30})
    manifest = read_manifest(folder)
    (folder / "oslo.safetensors").rename(folder / "lyon.safetensors")
    with pytest.raises(UserError, match=r"lyon\.safetensors: got 21 train rows of client lyon, expected 14 as in"):
        open_client(folder, manifest.client("lyon"), "train")
    with pytest.raises(UserError, match="client oslo, is missing"):
        open_client(folder, manifest.client("oslo"), "train")


# --- any scheme, from the source to the bytes ---

SCHEMES = st.sampled_from(
    [
        [{"kind": "equal", "clients": 4}],
        [{"kind": "equal", "clients": 4}, {"kind": "rotation", "angles": [0, 30]}],
        [{"kind": "equal", "clients": 4}, {"kind": "noise", "sd": [0, 20]}],
        [{"kind": "equal", "clients": 4}, {"kind": "noise", "sd": 20, "mean": 9, "clip": False}],
        [{"kind": "equal", "clients": 4}, {"kind": "permute_pixels"}],
        [{"kind": "equal", "clients": 4}, {"kind": "permute_labels", "clusters": 2}],
        [{"kind": "equal", "clients": 4}, {"kind": "merge_labels", "into": {"all": [0, 1, 2]}}],
        [{"kind": "equal", "clients": 4}, {"kind": "imbalance", "classes": [1], "ratio": 4}],
        [{"kind": "equal", "clients": 4}, {"kind": "subsample", "classes": [0, 2], "ratio": 4}],
        [{"kind": "equal", "clients": 4, "within": "domain"}, {"kind": "hold_out", "domains": ["x"]}],
        [{"kind": "equal", "clients": 4, "within": "domain"}, {"kind": "fresh", "per_domain": 1}],
        [{"kind": "column", "column": "client"}],
        [{"kind": "quantity", "clients": 4, "beta": 1.0}],
        [{"kind": "dirichlet", "clients": 4, "alpha": 1.0}],
        [{"kind": "shards", "clients": 4, "shards_per_client": 2}],
        [{"kind": "balanced", "clients": 4, "percent": 30, "groups": [[0], [1, 2]]}],
        [{"kind": "classes_per_cluster", "clients": 4, "clusters": [[0], [1]]}],
    ]
)
SPLIT = st.fixed_dictionaries(
    {
        "validation": st.just(0.2),
        "test": st.just(0.2),
        "validation_rows": st.sampled_from(["own", "common"]),
        "test_rows": st.sampled_from(["own", "common"]),
    }
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    scheme=SCHEMES,
    split=SPLIT,
    seed=st.integers(0, 2**32),
    row=st.integers(0, 89),
    own_split=st.booleans(),
    shards=st.booleans(),
)
def test_the_same_params_are_the_same_bytes_and_one_changed_row_is_one_changed_file(
    params, scheme, split, seed, row, own_split, shards
):
    rng = np.random.default_rng(0)
    marks = np.array(["train", "test", "train"])[np.arange(90) % 3]
    arrays = {
        "x": rng.integers(0, 128, (90, 4, 4), np.uint8),
        "y": rng.integers(0, 3, 90),
        "client": rng.integers(0, 5, 90),
        "domain": np.array(["x", "y"])[np.arange(90) % 2],
    } | ({"split": marks} if own_split else {})
    own = params(source={"kind": "npz", "path": "own.npz"}, scheme=scheme, split=split, seed=seed)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as temporary:
        patch.setattr(partition_store, "FILES", 0 if shards else 128)
        patch.setattr(partition_store, "SHARD", 2)
        root = Path(temporary)
        np.savez(root / "own.npz", **arrays)
        written = write(root / "data" / "one", own, root)
        assert read_manifest(root / "data" / "one") == written
        write(root / "data" / "two", own, root)
        before = contents(root / "data" / "one")
        assert contents(root / "data" / "two") == before
        arrays["x"][row] = 255  # the centre of the image too: a turned image shows it
        np.savez(root / "own.npz", **arrays)
        write(root / "data" / "two", own, root)
        after = contents(root / "data" / "two")
    changed = [name for name in before if before[name] != after[name]]
    assert before.keys() == after.keys()
    assert "manifest.json" not in changed
    rows = [name for name in changed if name != "manifest.safetensors"]
    assert len(rows) == 1 or (not changed and written.left_out)
    assert ("manifest.safetensors" in changed) == (len(rows) == 1 and rows != ["common.safetensors"])


def test_the_default_data_are_the_ones_that_data_dvc_records(tmp_path):
    root = Path(__file__).parents[3]
    section = DataParams.model_validate(yaml.safe_load((root / "params.yaml").read_text())["data"])
    write(tmp_path / "data" / section.name, section, root)
    assert folder_digest(tmp_path / "data") == recorded_version(root)


def test_what_has_its_default_is_not_in_the_manifest(tmp_path, params):
    write(tmp_path / "data" / "small", params(), tmp_path)
    held = json.loads((tmp_path / "data" / "small" / "manifest.json").read_text())
    assert sorted(held) == ["classes", "clients", "domains", "dtype", "files", "format", "name", "params", "shape"]
    assert (held["clients"], held["domains"]) == (3, [""])
    assert held["files"] == ["c00.safetensors", "c01.safetensors", "c02.safetensors"]
    assert held["params"]["scheme"] == [{"kind": "equal", "clients": 3}]


def test_common_rows_roles_and_what_was_left_out_are_in_the_manifest(tmp_path, params):
    scheme = [
        {"kind": "equal", "clients": 4},
        {"kind": "rotation", "angles": [0, 90]},
        {"kind": "imbalance", "classes": [3], "ratio": 10},
        {"kind": "hold_out", "domains": ["rot90"]},
    ]
    split = {"validation": 0.1, "test": 0.2, "test_rows": "common"}
    folder = tmp_path / "data" / "small"
    written = write(folder, params(scheme=scheme, split=split), tmp_path)
    read = read_manifest(folder)
    assert read == written
    assert read.common == {"test": 359}
    assert [entry.role for entry in read.clients] == ["federated", "federated", "unseen", "unseen"]
    assert read.left_out > 0
    assert read.clients.rows.sum() + 359 + read.left_out == 1797
    x, y = open_common_rows(folder, read, "test")
    assert (x.shape, x.dtype, len(y)) == ((359, 8, 8), np.uint8, 359)
    assert len(open_common_rows(folder, read, "validation")[1]) == 0
    assert (folder / "common.safetensors").exists()


def test_a_damaged_or_missing_common_file_is_a_sentence(tmp_path, params):
    folder = tmp_path / "data" / "small"
    split = {"validation": 0.1, "test": 0.2, "test_rows": "common"}
    manifest = write(folder, params(split=split), tmp_path)
    path = folder / "common.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"common.safetensors, the rows of all clients, is damaged.*`dvc checkout`"):
        open_common_rows(folder, manifest, "test")
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        open_common_rows(folder, manifest, "test")


def test_a_client_named_common_has_a_file_of_its_own(natural):
    folder = natural({"common": 20, "lyon": 20}, split={"validation": 0, "test": 0.2, "test_rows": "common"})
    manifest = read_manifest(folder)
    assert len(open_client(folder, manifest.client("common"), "train")[1]) == manifest.client("common").rows["train"]
    assert len(open_common_rows(folder, manifest, "test")[1]) == 8


def test_what_is_read_ahead_is_written_without_reading_again_and_once(tmp_path, natural):
    folder = natural({"a": 4, "b": 3})
    written, made = contents(folder), read_manifest(folder)
    params = DataParams.model_validate(made.params)
    partition_store.read(params, tmp_path)
    (tmp_path / "own.npz").unlink()
    assert write(folder, params, tmp_path) == made
    assert contents(folder) == written
    with pytest.raises(UserError, match=r"own\.npz: got no such file \(looked for"):
        write(folder, params, tmp_path)
