"""What a run leaves to be seen, by anybody who sees its folder, MLflow or Prefect, holds no client's row."""

import io
import re
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import yaml

from flows.methods.base import method_names
from flows.run import run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints

ROWS = {"one": 1, "few": 4, "many": 26}  # of training; fewer, and more, than the least that numbers must stand for
FEATURES = 5
THEIRS = ("data", "private", "cache", "downloads", "mine.npz")  # what is the clients', and the source
# everything that may show: personal weights, words of a client's own, a picture of features
SETTINGS = [
    "tracking.personal_models=true",
    "evaluation.passes=2",
    "engine.stack=2",
    "method.uefl={warm_up: 1, first_rounds: 1, more_rounds: 1, tolerance: -1, words: 8, segments: 1, fill: random}",
    "method.vq_oracle={warm_up: 1, words: 8, segments: 1}",
    "method.conditional={statistics: [{kind: mean}, {kind: covariance_xy}]}",
]
# a client's own words are means of its features, of however few rows, and leave with its personal weights only: so asked for
# are those that start from random numbers, and those of k-means are not asked for
PRIVATE_WORDS = ["tracking.personal_models=false", "method.uefl.fill=kmeans"]
# what a method asks of the data
ASKS = {
    name: ["data.split.validation_rows=common", f"method.{name}.local_rounds=1"]
    for name in ("selective", "selective_authors")
} | {"fedrep": ["model.hidden=[4]"]}  # it shares all layers but the last
SEVERAL = ("conditional", "local_only", "uefl")
OTHERS = tuple(name for name in method_names() if name not in SEVERAL)
DECIMAL = re.compile(rb"\d*\.\d+(?:[eE][-+]?\d+)?")
JOURNALS = ("-wal", "-shm", "-journal")  # of databases, which are read through SQLite
TIME = re.compile(rb"\d\d:\d\d:\d\d\.\d+")  # databases are full of them, and their digits are some row's by chance


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """Random numbers, (rows, features) float32, of all clients and splits in turn."""
    return np.random.default_rng(0).normal(size=(sum(ROWS.values()) + 2 * 12 * len(ROWS), FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def project(tmp_path_factory, write_params, rows) -> Path:
    """A folder in which every client has random rows and random labels, without a hidden layer: features are rows."""
    folder = tmp_path_factory.mktemp("export") / "project"
    raw = write_params(folder)
    sizes = {
        (client, split): n
        for client, own in ROWS.items()
        for split, n in (("train", own), ("validation", 12), ("test", 12))
    }
    client, split = (np.repeat([key[at] for key in sizes], list(sizes.values())) for at in (0, 1))
    np.savez(folder / "mine.npz", x=rows, y=np.arange(len(rows)) % 2, client=client, split=split)
    raw["data"] |= {
        "name": "mine",
        "source": {"kind": "npz", "path": "mine.npz"},
        "scheme": [{"kind": "column", "column": "client"}],
        "split": {"validation": 0.0, "test": 0.0},
    }
    raw["model"]["hidden"] = []
    raw["training"] |= {"rounds": 2, "optimiser": {"kind": "sgd", "learning_rate": 0.01}}
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("methods", [SEVERAL, OTHERS], ids=["several", "others"])
def test_no_row_is_in_anything_that_a_run_of_any_method_leaves(methods, prefect, project, rows, monkeypatch):
    """As float32 or float64 bytes, or as decimal text, in files, archives and databases."""
    monkeypatch.chdir(project)
    # a store that other tests used would put the models into the first one's folder
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for method in methods:
        run(method, 0, [*SETTINGS, *ASKS.get(method, ())], derived=True)
    run("uefl", 0, [*SETTINGS, *PRIVATE_WORDS], derived=True)
    services = prefect.log.parents[1]  # where this test's MLflow and Prefect have their databases
    left = [p for p in project.rglob("*") if p.is_file() and p.relative_to(project).parts[0] not in THEIRS]
    left += [p for p in services.rglob("*") if p.is_file() and not p.name.endswith(JOURNALS)]
    expected = {"mlflow.db", "prefect.db", "result.json", "weights.safetensors"}
    assert expected | ({"codebook.png"} if "uefl" in methods else set()) <= {p.name for p in left}
    search = Search(rows)
    found = {str(path): traces for path in left if (traces := search.traces(_said(path)))}
    assert not found, "; ".join(f"{path}: {traces[:3]}" for path, traces in found.items())


def test_the_search_finds_rows_in_every_form(rows, tmp_path):
    values = rows[:3].astype(float)
    np.savez_compressed(tmp_path / "rows.npz", x=rows)
    forms = [
        rows.tobytes(),
        rows.T.tobytes(),
        rows[7].tobytes(),
        rows.astype(float)[7, 3:4].tobytes(),
        str(values.tolist()).encode(),
        str(rows[:1].tolist()).encode(),
        f"{rows[2, 2]!s}".encode(),
        f"{rows[2, 2]:.8f}".encode(),
        f"{rows[2, 2]:.6e}".encode(),
        (tmp_path / "rows.npz").read_bytes(),
    ]
    search, other = Search(rows), np.random.default_rng(1).normal(size=(999, FEATURES)).astype(np.float32)
    for at, form in enumerate(forms):
        assert search.traces(form), at
    assert not search.traces(other.tobytes() + str(other.tolist()).encode())


def test_the_search_reads_a_database_cell_by_cell(rows, tmp_path):
    """In its file a cell stands right beside the next: 0.0 and an identifier 2618385a would read as one number."""
    first, number = float(rows[0, 0]), float(rows[0, 1])
    with closing(sqlite3.connect(tmp_path / "some.db")) as database, database:
        database.execute("create table cells (number real, name text, key text)")
        database.execute("insert into cells values (?, ?, ?)", (number, f"{first:.9f}", "2618385a"))
    assert set(Search(rows).traces(_said(tmp_path / "some.db"))) == {f"text of {number}", f"text of {first}"}
    glued = f"{first:.7f}"
    with closing(sqlite3.connect(tmp_path / "glued.db")) as database, database:
        database.execute("create table cells (name text, key text)")
        database.execute(
            "insert into cells values (?, ?)", (glued[: glued.index(".") + 2], glued[glued.index(".") + 2 :])
        )
    assert Search(rows).traces((tmp_path / "glued.db").read_bytes())
    assert not Search(rows).traces(_said(tmp_path / "glued.db"))


def _said(path: Path) -> bytes:
    """What a file says: itself, or of a database every cell on a line of its own."""
    if path.suffix != ".db":
        return path.read_bytes()
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        cells = (cell for table in tables for row in database.execute(f'select * from "{table}"') for cell in row)
        return b"\n".join(cell if isinstance(cell, bytes) else str(cell).encode() for cell in cells)


class Search:
    """Looks for the numbers of rows (rows, features) float32 in bytes, and in the members of an archive that they are."""

    def __init__(self, rows: np.ndarray) -> None:
        self.needles = {needle: value for value, needle in _needles(rows)}
        self.texts = {text: float(value) for value in rows.ravel() for text in _written(float(value), str(value))}

    def traces(self, data: bytes) -> list[str]:
        """What was found, as a sentence."""
        found = []
        for part in _parts(data):
            found += [f"bytes of {value}" for needle, value in self.needles.items() if needle in part]
            written = {_digits(token) for token in DECIMAL.findall(TIME.sub(b"", part))}
            found += [f"text of {self.texts[digits]}" for digits in written & self.texts.keys()]
        return found


def _parts(data: bytes) -> Iterator[bytes]:
    yield data
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield from _parts(archive.read(name))


def _needles(rows: np.ndarray) -> Iterator[tuple[float, bytes]]:
    """Four bytes alone are found in any file by chance: a float32 beside its neighbour in a row, or in a column."""
    for row in rows:
        yield from ((float(value), np.float64(value).tobytes()) for value in row)
        yield float(row[0]), row[:2].tobytes()
    for first, second in zip(rows[:-1, 0], rows[1:, 0], strict=True):
        yield float(first), np.array([first, second]).tobytes()


def _written(exact: float, short: str) -> set[bytes]:
    """A number's digits where it is written with seven of them or more: exactly, as short as can be, and rounded."""
    forms = [repr(exact), short, *(f"{exact:.{digits}e}" for digits in range(6, 17))]
    forms += [f"{exact:.{places}f}" for places in range(7, 17)]
    return {_digits(form.encode()) for form in forms} - {b""}


def _digits(token: bytes) -> bytes:
    """Its digits, without sign, point and exponent; nothing if they are too few to be one number's alone."""
    digits = re.sub(rb"[eE].*", b"", token).replace(b".", b"").strip(b"-+").strip(b"0")
    return digits if len(digits) >= 7 else b""
