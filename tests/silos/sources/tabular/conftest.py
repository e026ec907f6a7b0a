"""Tables on disk, as text, bytes or Arrow's, and what is read of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from silos.dataset import Rows
from silos.schema import Feature
from silos.sources.source_params import Table
from silos.sources.source_registry import load_source


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Rows]:
    """Writes a file, CSV or Parquet, and reads it with the label y unless told otherwise."""

    def build(held: str | bytes | dict | pa.Table, *declared: dict, name: str = "", **options: Any) -> Rows:
        if isinstance(held, dict):
            held = pa.table(held)
        name = name or ("own.parquet" if isinstance(held, pa.Table) else "own.csv")
        if isinstance(held, pa.Table):
            parquet.write_table(held, tmp_path / name)
        else:
            (tmp_path / name).write_bytes(held if isinstance(held, bytes) else held.encode())
        source = Table.model_validate({"kind": "table", "path": name, "label": "y", **options})
        return load_source(source, tmp_path, 0, tuple(Feature.model_validate(entry) for entry in declared))

    return build
