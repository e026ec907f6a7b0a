"""The store: the same bytes anywhere, one file a client, whole or not at all, and clear when damaged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from silos import store
from silos.errors import UserError
from silos.params import DataParams
from silos.rows import SPLITS
from silos.store import open_client, read_manifest, write

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
    assert sum(sum(read.rows(split).values()) for split in SPLITS) == 1797
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


def test_a_rebuild_elsewhere_gives_the_same_bytes(tmp_path, params):
    section = params(scheme=SCHEME)
    write(tmp_path / "data" / "small", section, tmp_path)
    away = tmp_path / "away"
    away.mkdir()
    program = (
        "import sys; from pathlib import Path\n"
        "from silos.params import DataParams; from silos.store import write\n"
        "write(Path('out/small'), DataParams.model_validate_json(sys.argv[1]), Path('.'))"
    )
    subprocess.run(
        [sys.executable, "-c", program, section.model_dump_json()],
        cwd=away,
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(Path(store.__file__).parents[1])},
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
    assert [name for name in before if before[name] != after[name]] == ["oslo.safetensors"]


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
    assert sorted(path.name for path in folder.iterdir()) == sorted([*files, "manifest.json"])


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

    monkeypatch.setattr(store, "to_json", stopped)
    with pytest.raises(KeyboardInterrupt):
        natural({"lyon": 21})
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["small"]  # leftovers lie outside data/
    monkeypatch.undo()
    natural({"lyon": 21})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "own.npz"]


def test_a_process_killed_between_the_renames_loses_nothing(tmp_path, natural, monkeypatch):
    folder = natural({"lyon": 20})
    before = contents(folder)
    folder.rename(tmp_path / ".data-small.old")
    monkeypatch.setattr(store, "load", lambda *_: pytest.fail("stop here"))
    with pytest.raises(pytest.fail.Exception):
        natural({"lyon": 21})
    assert contents(folder) == before


def test_a_missing_or_strange_manifest_is_a_sentence(natural, tmp_path):
    with pytest.raises(UserError, match="`siloflow partition` makes it, `dvc pull` fetches"):
        read_manifest(tmp_path / "data" / "none")
    manifest = natural({"lyon": 20}) / "manifest.json"
    held = json.loads(manifest.read_text())
    for text, said in [
        ("{", "cannot be read"),
        ("[]", "has format None"),
        (json.dumps(held | {"format": 99}), "has format 99 and this siloflow reads format 1"),
        (json.dumps({"format": 1}), "is damaged"),
        (json.dumps(held).replace("lyon.safetensors", "../lyon.safetensors"), "is damaged"),
    ]:
        manifest.write_text(text)
        with pytest.raises(UserError, match=said):
            read_manifest(manifest.parent)


def test_an_unknown_client_is_a_sentence(natural):
    with pytest.raises(UserError, match="no client paris in data/small; it has lyon, oslo"):
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
    with pytest.raises(UserError, match=r"holds 21 train rows of client lyon, and manifest.json says 14"):
        open_client(folder, manifest.client("lyon"), "train")
    with pytest.raises(UserError, match="client oslo, is missing"):
        open_client(folder, manifest.client("oslo"), "train")
