"""Small silos on disk for the tests of this room."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from silos.params import DataParams
from silos.store import write

SPLIT = {"validation": 0.1, "test": 0.2}


@pytest.fixture
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
        rng = np.random.default_rng(0)
        clients = np.repeat(list(sizes), list(sizes.values()))
        x = rng.integers(0, 256, (len(clients), 2, 2)).astype(np.uint8)
        np.savez(tmp_path / "own.npz", x=x, y=rng.integers(0, 3, len(clients)), client=clients)
        own = params(
            source={"kind": "npz", "path": "own.npz"},
            scheme=[{"kind": "column", "column": "client"}],
            **changes,
        )
        write(tmp_path / "data" / "small", own, tmp_path)
        return tmp_path / "data" / "small"

    return build
