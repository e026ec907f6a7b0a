"""Small silos on disk for the tests of this room."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from silos.data_params import DataParams, SplitParams, Step
from silos.dataset import Partition, Rows
from silos.partitioners.run_scheme import make_clients
from silos.storage.partition_store import write

SPLIT = {"validation": 0.1, "test": 0.2}


@pytest.fixture(scope="session")
def numbered() -> Callable[..., Rows]:
    """Builds rows whose one feature is their number."""

    def build(n: int, classes: int = 3, **columns: np.ndarray) -> Rows:
        x = np.arange(n, dtype=np.float32)[:, None]
        return Rows(x=x, y=np.arange(n) % classes, classes=[str(c) for c in range(classes)], **columns)

    return build


@pytest.fixture(scope="session")
def make() -> Callable[..., Partition]:
    """Applies the steps of a scheme, given as params.yaml has them; all rows train unless told otherwise."""
    steps_of = TypeAdapter(tuple[Step, ...])

    def build(rows: Rows, *steps: dict, seed: int = 0, **split: object) -> Partition:
        held_out = SplitParams.model_validate({"validation": 0, "test": 0} | split)
        return make_clients(rows, steps_of.validate_python(steps), held_out, seed)

    return build


@pytest.fixture(scope="session")
def rows_of() -> Callable[..., list[int]]:
    """The numbers of the rows that clients own in a split, or in all splits."""

    def found(clients: Sequence, split: str | None = None) -> list[int]:
        parts = [c.x[:, 0] if split is None else c.x[c.split == split, 0] for c in clients]
        return sorted(np.concatenate(parts).astype(int).tolist())

    return found


@pytest.fixture(scope="session")
def params() -> Callable[..., DataParams]:
    """Builds the data section of params.yaml, three equal clients of the digits unless told otherwise."""

    def build(**changes: object) -> DataParams:
        section = {
            "name": "small",
            "seed": 7,
            "source": {"kind": "digits"},
            "scheme": [{"kind": "equal", "clients": 3}],
            "split": SPLIT,
        }
        return DataParams.model_validate(section | changes)

    return build


@pytest.fixture
def natural(tmp_path: Path, params: Callable[..., DataParams]) -> Callable[..., Path]:
    """Writes silos with named clients of the given sizes and 2 x 2 pixels; returns their folder."""

    def build(sizes: dict[str, int], **changes: object) -> Path:
        # a generator each, so that one client's rows do not depend on the others
        x = [np.random.default_rng(1).integers(0, 256, (size, 2, 2), np.uint8) for size in sizes.values()]
        y = [np.random.default_rng(2).integers(0, 3, size) for size in sizes.values()]
        clients = np.repeat(list(sizes), list(sizes.values()))
        np.savez(tmp_path / "own.npz", x=np.concatenate(x), y=np.concatenate(y), client=clients)
        own = params(
            source={"kind": "npz", "path": "own.npz"},
            scheme=[{"kind": "column", "column": "client"}],
            **changes,
        )
        write(tmp_path / "data" / "small", own, tmp_path)
        return tmp_path / "data" / "small"

    return build


@pytest.fixture
def data(tmp_path) -> Path:
    """A folder data/ with names that sort and encode in different ways."""
    for path, text in [
        ("b/x", "1"),
        ("b-c", "2"),
        ("b.d", ""),
        ("É/ü ß", "3"),
        ("b/.hidden", "4"),
        ("B", "5"),
    ]:
        file = tmp_path / "data" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "data" / "empty").mkdir()
    return tmp_path / "data"
